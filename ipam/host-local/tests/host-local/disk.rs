//! Full or read-only disks: a tmpfs in its own mount namespace.

use cnimble_tests::skip;

use super::*;

/// No other process sees the disk at `dir`.
fn on_a_disk(options: &'static str, test: impl FnOnce(&Path) + Send) {
    use nix::mount::{MsFlags, mount};
    let dir = tempfile::tempdir().unwrap();
    let there = dir.path().to_owned();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
            let none = None::<&str>;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
            mount(Some("tmpfs"), &there, Some("tmpfs"), MsFlags::empty(), Some(options)).unwrap();
            test(&there);
        });
    });
}

fn remount_read_only(dir: &Path) {
    use nix::mount::{MsFlags, mount};
    let none = None::<&str>;
    mount(none, dir, none, MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY, none).unwrap();
}

fn error(program: &Path, step: &Step, config: &Value) -> (u64, String) {
    let output = run(program, step, config);
    assert_eq!(output.status.code(), Some(1), "{step:?}");
    let error: Value = serde_json::from_slice(&output.stdout).unwrap();
    (error["code"].as_u64().unwrap(), error["msg"].as_str().unwrap().to_owned())
}

#[test]
fn a_read_only_disk_is_an_error_and_stays_as_it_was() {
    if !nix::unistd::geteuid().is_root() {
        skip!("not root");
    }
    on_a_disk("size=1m", |dir| {
        let ours = ours();
        let config = config(dir, "1.1.0", &json!({ "subnet": "10.9.0.0/24" }));
        let (add, del) = (Step::new("ADD", "c1", ""), Step::new("DEL", "c1", ""));
        let status = Step::new("STATUS", "", "");
        assert!(run(&ours, &add, &config).status.success());
        assert!(run(&ours, &status, &config).status.success());
        let before = files(dir);
        remount_read_only(dir);
        let (code, msg) = error(&ours, &Step::new("ADD", "c2", ""), &config);
        assert!(code == 5 && msg.contains("Read-only file system"), "{code} {msg}");
        assert_eq!(error(&ours, &status, &config).0, 50);
        let (code, msg) = error(&ours, &del, &config);
        assert!(code == 5 && msg.contains("10.9.0.2"), "{code} {msg}");
        // Nothing to remove is no failure.
        assert!(run(&ours, &Step::new("DEL", "c2", ""), &config).status.success());
        assert_eq!(files(dir), before);
    });
}

#[test]
fn a_full_disk_is_an_error_and_stays_as_it_was() {
    if !nix::unistd::geteuid().is_root() {
        skip!("not root");
    }
    on_a_disk("size=64k", |dir| {
        let ours = ours();
        let config = config(
            dir,
            "1.1.0",
            &json!({ "ranges": [[{ "subnet": "10.9.0.0/24" }], [{ "subnet": "fd09::/64" }]] }),
        );
        let status = Step::new("STATUS", "", "");
        assert!(run(&ours, &status, &config).status.success());
        let mut given = 0;
        let code = loop {
            let before = files(dir);
            let output = run(&ours, &Step::new("ADD", &format!("c{given}"), ""), &config);
            if !output.status.success() {
                assert_eq!(files(dir), before);
                break serde_json::from_slice::<Value>(&output.stdout).unwrap()["code"].clone();
            }
            given += 1;
            assert!(given < 100);
        };
        assert_eq!(code, 5);
        assert!(given > 0);
        assert_eq!(error(&ours, &status, &config).0, 50);
        for n in 0..given {
            assert!(run(&ours, &Step::new("DEL", &format!("c{n}"), ""), &config).status.success());
        }
        assert!(leases(dir).is_empty());
    });
}
