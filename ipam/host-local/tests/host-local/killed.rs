//! Killed, and told to end.

use std::time::Duration;

use cnimble_tests::{PATIENCE, wait_until};

use super::*;

#[test]
fn a_kill_leaves_whole_leases_or_none() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(
        dir.path(),
        "1.0.0",
        &json!({ "ranges": [[{ "subnet": "10.9.0.0/16" }], [{ "subnet": "fd09::/64" }]] }),
    );
    let mut random = Random(77);
    let mut killed = 0;
    for n in 0..150 {
        let mut child = start(&ours(), &Step::new("ADD", &format!("c{n}"), ""), &config);
        std::thread::sleep(Duration::from_micros(random.below(6000)));
        child.kill().unwrap();
        killed += i32::from(!child.wait().unwrap().success());
        for (name, content) in leases(dir.path()) {
            if name.starts_with('.') {
                continue;
            }
            assert!(name.parse::<std::net::IpAddr>().is_ok(), "{name}");
            let (id, ifname) = content.split_once("\r\n").unwrap_or_default();
            assert!(id.starts_with('c') && ifname == "eth0", "{name}: {content:?}");
        }
        let last = files(dir.path()).remove("last_reserved_ip.0");
        assert!(last.is_none_or(|last| last.parse::<std::net::IpAddr>().is_ok()));
    }
    assert!(killed > 0, "no process was killed in time");
    for n in 0..150 {
        assert!(run(&ours(), &Step::new("DEL", &format!("c{n}"), ""), &config).status.success());
    }
    assert!(leases(dir.path()).is_empty(), "{:?}", leases(dir.path()));
}

#[test]
fn a_signal_ends_the_wait_for_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("net")).unwrap();
    let lock = fs::File::create(dir.path().join("net/lock")).unwrap();
    lock.lock().unwrap();
    let before = files(dir.path());
    let config = config(dir.path(), "1.0.0", &json!({ "subnet": "10.9.0.0/24" }));
    let child = start(&ours(), &Step::new("ADD", "c1", ""), &config);
    // The kernel lists waiters behind a lock (proc_locks(5)).
    let id = child.id().to_string();
    let waits = || {
        let locks = fs::read_to_string("/proc/locks").unwrap();
        let mut waiting = locks.lines().filter(|line| line.contains("-> FLOCK"));
        waiting.any(|line| line.split_whitespace().any(|word| word == id))
    };
    assert!(wait_until(PATIENCE, waits), "{}", fs::read_to_string("/proc/locks").unwrap());
    assert!(leases(dir.path()).is_empty());
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::SIGTERM).unwrap();
    let mut child = child;
    assert!(wait_until(PATIENCE, || child.try_wait().unwrap().is_some()), "still waiting");
    let output = child.wait_with_output().unwrap();
    let error: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(error["code"], 11, "{error}");
    assert_eq!(files(dir.path()), before);
}
