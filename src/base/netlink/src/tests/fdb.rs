use nix::errno::Errno;

use super::{bridge, other_netns, plain_veth};
use crate::Netlink;
use crate::fdb::{Entry, NewEntry, add, replace};
use crate::link::{Mac, NewVeth, add_veth};
use crate::testing::in_netns;

#[test]
fn forwarding_entries_have_one_port() {
    in_netns("forwarding_entries_have_one_port", || {
        let pod = other_netns();
        let mut netlink = Netlink::open().unwrap();
        let bridge = bridge(&mut netlink, "br0");
        let mut port = |name: &str, peer: &str| {
            let veth = NewVeth { master: Some(bridge.index), ..plain_veth(name, peer, &pod) };
            netlink.create_link(add_veth(&veth)).unwrap()
        };
        let (one, two) = (port("v0", "e0"), port("v1", "e1"));
        let mac = Mac::random();
        let at = |port, name, sticky| NewEntry { port, name, mac, vlan: None, sticky };
        assert_eq!(netlink.forwarding_entry(bridge.index, mac, None).unwrap(), None);
        netlink.execute(add(&at(one.index, "v0", true))).unwrap();
        let entry = |port, sticky| Some(Entry { port, sticky, local: false });
        assert_eq!(netlink.forwarding_entry(bridge.index, mac, None).unwrap(), entry(one.index, true));
        let err = netlink.execute(add(&at(two.index, "v1", false))).unwrap_err();
        assert!(err.is(Errno::EEXIST), "{err}");
        assert!(err.to_string().starts_with(&format!("add forwarding entry {mac} of port v1: ")), "{err}");
        netlink.execute(replace(&at(two.index, "v1", false))).unwrap();
        assert_eq!(netlink.forwarding_entry(bridge.index, mac, None).unwrap(), entry(two.index, false));
        // An address of a port is the host's.
        let own = netlink.forwarding_entry(bridge.index, one.mac.unwrap(), None).unwrap();
        assert_eq!(own, Some(Entry { port: one.index, sticky: false, local: true }));
        let err = netlink.forwarding_entry(one.index, mac, None).unwrap_err();
        assert!(err.to_string().starts_with("look up forwarding entry "), "{err}");
        // Entries go with their port.
        netlink.execute(crate::link::del(two.index, "v1")).unwrap();
        assert_eq!(netlink.forwarding_entry(bridge.index, mac, None).unwrap(), None);
    });
}
