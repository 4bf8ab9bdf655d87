//! Reads port mappings from nf_tables maps, and writes them as iptables rules in the form of the Go plugin.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use cnimble_cni::{Error, Owner};
use cnimble_netlink::nft::{Family, Key, Nft, Table};

use super::iptables::{self, GUARD, SharedChains};
use super::nftables::{hairpin_network, has_ports, is_all};
use super::{Forward, Mapping, Protocol, localnet};
use crate::command;
use crate::elements::Placed;
use crate::go_chains::DNAT;
use crate::xtables::{FAMILIES, Variant, deletion, jumps_to};

/// Returns the mappings in an attachment's elements, one [`Forward`] for each address of the pod. Conditions are lost;
/// see [`has_conditions`]. Without an element for hairpin, the address gets the prefix length of a single host.
pub(crate) fn read(elements: &[&Placed], mark_bit: u8) -> Vec<Forward> {
    let mut pods: BTreeMap<IpAddr, Vec<Mapping>> = BTreeMap::new();
    for placed in elements.iter().filter(|placed| has_ports(&placed.set)) {
        let Some((ip, container_port)) = placed.element.data.as_ref().and_then(Key::as_service) else {
            continue;
        };
        let Some((host_ip, protocol, host_port)) = placed.element.key.as_port() else { continue };
        let Some(protocol) = Protocol::numbered(protocol) else { continue };
        pods.entry(ip).or_default().push(Mapping { protocol, host_ip, host_port, container_port });
    }
    pods.into_iter().filter_map(|(ip, mappings)| forward_of(ip, mappings, elements, mark_bit)).collect()
}

/// Returns the mappings to one address of a pod, with what `elements` tell of the address. Returns `None` if the prefix
/// length of an element does not fit the address.
fn forward_of(ip: IpAddr, mut mappings: Vec<Mapping>, elements: &[&Placed], mark_bit: u8) -> Option<Forward> {
    // A mapping of one address of the host comes first, as in the rules over the maps.
    mappings.sort_by_key(|mapping| (mapping.host_ip.is_none(), mapping.protocol, mapping.host_port));
    let mut at_ip =
        elements.iter().filter(|placed| placed.element.key.as_ip() == Some(ip) && !has_ports(&placed.set));
    let masq_all = at_ip.clone().any(|placed| is_all(&placed.set));
    let network = at_ip.find_map(|placed| hairpin_network(&placed.set));
    let prefix = network.map_or(if ip.is_ipv4() { 32 } else { 128 }, |network| network.prefix());
    Some(Forward {
        mappings,
        addrs: vec![IpNetwork::new(ip, prefix).ok()?],
        snat: masq_all || network.is_some(),
        masq_all,
        mark_bit,
        external_mark_chain: None,
        conditions_v4: Vec::new(),
        conditions_v6: Vec::new(),
    })
}

/// Returns whether a mapping has conditions. They are in the language of the `nft` command, so iptables can't take
/// them.
pub(crate) fn has_conditions(placed: &Placed) -> bool {
    super::nftables::is_conditional(&placed.set)
}

/// Returns the lines for `iptables-restore` that write the pods' mappings into the table `nat` of a family. `saved` are
/// the present rules of the table. A container's chain and the jumps to it are written anew, so that no rule is there
/// twice.
pub(crate) fn lines(
    nft: &mut Nft,
    family: Family,
    pods: &[(&Owner, Vec<Forward>)],
    saved: &[String],
) -> Result<Vec<String>, Error> {
    let targets = pods.iter().flat_map(|(owner, forwards)| {
        forwards.iter().flat_map(move |forward| {
            let of_family = forward.addrs.iter().filter(move |pod| pod.is_ipv4() == (family == Family::Ipv4));
            of_family.map(move |pod| (*owner, forward, pod))
        })
    });
    let targets: Vec<(&Owner, &Forward, &IpNetwork)> = targets.collect();
    let mut lines = Vec::new();
    if targets.is_empty() {
        return Ok(lines);
    }
    let marks = targets.iter().find(|(_, forward, _)| forward.snat);
    iptables::shared(
        &mut lines,
        marks.map(|(_, forward, _)| forward.mark_bit),
        &SharedChains::read(nft, family, Variant::Usual)?,
    );
    // A container has one chain for all of its interfaces in the network.
    for chain in targets.iter().map(|(owner, ..)| DNAT.name_of(owner)).collect::<BTreeSet<_>>() {
        let jumps = saved.iter().filter(|rule| jumps_to(rule, DNAT.parent, &chain));
        lines.extend(jumps.map(|rule| deletion(rule)));
        lines.push(format!(":{chain} - [0:0]"));
    }
    for (owner, forward, pod) in targets {
        iptables::container(&mut lines, owner, forward, pod);
    }
    Ok(lines)
}

/// Leaves `route_localnet` on towards pods that localhost reaches, as the Go plugin does. No later DEL switches it off.
pub(crate) fn open_for_good(forwards: &[Forward]) -> Result<(), Error> {
    forwards.iter().filter_map(Forward::localhost).try_for_each(localnet::open_for_good)
}

/// Removes the chain that keeps others from 127.0.0.0/8, with the jumps to it. The Go plugin has no such guard.
pub(crate) fn remove_guard(nft: &mut Nft) -> Result<(), Error> {
    for family in FAMILIES {
        let mangle = Table::new(family, "mangle");
        if !nft.has_chain(mangle.chain(GUARD))? {
            continue;
        }
        let jumps = nft.rules(mangle, Some("PREROUTING"))?;
        let jumps = jumps.iter().filter(|rule| rule.target().as_deref() == Some(GUARD)).count();
        let mut lines = vec![format!("-D PREROUTING -j {GUARD}"); jumps];
        lines.extend([format!("-F {GUARD}"), format!("-X {GUARD}")]);
        command::restore(family, "mangle", &lines)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use cnimble_netlink::nft::Element;

    use super::*;

    fn placed(set: &str, key: Key, data: Option<Key>) -> Placed {
        let element = match data {
            Some(data) => Element::mapped(key, data, ""),
            None => Element::new(key, ""),
        };
        Placed { set: set.to_owned(), element }
    }

    #[test]
    fn mappings_are_read_back_from_the_maps() {
        let (v4, v6): (IpAddr, IpAddr) = ("10.1.0.4".parse().unwrap(), "fd00::4".parse().unwrap());
        let host: IpAddr = "192.0.2.1".parse().unwrap();
        let elements = [
            placed("portmap4", Key::port(6, 8080), Some(Key::ip(v4).and_service(80))),
            placed("portmap6", Key::port(6, 8080), Some(Key::ip(v6).and_service(80))),
            placed("portmap-addr4", Key::ip(host).and_port(17, 53), Some(Key::ip(v4).and_service(5353))),
            placed("portmap-hairpin-10.1.0.0/16-b70a60970e0f5394", Key::ip(v4), None),
            placed("portmap-local4", Key::ip(v4), None),
        ];
        let read = read(&elements.iter().collect::<Vec<_>>(), 13);
        let [four, six] = read.as_slice() else { panic!("{read:?}") };
        assert_eq!(four.addrs, ["10.1.0.4/16".parse().unwrap()]);
        let shown: Vec<String> = four.mappings.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["192.0.2.1:53/udp", "8080/tcp"]);
        assert!(four.snat && !four.masq_all && four.localhost() == Some(v4));
        assert_eq!(
            four.mappings.iter().map(|mapping| mapping.container_port).collect::<Vec<_>>(),
            [5353, 80]
        );
        assert!(!six.snat && six.localhost().is_none());
    }
}
