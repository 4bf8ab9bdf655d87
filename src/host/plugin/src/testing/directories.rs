//! Directories that stand for the machine's `/run` and `/var/lib` while a plugin runs.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use cnimble_netlink::NetNs;

/// The directories of the machine that a plugin writes to, and what stands for each.
const REPLACED: [(&str, &str); 2] = [("/run", "run"), ("/var/lib", "lib")];

/// Two directories, which are empty at first and end with this value.
pub(super) struct Directories {
    top: tempfile::TempDir,
}

impl Directories {
    pub(super) fn new() -> Self {
        let top = tempfile::Builder::new().prefix("cnimble-trial-").tempdir().expect("a temporary directory");
        for (_, own) in REPLACED {
            std::fs::create_dir(top.path().join(own)).unwrap();
        }
        Directories { top }
    }

    /// Returns the path of what the plugin sees at `path`.
    pub(super) fn path_of(&self, path: &str) -> PathBuf {
        let (replaced, own) = REPLACED.iter().find(|(replaced, _)| path.starts_with(replaced)).unwrap();
        self.top.path().join(own).join(path.trim_start_matches(replaced).trim_start_matches('/'))
    }

    /// Starts `command` in the network namespace `host`, and in a mount namespace of its own with these directories.
    pub(super) fn spawn(&self, command: &mut Command, host: &NetNs) -> Child {
        for (replaced, _) in REPLACED {
            let program = Path::new(command.get_program());
            assert!(
                !program.starts_with(replaced),
                "{} is below {replaced}, where a call finds other files: build the plugin elsewhere",
                program.display()
            );
        }
        // A child has the namespaces of the thread that starts it. This thread ends behind that, so its namespace of
        // mounts is of no other call.
        let started = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.mount();
                host.enter(|| command.spawn()).unwrap()
            });
            thread.join().expect("the thread that starts the plugin")
        });
        started.unwrap_or_else(|err| panic!("{}: {err}", command.get_program().to_string_lossy()))
    }

    /// Mounts the directories, for this thread only.
    fn mount(&self) {
        const NOTHING: Option<&str> = None;
        unshare(CloneFlags::CLONE_NEWNS).expect("a new mount namespace: run the test as root");
        mount(NOTHING, "/", NOTHING, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NOTHING).unwrap();
        for (replaced, own) in REPLACED {
            let own = self.top.path().join(own);
            mount(Some(&own), replaced, NOTHING, MsFlags::MS_BIND, NOTHING).unwrap_or_else(|err| {
                panic!("mount {} on {replaced}: {err}; TMPDIR has to be elsewhere", own.display())
            });
        }
    }
}
