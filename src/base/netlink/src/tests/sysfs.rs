use std::os::fd::AsFd;

use super::{other_netns, veth};
use crate::Netlink;
use crate::link::{Change, del, set};
use crate::sysfs::Sysfs;
use crate::testing::in_netns;

#[test]
fn a_link_keeps_its_inode_under_another_name_and_in_another_namespace_and_no_other_gets_it() {
    in_netns("inode", || {
        let (pod, peers, mut here) = (other_netns(), other_netns(), Netlink::open().unwrap());
        let sysfs = Sysfs::mount().unwrap();
        let link = veth(&mut here, "v0", "p0", &peers);
        let first = sysfs.device("v0").unwrap().unwrap();
        assert_eq!((first.index, first.bus.as_str()), (link.index, "virtual"));
        let change = Change { netns: Some(pod.as_fd()), name: Some("eth0"), ..Change::default() };
        here.execute(set(link.index, "v0", &change)).unwrap();
        assert_eq!(sysfs.device("v0").unwrap(), None);
        let there = pod.enter(Sysfs::mount).unwrap().unwrap();
        assert_eq!(there.device("eth0").unwrap().map(|device| device.inode), Some(first.inode));
        assert_eq!(there.device("../net/eth0").unwrap(), None);
        let mut inside = Netlink::open_in(&pod).unwrap();
        let moved = inside.link("eth0").unwrap();
        inside.execute(del(moved.index, "eth0")).unwrap();
        // The same name and index, and a peer of the same name.
        veth(&mut here, "v0", "p0", &peers);
        assert_ne!(sysfs.device("v0").unwrap().unwrap().inode, first.inode);
    });
}
