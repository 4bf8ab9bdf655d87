//! Network namespaces without a process, which a bind mount keeps.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

use cnimble_netlink::{Error, Result};
use cnimble_os::files::IfPresent;

/// Makes a namespace and mounts it to `path`, which must not exist, in an existing directory.
pub(super) async fn create(path: PathBuf) -> Result<()> {
    let what = describe_making(&path);
    let (sender, receiver) = tokio::sync::oneshot::channel();
    // It uses a thread that ends afterwards, because no other task may run in the namespace.
    let thread = std::thread::Builder::new().name("netns".to_owned()).spawn(move || {
        // The waiter has gone, so the namespace stays unused.
        if let Err(Ok(())) = sender.send(pin(&path))
            && let Err(err) = remove(&path)
        {
            log::warn!("{err}");
        }
    });
    thread.map_err(|err| Error::io(&what, &err))?;
    receiver.await.unwrap_or_else(|err| Err(Error::io(what, &io::Error::other(err))))
}

/// Moves this thread into a new namespace, and mounts that to `path`.
fn pin(path: &Path) -> Result<()> {
    File::options()
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(|err| Error::io(describe_making(path), &err))?;
    let made = unshare(CloneFlags::CLONE_NEWNET).and_then(|()| {
        let here = Path::new("/proc/thread-self/ns/net");
        mount(Some(here), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
    });
    made.map_err(|errno| {
        let _ = std::fs::remove_file(path);
        Error::new(describe_making(path), errno)
    })
}

fn describe_making(path: &Path) -> String {
    format!("make network namespace {}", path.display())
}

/// Unmounts and removes `path`. The namespace ends with the last process in it. A missing path is success.
pub(super) fn remove(path: &Path) -> Result<()> {
    loop {
        match umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            // There may be several mounts at the path.
            Ok(()) => {}
            Err(Errno::ENOENT) => return Ok(()),
            Err(Errno::EINVAL) => break,
            Err(errno) => return Err(Error::new(describe_removal(path), errno)),
        }
    }
    let removed = std::fs::remove_file(path).if_present();
    removed.map(drop).map_err(|err| Error::io(describe_removal(path), &err))
}

fn describe_removal(path: &Path) -> String {
    format!("remove network namespace {}", path.display())
}
