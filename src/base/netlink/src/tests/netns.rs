use std::path::Path;

use nix::errno::Errno;

use super::{bridge, other_netns};
use crate::testing::in_netns;
use crate::{NetNs, Netlink};

#[test]
fn enters_and_returns() {
    in_netns("enters_and_returns", || {
        let (here, there) = (NetNs::current().unwrap(), other_netns());
        assert!(here.same_as(&NetNs::current().unwrap()).unwrap());
        assert!(!here.same_as(&there).unwrap());
        let inside = there.enter(|| NetNs::current().unwrap()).unwrap();
        assert!(inside.same_as(&there).unwrap());
        assert!(here.same_as(&NetNs::current().unwrap()).unwrap());

        // After a panic as well.
        let there = std::panic::AssertUnwindSafe(there);
        let panic =
            std::panic::catch_unwind(|| there.enter(|| std::panic::resume_unwind(Box::new("quietly"))));
        assert!(panic.is_err());
        assert!(here.same_as(&NetNs::current().unwrap()).unwrap());
    });
}

#[test]
fn sockets_stay_where_they_were_opened() {
    in_netns("sockets_stay_where_they_were_opened", || {
        let pod = other_netns();
        let mut inside = Netlink::open_in(&pod).unwrap();
        bridge(&mut inside, "br0");
        assert!(Netlink::open().unwrap().find_link("br0").unwrap().is_none());
        assert!(Netlink::open_in(&pod).unwrap().find_link("br0").unwrap().is_some());
    });
}

#[test]
fn opens_namespaces_only() {
    in_netns("opens_namespaces_only", || {
        let own = NetNs::open(Path::new("/proc/thread-self/ns/net")).unwrap();
        assert!(own.same_as(&NetNs::current().unwrap()).unwrap());

        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("no-netns");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for path in [
            fifo.to_str().unwrap(),
            "/",
            "/proc/self/status",
            "/dev/null",
            "/proc/self/ns/mnt",
            "/proc/self/ns/pid",
        ] {
            let err = NetNs::open(Path::new(path)).unwrap_err();
            assert!(err.is(Errno::EINVAL), "{path}: {err}");
            assert!(err.to_string().starts_with(&format!("open network namespace {path}: ")), "{err}");
        }

        for (path, errno) in [
            ("/run/netns/surely-not-there", Errno::ENOENT),
            ("/proc/4194305/ns/net", Errno::ENOENT),
            ("/dev/null/x", Errno::ENOTDIR),
            ("", Errno::ENOENT),
        ] {
            let err = NetNs::open(Path::new(path)).unwrap_err();
            assert!(err.is(errno), "{path}: {err}");
            // Runtimes take these words, in lower case, for success.
            assert!(!err.to_string().contains("no such file or directory"), "{err}");
        }
    });
}

#[test]
fn nothing_is_inherited_by_children() {
    in_netns("nothing_is_inherited_by_children", || {
        use std::os::fd::{AsFd, AsRawFd};
        let flags = |fd: std::os::fd::BorrowedFd<'_>| {
            let link = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
            let text = std::fs::read_to_string(link).unwrap();
            let flags = text.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
            i32::from_str_radix(flags.trim(), 8).unwrap()
        };
        for ns in [NetNs::current().unwrap(), NetNs::open(Path::new("/proc/thread-self/ns/net")).unwrap()] {
            assert_ne!(flags(ns.as_fd()) & libc::O_CLOEXEC, 0);
        }
    });
}
