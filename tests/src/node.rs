//! A node that container runtimes run on: a [`Host`] with processes and mounts of its own.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::{Background, LIMIT, run_limited};
use crate::{Host, Ns, Outcome, PATIENCE, plugin_dir, wait_until};

/// A host with private mount and PID namespaces. Its processes, and its files below /run, /var/lib, /etc/cni and /opt,
/// end with the node.
pub struct Node {
    host: Host,
    init: Background,
    pid: String,
}

/// PID 1 of a node. It reaps orphans, so nothing stays a zombie. The first umount is for crun, which refuses a cgroup v2
/// hierarchy beside v1. It leaves an orphan, so that a reaping process has reaped once.
const INIT: &str = r#"
mount --make-rprivate /
umount /sys/fs/cgroup/unified 2>/dev/null || true
for dir in /run /var/lib /dev/shm /etc/cni /opt; do
    mkdir -p $dir
    mount -t tmpfs -o mode=755 none $dir
done
mkdir -p /run/netns /etc/cni/net.d /opt/cni/bin
mount --bind "$PLUGINS" /opt/cni/bin
(true &)
touch "$READY"
while :; do sleep 1; done
"#;

impl Node {
    /// Boots one. The plugins under test are its /opt/cni/bin.
    ///
    /// # Panics
    /// If it doesn't come up.
    #[allow(clippy::new_without_default)] // a default that starts processes would surprise
    pub fn new() -> Self {
        Self::under(&[], plugin_dir())
    }

    /// A node with these plugins and the first process `init`, such as `["tini", "--"]`. The default is a shell.
    ///
    /// # Panics
    /// If it doesn't come up.
    pub fn under(init: &[&str], plugins: &Path) -> Self {
        let host = Host::new();
        let ready = host.dir().join("ready");
        let mut command = host.command("unshare");
        command
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(init)
            .args(["sh", "-ec", INIT])
            .env("READY", &ready)
            .env("PLUGINS", plugins.canonicalize().unwrap())
            .stdin(Stdio::null());
        let mut init = Background::start(&mut command);
        let up = wait_until(PATIENCE, || ready.exists() || !init.running());
        assert!(up && ready.exists(), "the node does not come up");
        let children = format!("/proc/{0}/task/{0}/children", init.pid());
        let pid = std::fs::read_to_string(children).unwrap().trim().to_owned();
        Node { host, init, pid }
    }

    /// A command that runs on the node.
    pub fn command(&self, program: &str) -> Command {
        let mut command = self.host.command("nsenter");
        command.args(["--target", &self.pid, "--mount", "--pid", "--"]).arg(program);
        command
    }

    /// Runs a line of shell on the node.
    pub fn run(&self, script: &str) -> Outcome {
        let mut command = self.command("sh");
        command.args(["-ec", script]);
        Outcome::from(script, run_limited(&mut command, b"", LIMIT))
    }

    /// Runs a line of shell that must succeed; returns what it printed, trimmed.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        self.run(script).success().text().trim().to_owned()
    }

    /// Writes a file below the host's directory; returns its path.
    pub fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.dir().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    /// A root file system with busybox, in a directory.
    pub fn rootfs(&self) -> PathBuf {
        let root = self.dir().join("rootfs");
        for dir in ["bin", "etc", "proc", "sys", "dev", "tmp"] {
            std::fs::create_dir_all(root.join(dir)).unwrap();
        }
        let busybox = ["/bin/busybox", "/usr/bin/busybox"]
            .iter()
            .find(|path| Path::new(path).exists())
            .expect("busybox");
        std::fs::copy(busybox, root.join("bin/busybox")).unwrap();
        for applet in ["sh", "sleep", "ping", "nc", "ip", "cat", "true", "httpd"] {
            std::os::unix::fs::symlink("busybox", root.join("bin").join(applet)).unwrap();
        }
        root
    }

    /// Where a file of the node is to be found from outside of it.
    pub fn path(&self, path: &str) -> PathBuf {
        // The link from /var/run to /run would lead to ours.
        let path = path.strip_prefix("/var").filter(|rest| rest.starts_with("/run/")).unwrap_or(path);
        Path::new("/proc").join(&self.pid).join("root").join(path.trim_start_matches('/'))
    }

    /// A network namespace by the path that it has on the node.
    ///
    /// # Panics
    /// If it isn't there.
    pub fn netns(&self, path: &str) -> Ns {
        Ns::at(&self.path(path))
    }

    /// Whether pid 1 still runs.
    pub fn running(&mut self) -> bool {
        self.init.running()
    }
}

impl Deref for Node {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.host
    }
}
