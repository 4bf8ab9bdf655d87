use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::errno::Errno;

use super::{bridge, other_netns, plain_veth};
use crate::link::{Change, Link, NewVeth, add_veth, del, set};
use crate::testing::in_netns;
use crate::{NetNs, Netlink};

/// A notification comes at once. Without it the wait ends in an error.
const LONG: Duration = Duration::from_secs(60);

fn up() -> Change<'static> {
    Change { up: Some(true), ..Change::default() }
}

/// Sets the port's other end up.
fn start(inside: &mut Netlink) {
    let eth0 = inside.link("eth0").unwrap();
    inside.execute(set(eth0.index, "eth0", &up())).unwrap();
}

/// A bridge port that is up and waits for its other end in `pod`.
fn port(netlink: &mut Netlink, pod: &NetNs) -> Link {
    let bridge = bridge(netlink, "br0");
    netlink.execute(set(bridge.index, "br0", &up())).unwrap();
    let veth = NewVeth { master: Some(bridge.index), up: true, ..plain_veth("v0", "eth0", pod) };
    netlink.create_link(add_veth(&veth)).unwrap()
}

#[test]
fn sees_the_link_come_up() {
    in_netns("sees_the_link_come_up", || {
        let pod = other_netns();
        let mut netlink = Netlink::open().unwrap();
        let port = port(&mut netlink, &pod);
        let mut inside = Netlink::open_in(&pod).unwrap();
        let other = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            start(&mut inside);
        });
        let link = netlink.wait_oper_up(port.index, LONG).unwrap();
        assert!(link.oper_up && link.name == "v0");
        other.join().unwrap();

        // Already up: nothing to wait for, and the socket goes on working.
        netlink.wait_oper_up(port.index, Duration::ZERO).unwrap();
        assert_eq!(netlink.link("v0").unwrap().index, port.index);
    });
}

/// The socket's namespace counts, not the thread's.
#[test]
fn waits_in_the_namespace_of_the_socket() {
    in_netns("waits_in_the_namespace_of_the_socket", || {
        let (node, pod) = (other_netns(), other_netns());
        let mut netlink = Netlink::open_in(&node).unwrap();
        let port = port(&mut netlink, &pod);
        let mut inside = Netlink::open_in(&pod).unwrap();
        let other = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            start(&mut inside);
        });
        assert!(netlink.wait_oper_up(port.index, LONG).unwrap().oper_up);
        other.join().unwrap();
    });
}

#[test]
fn gives_up_in_time() {
    in_netns("gives_up_in_time", || {
        let pod = other_netns();
        let mut netlink = Netlink::open().unwrap();
        let port = port(&mut netlink, &pod);
        let err = netlink.wait_oper_up(port.index, Duration::from_millis(200)).unwrap_err();
        assert!(err.is(Errno::ETIMEDOUT), "{err}");
        assert!(err.to_string().starts_with("wait for link v0 to be up: "), "{err}");
        assert_eq!(netlink.link("v0").unwrap().index, port.index);
        let gone = netlink.wait_oper_up(4711, LONG).unwrap_err();
        assert!(gone.is(Errno::ENODEV), "{gone}");
    });
}

/// More notifications than the socket can hold: the state is asked for again.
#[test]
fn survives_a_flood() {
    in_netns("survives_a_flood", || {
        let pod = other_netns();
        let mut netlink = Netlink::open().unwrap();
        let port = port(&mut netlink, &pod);
        let mut flooder = Netlink::open().unwrap();
        let mut inside = Netlink::open_in(&pod).unwrap();
        netlink.socket.shrink_receive_buffer();
        let other = std::thread::spawn(move || {
            // The kernel tells of a new alias only while the link is up.
            let lo = flooder.link("lo").unwrap();
            flooder.execute(set(lo.index, "lo", &up())).unwrap();
            let mut flood = || {
                for number in 0..2000 {
                    let alias = format!("flood {number}");
                    let change = Change { alias: Some(&alias), ..Change::default() };
                    flooder.execute(set(lo.index, "lo", &change)).unwrap();
                }
            };
            flood();
            start(&mut inside);
            flood();
        });
        assert!(netlink.wait_oper_up(port.index, LONG).unwrap().oper_up);
        other.join().unwrap();
        assert_eq!(netlink.link("v0").unwrap().index, port.index);
    });
}

#[test]
fn the_link_goes() {
    in_netns("the_link_goes", || {
        let pod = other_netns();
        let mut netlink = Netlink::open().unwrap();
        let port = port(&mut netlink, &pod);
        let mut other = Netlink::open().unwrap();
        let deleted = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            // Off the bridge first, which is no reason to give up.
            other.execute(set(port.index, "v0", &Change { master: Some(0), ..up() })).unwrap();
            std::thread::sleep(Duration::from_millis(100));
            other.execute(del(port.index, "v0")).unwrap();
        });
        let err = netlink.wait_oper_up(port.index, LONG).unwrap_err();
        assert!(err.is(Errno::ENODEV), "{err}");
        deleted.join().unwrap();
    });
}

#[test]
fn a_signal_ends_the_wait() {
    in_netns("a_signal_ends_the_wait", || {
        use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
        extern "C" fn nothing(_: i32) {}
        let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: the handler does nothing, and nothing else in the tests uses this signal.
        unsafe { sigaction(Signal::SIGUSR2, &action) }.unwrap();
        let pod = other_netns();
        let mut netlink = Netlink::open().unwrap();
        let port = port(&mut netlink, &pod);
        // By number: musl's pthread_t is a pointer, which stays in its thread.
        // SAFETY: they have no conditions.
        let (process, waiting) = unsafe { (libc::getpid(), libc::gettid()) };
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Again and again: the first may come before the wait has begun.
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(50));
                    // SAFETY: the thread is alive: it joins this one.
                    let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, waiting, libc::SIGUSR2) };
                    assert_eq!(sent, 0);
                }
            });
            let outcome = netlink.wait_oper_up(port.index, LONG);
            done.store(true, Ordering::Relaxed);
            let err = outcome.unwrap_err();
            assert!(err.is(Errno::EINTR), "{err}");
        });
    });
}
