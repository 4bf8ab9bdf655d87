//! An ADD beside the DEL of the last pod.

use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use cnimble_cni::Owner;
use cnimble_netlink::nft::Nft;
use cnimble_rules::masquerade;
use cnimble_tests::{Ns, PATIENCE, need, skip, wait_until};

use super::{add, check, nets, owner, remove, ruleset};

/// Marks the process, which writes its number into this file.
const NUMBER_TO: &str = "CNIMBLE_TEST_NUMBER_TO";

fn last() -> (Owner, &'static str) {
    (owner("net1", "last"), "10.1.0.2/16")
}

/// Not a test on its own: [`a_pod_that_comes_while_the_last_one_goes_is_masqueraded`] runs and stops it.
#[test]
fn the_last_one_goes() {
    let Ok(file) = std::env::var(NUMBER_TO) else { return };
    std::fs::write(file, std::process::id().to_string()).unwrap();
    let (owner, addr) = last();
    masquerade::remove(&mut Nft::new(), &owner, &nets(&[addr])).unwrap();
}

/// The removal stops after each of its requests in turn. Kernels before 6.12 would delete the set with the new element.
#[test]
fn a_pod_that_comes_while_the_last_one_goes_is_masqueraded() {
    need!("nft", "strace");
    let dir = tempfile::tempdir().unwrap();
    let (_, module) = module_path!().split_once("::").unwrap();
    let (next, addr) = (owner("net1", "next"), "10.1.0.3/16");
    for request in 1.. {
        let ns = Ns::new();
        add(&ns, &last().0, &[last().1]);
        let [log, number] = ["strace", "number"].map(|name| dir.path().join(format!("{name}-{request}")));
        let mut going = ns.within(|| {
            Command::new("strace")
                .args(["-f", "-e", "trace=sendto", "-e"])
                .arg(format!("inject=sendto:signal=STOP:when={request}"))
                .arg("-o")
                .arg(&log)
                .arg(std::env::current_exe().unwrap())
                .args(["--exact", &format!("{module}::the_last_one_goes")])
                .env(NUMBER_TO, &number)
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        });
        let mut stopped = false;
        let settled = wait_until(PATIENCE, || {
            let ended = going.try_wait().unwrap().is_some();
            stopped = std::fs::read_to_string(&log).is_ok_and(|log| log.contains("stopped by SIGSTOP"));
            stopped || ended
        });
        if !stopped {
            let ended = going.wait().unwrap();
            if request == 1 && !ended.success() {
                skip!("strace may not trace here");
            }
            assert!(settled && ended.success(), "request {request}: {ended}");
            assert!(request > 3, "the removal was never stopped");
            assert_eq!(ruleset(&ns), "");
            return;
        }
        let made = add(&ns, &next, &[addr]);
        let number = std::fs::read_to_string(&number).unwrap().parse().unwrap();
        kill(Pid::from_raw(number), Signal::SIGCONT).unwrap();
        assert!(going.wait().unwrap().success(), "stopped behind request {request}");
        check(&ns, &next, &[addr]).unwrap_or_else(|err| panic!("stopped behind request {request}: {err}"));
        drop(made);
        remove(&ns, &next, &[addr]);
        assert_eq!(ruleset(&ns), "", "stopped behind request {request}");
    }
}
