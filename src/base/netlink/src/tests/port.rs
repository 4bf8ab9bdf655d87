use nix::errno::Errno;

use super::{bridge, other_netns, plain_veth};
use crate::link::{Change, NewVeth, add_veth};
use crate::port::{Port, Vlan, add_vlans, claim, del_vlans, set};
use crate::testing::{in_netns, json};
use crate::wire::{Attributes, Message, Messages, u32_ne};
use crate::{Netlink, Request, port};

#[test]
fn flags_really_change() {
    in_netns("flags_really_change", || {
        let pod = other_netns();
        let mut netlink = Netlink::open().unwrap();
        let bridge = bridge(&mut netlink, "br0");
        let veth = NewVeth { master: Some(bridge.index), ..plain_veth("v0", "eth0", &pod) };
        let index = netlink.create_link(add_veth(&veth)).unwrap().index;
        for (hairpin, isolated) in [(true, true), (false, true), (true, false), (false, false)] {
            let port = Port { hairpin, isolated, closed: false };
            netlink.execute(set(index, "v0", port)).unwrap();
            assert_eq!(netlink.link_at(index).unwrap().port, Some(port));
            if let Some(shown) = json("flags_really_change", "bridge -j -d link show dev v0") {
                assert_eq!(shown[0]["hairpin"], hairpin);
                assert_eq!(shown[0]["isolated"], isolated);
            }
        }
        let err = netlink.execute(set(bridge.index, "br0", Port::default())).unwrap_err();
        assert!(err.to_string().starts_with("set bridge port br0 hairpin off isolated off: "), "{err}");
        assert_eq!(netlink.link("br0").unwrap().port, None);
    });
}

/// Name, flags and mask come in one message, and a later change of the flags leaves the mask.
#[test]
fn a_port_is_claimed_and_closed_at_once() {
    in_netns("a_port_is_claimed_and_closed_at_once", || {
        let pod = other_netns();
        let mut netlink = Netlink::open().unwrap();
        let bridge = bridge(&mut netlink, "br0");
        let veth = NewVeth { master: Some(bridge.index), ..plain_veth("v0", "eth0", &pod) };
        let index = netlink.create_link(add_veth(&veth)).unwrap().index;
        assert_eq!(netlink.link_at(index).unwrap().port, Some(Port::default()));
        let change = Change { alias: Some("mine"), addrgenmode_none: true, ..Change::default() };
        let port = Port { hairpin: true, isolated: false, closed: true };
        netlink.execute(claim(index, "v0", port, &change)).unwrap();
        let link = netlink.link_at(index).unwrap();
        assert_eq!((link.port, link.alias.as_str(), link.up), (Some(port), "mine", false));
        if let Some(shown) = json("a_port_is_claimed_and_closed_at_once", "ip -j -d link show dev v0") {
            assert_eq!(shown[0]["inet6_addr_gen_mode"], "none", "{shown}");
            assert_eq!(shown[0]["linkinfo"]["info_slave_data"]["group_fwd_mask"], "0xfffd", "{shown}");
        }
        netlink.execute(set(index, "v0", Port { isolated: true, ..port })).unwrap();
        assert_eq!(netlink.link_at(index).unwrap().port, Some(Port { isolated: true, ..port }));
        // What isn't a port can't be closed, and nothing else is changed either.
        let err = netlink.execute(claim(bridge.index, "br0", port, &change)).unwrap_err();
        assert!(err.to_string().starts_with("set link br0 alias mine addrgenmode none: "), "{err}");
        assert_eq!(netlink.link("br0").unwrap().alias, "");
    });
}

/// Only where the kernel has vlan filtering; elsewhere it must refuse, not pretend.
#[test]
fn vlans_on_a_port() {
    in_netns("vlans_on_a_port", || {
        let pod = other_netns();
        let mut netlink = Netlink::open().unwrap();
        let bridge = bridge(&mut netlink, "br0");
        let veth = NewVeth { master: Some(bridge.index), ..plain_veth("v0", "eth0", &pod) };
        let port = netlink.create_link(add_veth(&veth)).unwrap();
        let filtering = crate::link::set_vlan_filtering(bridge.index, "br0", crate::link::VlanFiltering::On);
        if let Err(err) = netlink.execute(filtering) {
            println!("{err}");
            let vlan = Vlan { id: 100, pvid: true, untagged: true };
            let err = netlink.execute(add_vlans(port.index, "v0", vlan, 100)).unwrap_err();
            assert!(err.to_string().starts_with("add vlan 100 to v0: "), "{err}");
            assert_eq!(netlink.vlans(port.index).unwrap(), []);
            eprintln!("SKIP vlans_on_a_port: the kernel has no vlan filtering");
            return;
        }
        assert!(netlink.link("br0").unwrap().vlan_filtering);
        let one = Vlan { id: 1, pvid: true, untagged: true };
        let hundred = Vlan { id: 100, pvid: true, untagged: true };
        let tagged = |id| Vlan { id, pvid: false, untagged: false };
        assert_eq!(netlink.vlans(port.index).unwrap(), [one]);
        netlink
            .execute_all(vec![
                del_vlans(port.index, "v0", 1, 1),
                add_vlans(port.index, "v0", hundred, 100),
                add_vlans(port.index, "v0", tagged(200), 203),
                add_vlans(port.index, "v0", tagged(300), 300),
            ])
            .unwrap();
        let mut expected = vec![hundred];
        expected.extend([200, 201, 202, 203, 300].map(tagged));
        assert_eq!(netlink.vlans(port.index).unwrap(), expected);
        assert_eq!(netlink.vlans_of_all_ports(port.index).unwrap(), expected);
        if let Some(shown) = json("vlans", "bridge -j vlan show dev v0") {
            let mut shown_ids = Vec::new();
            for vlan in shown[0]["vlans"].as_array().unwrap() {
                let first = vlan["vlan"].as_u64().unwrap();
                shown_ids.extend(first..=vlan["vlanEnd"].as_u64().unwrap_or(first));
                let flags = serde_json::json!(["PVID", "Egress Untagged"]);
                assert_eq!(vlan["flags"] == flags, first == 100, "{vlan}");
            }
            assert_eq!(shown_ids, [100, 200, 201, 202, 203, 300]);
        }
        netlink.execute(del_vlans(port.index, "v0", 201, 202)).unwrap();
        let left = [hundred, tagged(200), tagged(203), tagged(300)];
        assert_eq!(netlink.vlans(port.index).unwrap(), left);
        assert_eq!(netlink.vlans(bridge.index).unwrap(), [one]);
        for id in [0, 4095, 5000] {
            let err = netlink.execute(add_vlans(port.index, "v0", tagged(id), id)).unwrap_err();
            assert!(err.reason.contains("Vlan id is invalid") || err.reason.contains("Invalid"), "{err}");
        }
        let lo = netlink.link("lo").unwrap().index;
        assert!(netlink.vlans(lo).unwrap_err().is(Errno::EINVAL));
    });
}

