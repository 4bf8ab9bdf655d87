//! Network namespaces in a separate mount namespace.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

use cnimble_netlink::link::{self, NewVeth};
use cnimble_netlink::{NetNs, Netlink};

use crate::Result;

/// The directory of the namespaces, which only this process sees.
const NAMESPACES: &str = "/run/cnimble-bench";

/// This process, isolated from the machine's network and mounts.
pub(crate) struct Sandbox {
    state_dir: PathBuf,
}

impl Sandbox {
    /// Returns the directory for leases and caches.
    pub(crate) fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// Leaves the machine's namespaces. `/run` becomes empty, so that neither locks (`/run/xtables.lock`) nor names are
    /// shared with other processes.
    pub(crate) fn enter(state_dir: &Path) -> Result<Self> {
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)?;
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
        mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::empty(), none)?;
        std::fs::create_dir(NAMESPACES)?;
        let state_dir = state_dir.join(format!("cnimble-bench-{}", std::process::id()));
        std::fs::create_dir_all(&state_dir)?;
        Ok(Sandbox { state_dir })
    }

    /// Waits until the kernel has removed the dropped namespaces in the background. It removes them in order, so this
    /// creates one more, with a veth from here into it. The veth is removed with that namespace.
    pub(crate) fn settle(&self) -> Result<()> {
        let (here, last) = (Namespace::new("settling")?, Namespace::new("last")?);
        let mut netlink = Netlink::open_in(&NetNs::open(here.path())?)?;
        let there = NetNs::open(last.path())?;
        netlink.create_link(link::add_veth(&NewVeth {
            name: "here",
            mac: None,
            master: None,
            up: false,
            mtu: None,
            peer_name: "there",
            peer_mac: None,
            peer_ns: there.as_fd(),
        }))?;
        drop((there, last));
        let begun = Instant::now();
        while netlink.find_link("here")?.is_some() {
            if begun.elapsed() > Duration::from_secs(300) {
                return Err("the kernel doesn't get done with the namespaces of pods".into());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.state_dir);
    }
}

/// A network namespace with a name in the file system, as runtimes create them.
pub(crate) struct Namespace {
    path: PathBuf,
}

impl Namespace {
    pub(crate) fn new(name: &str) -> Result<Self> {
        let path = Path::new(NAMESPACES).join(name);
        File::create(&path)?;
        let target = path.clone();
        // The thread enters the namespace and ends, and this process stays outside.
        std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET)?;
            mount(Some("/proc/thread-self/ns/net"), &target, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        })
        .join()
        .map_err(|_| "making a namespace panicked")??;
        Ok(Namespace { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Moves the calling thread here. Children start in the namespace of the thread that spawns them.
    pub(crate) fn enter(&self) -> Result<()> {
        Ok(enter(&self.path)?)
    }
}

/// Moves the calling thread to the network namespace at `path`.
pub(crate) fn enter(path: &Path) -> std::io::Result<()> {
    Ok(setns(File::open(path)?, CloneFlags::CLONE_NEWNET)?)
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = umount2(&self.path, MntFlags::MNT_DETACH);
        let _ = std::fs::remove_file(&self.path);
    }
}
