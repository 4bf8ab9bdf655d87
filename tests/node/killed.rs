//! Kills an install at each of its steps, over nothing, over foreign plugins and over cnimble's. A second call repairs
//! it, and `--uninstall` then restores the original files.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;

use cnimble_tests::trace::{self, Fate, untraceable};
use cnimble_tests::{LIMIT, skip};

use crate::scripts::{Node, contents};

/// The plugins before the install.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    Others,
    Ours,
}

/// Returns a binary of three plugins, instead of all.
fn small(version: u8) -> String {
    format!("#!/bin/sh\n# {version}\nprintf '%s\\n' bridge host-local loopback\n")
}

impl Node {
    /// Returns a node before an install. `install` installs the files in `release`.
    fn before(before: Before, upgrade: impl Fn(&Node), install: impl Fn(&Node)) -> Self {
        let node = Node::new();
        if before == Before::Nothing {
            fs::remove_dir_all(node.path("bin")).unwrap();
            fs::create_dir(node.path("bin")).unwrap();
        }
        if before == Before::Ours {
            install(&node);
            upgrade(&node);
        }
        node
    }

    /// Returns all files of an install, without the parts that differ each time: inode numbers, times, the directory.
    fn shape(&self) -> BTreeMap<String, String> {
        let dir = self.dir.path().display().to_string();
        let text = |identity: &str| {
            let parts: Vec<&str> = identity.splitn(4, ' ').collect();
            format!("{} {}", parts[1], parts[3].replace(&dir, "DIR"))
        };
        let found = ["bin", "prefix"].into_iter().flat_map(|dir| contents(&self.path(dir)));
        found
            .map(|(path, identity)| (path.display().to_string().replace(&dir, "DIR"), text(&identity)))
            .collect()
    }

    /// Returns a PATH with wrappers for the programs that change files. Change number `call` kills the script and all
    /// of its children.
    fn kill_at(&self, call: usize) -> String {
        let met = self.path("met");
        fs::create_dir(&met).unwrap();
        for program in ["ln", "mv", "rm", "mkdir", "cp", "chmod", "sync", "sort", "flock"] {
            let real = ["/usr/bin", "/bin"].map(|dir| Path::new(dir).join(program));
            let real = real.iter().find(|path| path.exists()).unwrap();
            let text = format!(
                "#!/bin/sh\nn=0\n[ ! -e {count} ] || read -r n <{count}\nn=$((n + 1))\necho $n >{count}\n\
                 [ $n != {call} ] || kill -9 0\nexec {real} \"$@\"\n",
                count = self.path("counter").display(),
                real = real.display(),
            );
            self.write(&format!("met/{program}"), &text);
        }
        format!("{}:{}", met.display(), std::env::var("PATH").unwrap())
    }
}

fn script_is_repaired(before: Before, options: &[&str]) {
    let upgrade = |node: &Node| node.write("release/cnimble-plugins", &small(2));
    let install = |node: &Node| {
        node.write("release/cnimble-plugins", &small(1));
        node.install_ok(options);
    };
    let new = || {
        let node = Node::before(before, upgrade, install);
        upgrade(&node);
        node
    };
    let whole = new();
    let original = contents(&whole.path("bin")).len();
    whole.install_ok(options);
    let whole = whole.shape();
    let mut killed = 0;
    for call in 1.. {
        let node = new();
        let was = contents(&node.path("bin"));
        let path = node.kill_at(call);
        let output = node.command(options).env("PATH", path).process_group(0).output().unwrap();
        node.install_ok(options);
        assert_eq!(node.shape(), whole, "killed at change {call}");
        node.install_ok(&["--uninstall", "--force"]);
        match before {
            Before::Ours => assert!(!node.path("bin/host-local").exists()),
            _ => assert_eq!(contents(&node.path("bin")), was, "killed at change {call}"),
        }
        assert!(contents(&node.path("prefix")).is_empty(), "killed at change {call}");
        if output.status.success() {
            break;
        }
        killed += 1;
    }
    assert!(killed > 10, "only {killed} were killed; {original} files before");
}

#[test]
fn a_script_killed_over_nothing_is_repaired_by_the_next_run() {
    script_is_repaired(Before::Nothing, &[]);
}

#[test]
fn a_script_killed_over_plugins_of_others_is_repaired_by_the_next_run() {
    script_is_repaired(Before::Others, &[]);
}

#[test]
fn a_script_killed_over_plugins_of_ours_is_repaired_by_the_next_run() {
    script_is_repaired(Before::Ours, &[]);
}

#[test]
fn a_script_killed_while_it_copies_is_repaired_by_the_next_run() {
    script_is_repaired(Before::Others, &["--copies"]);
}

/// `--uninstall` after a killed install restores the original files, without an install in between.
#[test]
fn a_killed_script_can_be_undone_at_once() {
    for call in 1.. {
        let node = Node::new();
        node.write("release/cnimble-plugins", &small(1));
        let before = contents(&node.path("bin"));
        let path = node.kill_at(call);
        let output = node.command(&[]).env("PATH", path).process_group(0).output().unwrap();
        node.install_ok(&["--uninstall", "--force"]);
        assert_eq!(contents(&node.path("bin")), before, "killed at change {call}");
        if output.status.success() {
            break;
        }
    }
}

/// The system calls that change files.
const CHANGES: &[&str] = &[
    "mkdir",
    "openat",
    "open",
    "write",
    "fchmod",
    "fsync",
    "link",
    "linkat",
    "rename",
    "renameat",
    "renameat2",
    "unlink",
    "unlinkat",
];

/// The number of calls that are tried, evenly distributed. `scripts/stress` tries each.
const TRIED: usize = 12;

fn binary_is_repaired(before: Before, options: &[&str]) {
    if let Some(why) = untraceable() {
        skip!("{why}");
    }
    let install = |node: &Node| {
        let output = node.binary("--install").args(options).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let new = || Node::before(before, |node| drop(node.upgrade()), install);
    let traced =
        |node: &Node, fate: &Fate| trace::run(node.binary("--install").args(options), b"", fate, LIMIT);
    let whole = new();
    let calls = traced(&whole, &Fate::Watched).calls;
    let whole = whole.shape();
    let mut points: Vec<usize> =
        (0..calls.len()).filter(|at| CHANGES.contains(&calls[*at].name().as_str())).collect();
    assert!(points.len() > 60, "{} changes?", points.len());
    if std::env::var_os("CNIMBLE_STRESS").is_none() {
        let step = points.len() / TRIED;
        points = points.into_iter().step_by(step).collect();
    }
    for at in points {
        let node = new();
        let was = contents(&node.path("bin"));
        assert!(traced(&node, &Fate::KilledAt(at)).met);
        install(&node);
        assert_eq!(node.shape(), whole, "killed at {} ({at})", calls[at].name());
        node.by_itself_ok("--uninstall");
        match before {
            Before::Ours => assert!(!node.path("bin/host-local").exists()),
            _ => assert_eq!(contents(&node.path("bin")), was, "killed at {} ({at})", calls[at].name()),
        }
    }
}

#[test]
fn a_binary_killed_over_nothing_is_repaired_by_the_next_run() {
    binary_is_repaired(Before::Nothing, &[]);
}

#[test]
fn a_binary_killed_over_plugins_of_others_is_repaired_by_the_next_run() {
    binary_is_repaired(Before::Others, &["--copies"]);
}

#[test]
fn a_binary_killed_over_plugins_of_ours_is_repaired_by_the_next_run() {
    binary_is_repaired(Before::Ours, &[]);
}
