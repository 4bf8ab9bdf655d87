use std::collections::BTreeMap;

use super::{other_netns, veth};
use crate::Netlink;
use crate::details::{Altnames, altnames, set};
use crate::testing::in_netns;
use crate::uapi::if_link::{
    IFF_ALLMULTI, IFF_MULTICAST, IFF_NOARP, IFF_PROMISC, IFLA_GSO_MAX_SEGS, IFLA_GSO_MAX_SIZE, IFLA_LINKMODE,
};

#[test]
fn flags_and_limits_are_set_and_set_back() {
    in_netns("details", || {
        let (pod, mut here) = (other_netns(), Netlink::open().unwrap());
        let link = veth(&mut here, "v0", "p0", &pod);
        let before = here.details(link.index).unwrap();
        assert!(!before.loopback && here.details(1).unwrap().loopback);
        assert_eq!((before.flags, before.permanent.len()), (IFF_MULTICAST, 0));
        assert_eq!(set(link.index, "v0", &before, before.flags, &before.values).map(|_| ()), None);
        let mut values = before.values.clone();
        let u32 = |value: u32| value.to_ne_bytes().to_vec();
        values.extend([
            (libc::IFLA_TXQLEN, u32(7)),
            (libc::IFLA_GROUP, u32(5)),
            (libc::IFLA_BROADCAST, vec![2, 0, 0, 0, 0, 1]),
            (IFLA_LINKMODE, vec![1]),
            (IFLA_GSO_MAX_SIZE, u32(3000)),
            (IFLA_GSO_MAX_SEGS, u32(5)),
        ]);
        let flags = IFF_PROMISC | IFF_ALLMULTI | IFF_NOARP;
        here.execute(set(link.index, "v0", &before, flags, &values).unwrap()).unwrap();
        let changed = here.details(link.index).unwrap();
        let missing: BTreeMap<_, _> =
            values.iter().filter(|(kind, value)| changed.values.get(*kind) != Some(*value)).collect();
        // The limit of IPv4 follows that of GSO.
        assert!(missing.len() <= 1 && changed.flags == flags, "{missing:?} {:x}", changed.flags);
        for _ in 0..2 {
            let now = here.details(link.index).unwrap();
            if let Some(request) = set(link.index, "v0", &now, before.flags, &before.values) {
                here.execute(request).unwrap();
            }
        }
        assert_eq!(here.details(link.index).unwrap(), before);
        // Up or down is nothing of these.
        assert_eq!(here.link("v0").unwrap(), link);
    });
}

#[test]
fn alternative_names_come_and_go() {
    in_netns("altnames", || {
        let (pod, mut here) = (other_netns(), Netlink::open().unwrap());
        let link = veth(&mut here, "v0", "p0", &pod);
        let names = ["enp0s3".to_owned(), "a-name-of-more-than-fifteen-bytes".to_owned()];
        here.execute(altnames(link.index, "v0", Altnames::Add, &names)).unwrap();
        assert_eq!(here.details(link.index).unwrap().altnames, names);
        assert_eq!(here.find_link("enp0s3").unwrap().map(|found| found.index), Some(link.index));
        here.execute(altnames(link.index, "v0", Altnames::Remove, &names)).unwrap();
        assert!(here.details(link.index).unwrap().altnames.is_empty());
    });
}
