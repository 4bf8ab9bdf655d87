use super::{bridge, other_netns, plain_veth};
use crate::net::Netlink;
use crate::net::link::{NewVeth, add_veth};
use crate::net::port::{Port, Vlan, add_vlans, del_vlans, set};
use crate::net::testing::{in_netns, json};

#[test]
fn flags_really_change() {
    in_netns("flags_really_change", || {
        let pod = other_netns();
        let mut netlink = Netlink::open().unwrap();
        let bridge = bridge(&mut netlink, "br0");
        let veth = NewVeth { master: Some(bridge.index), ..plain_veth("v0", "eth0", &pod) };
        let index = netlink.create_link(add_veth(&veth)).unwrap().index;
        for (hairpin, isolated) in [(true, true), (false, true), (true, false), (false, false)] {
            let port = Port { hairpin, isolated };
            netlink.execute(set(index, "v0", port)).unwrap();
            assert_eq!(netlink.link_at(index).unwrap().port, Some(port));
            if let Some(shown) = json("flags_really_change", "bridge -j -d link show dev v0") {
                assert_eq!(shown[0]["hairpin"], hairpin);
                assert_eq!(shown[0]["isolated"], isolated);
            }
        }
        let err = netlink.execute(set(bridge.index, "br0", Port::default())).unwrap_err();
        assert!(err.to_string().starts_with("set hairpin off, isolated off of bridge port br0: "), "{err}");
        assert_eq!(netlink.link("br0").unwrap().port, None);
    });
}

/// Only where the kernel has vlan filtering; elsewhere it must refuse, not pretend.
#[test]
fn vlans_on_port_and_bridge() {
    in_netns("vlans_on_port_and_bridge", || {
        let pod = other_netns();
        let mut netlink = Netlink::open().unwrap();
        let bridge = bridge(&mut netlink, "br0");
        let veth = NewVeth { master: Some(bridge.index), ..plain_veth("v0", "eth0", &pod) };
        let port = netlink.create_link(add_veth(&veth)).unwrap();
        let filtering = crate::net::link::set_vlan_filtering(bridge.index, "br0", true);
        if let Err(err) = netlink.execute(filtering) {
            println!("{err}");
            let vlan = Vlan { id: 100, pvid: true, untagged: true };
            let err = netlink.execute(add_vlans(port.index, "v0", vlan, 100, false)).unwrap_err();
            assert!(err.to_string().starts_with("add vlan 100 to v0: "), "{err}");
            assert_eq!(netlink.vlans(port.index).unwrap(), []);
            eprintln!("SKIP vlans_on_port_and_bridge: the kernel has no vlan filtering");
            return;
        }
        assert!(netlink.link("br0").unwrap().vlan_filtering);
        let one = Vlan { id: 1, pvid: true, untagged: true };
        let hundred = Vlan { id: 100, pvid: true, untagged: true };
        let tagged = |id| Vlan { id, pvid: false, untagged: false };
        assert_eq!(netlink.vlans(port.index).unwrap(), [one]);
        netlink
            .execute_all(vec![
                del_vlans(port.index, "v0", 1, 1, false),
                add_vlans(port.index, "v0", hundred, 100, false),
                add_vlans(port.index, "v0", tagged(200), 203, false),
                add_vlans(port.index, "v0", tagged(300), 300, false),
                add_vlans(bridge.index, "br0", tagged(100), 100, true),
            ])
            .unwrap();
        let mut expected = vec![hundred];
        expected.extend([200, 201, 202, 203, 300].map(tagged));
        assert_eq!(netlink.vlans(port.index).unwrap(), expected);
        assert_eq!(netlink.vlans_of_all_ports(port.index).unwrap(), expected);
        assert_eq!(netlink.vlans(bridge.index).unwrap(), [one, tagged(100)]);
        if let Some(shown) = json("vlans", "bridge -j vlan show dev v0") {
            let vlans = shown[0]["vlans"].as_array().unwrap();
            assert_eq!(vlans.len(), 3, "{vlans:?}");
            assert_eq!(vlans[0], serde_json::json!({"vlan": 100, "flags": ["PVID", "Egress Untagged"]}));
            assert_eq!(vlans[1], serde_json::json!({"vlan": 200, "vlanEnd": 203}));
            assert_eq!(vlans[2], serde_json::json!({"vlan": 300}));
        }
        netlink.execute(del_vlans(port.index, "v0", 201, 202, false)).unwrap();
        netlink.execute(del_vlans(bridge.index, "br0", 100, 100, true)).unwrap();
        let left = [hundred, tagged(200), tagged(203), tagged(300)];
        assert_eq!(netlink.vlans(port.index).unwrap(), left);
        assert_eq!(netlink.vlans(bridge.index).unwrap(), [one]);
        for id in [0, 4095, 5000] {
            let err = netlink.execute(add_vlans(port.index, "v0", tagged(id), id, false)).unwrap_err();
            assert!(err.reason.contains("Vlan id is invalid") || err.reason.contains("Invalid"), "{err}");
        }
        let lo = netlink.link("lo").unwrap().index;
        assert_eq!(netlink.vlans(lo).unwrap(), []);
    });
}
