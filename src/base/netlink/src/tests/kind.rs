use crate::Netlink;
use crate::kind::{Kind, NewLink, add};
use crate::testing::in_netns;

#[test]
fn a_link_is_born_up_and_in_its_group() {
    in_netns("a_link_is_born_up_and_in_its_group", || {
        let mut netlink = Netlink::open().unwrap();
        for (name, group, up) in [("ifb0", None, false), ("ifb1", Some(1 << 30), true)] {
            let new = NewLink { group, up, ..NewLink::new(name, Kind::Ifb) };
            let made = netlink.create_link(add(&new)).unwrap();
            for link in [made, netlink.link(name).unwrap()] {
                assert_eq!((link.group, link.up), (group.unwrap_or_default(), up));
            }
        }
    });
}