/// The message behind a request: type, `ifi_family`, `ifi_index` and the attributes in
/// IFLA_AF_SPEC.
fn bridge_message(request: &Request) -> (u16, u8, u32, Vec<(u16, Vec<u8>)>) {
    let bytes = request.bytes.as_ref().unwrap();
    let message = Messages::new(bytes).next().unwrap().unwrap();
    let mut specs = Attributes::behind(message.body, 16).map(Result::unwrap);
    let (kind, spec) = specs.next().unwrap();
    assert_eq!((kind, specs.next()), (libc::IFLA_AF_SPEC, None));
    let attributes = Attributes::new(spec).map(Result::unwrap);
    let attributes = attributes.map(|(kind, value)| (kind, value.to_vec())).collect();
    (message.kind, message.body[0], u32_ne(message.body, 4).unwrap(), attributes)
}

/// `struct bridge_vlan_info` as attribute IFLA_BRIDGE_VLAN_INFO.
fn info(flags: u16, id: u16) -> (u16, Vec<u8>) {
    (2, [flags.to_ne_bytes(), id.to_ne_bytes()].concat())
}

const AF_BRIDGE: u8 = libc::AF_BRIDGE as u8;

#[test]
fn vlans_are_written_as_the_kernel_reads_them() {
    let access = Vlan { id: 100, pvid: true, untagged: true };
    let trunk = Vlan { id: 200, pvid: false, untagged: false };
    // BRIDGE_VLAN_INFO_PVID | BRIDGE_VLAN_INFO_UNTAGGED
    let one = bridge_message(&add_vlans(9, "v0", access, 100));
    assert_eq!(one, (libc::RTM_SETLINK, AF_BRIDGE, 9, vec![info(6, 100)]));
    // …_RANGE_BEGIN and …_RANGE_END
    let range = bridge_message(&add_vlans(9, "v0", trunk, 203));
    assert_eq!(range, (libc::RTM_SETLINK, AF_BRIDGE, 9, vec![info(8, 200), info(16, 203)]));
    let deletion = bridge_message(&del_vlans(9, "v0", 1, 1));
    assert_eq!(deletion, (libc::RTM_DELLINK, AF_BRIDGE, 9, vec![info(0, 1)]));
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = u16::try_from(4 + value.len()).unwrap().to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[test]
fn vlans_are_read_from_both_messages() {
    let access = Vlan { id: 1, pvid: true, untagged: true };
    let tagged = |id| Vlan { id, pvid: false, untagged: false };
    let expected = Some(vec![access, tagged(200), tagged(201), tagged(202)]);
    let read = |message: &Message<'_>, index| match message.kind {
        112 => port::read_vlan(message, index),
        _ => port::read_link(message, index),
    };

    let mut of_vlan = vec![7, 0, 0, 0, 9, 0, 0, 0];
    of_vlan.extend(attribute(0x8001, &attribute(1, &info(6, 1).1)));
    let range = [attribute(1, &info(0, 200).1), attribute(2, &202_u16.to_ne_bytes())].concat();
    of_vlan.extend(attribute(0x8001, &range));

    let mut of_link = vec![0; 16];
    (of_link[0], of_link[4]) = (7, 9);
    let infos = [info(6, 1), info(8, 200), info(16, 202)];
    let infos: Vec<u8> = infos.iter().flat_map(|(kind, value)| attribute(*kind, value)).collect();
    of_link.extend(attribute(3, b"v0\0"));
    of_link.extend(attribute(libc::IFLA_AF_SPEC, &infos));

    for (kind, body) in [(112, of_vlan), (16, of_link)] {
        let message = Message { kind, flags: 0, seq: 0, port: 0, body: &body };
        assert_eq!(read(&message, 9).unwrap(), expected, "{kind}");
        assert_eq!(read(&message, 8).unwrap(), None, "{kind}");
    }
}
