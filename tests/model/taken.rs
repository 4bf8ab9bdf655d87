//! The resources that a new attachment cannot have: leases, ports and the gateways' addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::look::{Facts, has_port, has_word, is_rule, leased};
use crate::node::{Att, Key, Node, State};
use crate::plan::{Set, ports};
use crate::site::{id, name};

/// The resources in use, according to the last reading and the verbs since then.
#[derive(Debug, Clone, Default)]
pub(crate) struct Taken {
    /// The leases of this boot, by network.
    pub(crate) leases: BTreeMap<usize, BTreeSet<IpAddr>>,
    /// The leases that may be void, because both sets of plugins worked on them before the pod was removed.
    pub(crate) unclear: BTreeSet<(usize, IpAddr)>,
    /// The port, whether it is for IPv6, the container, and whether this is certain.
    pub(crate) ports: Vec<(u16, bool, u32, bool)>,
    /// The IPv4 address of each network's bridge.
    pub(crate) gateways: BTreeMap<usize, String>,
    /// Whether a concurrent verb that fails may hold something until its end.
    pub(crate) unsure: bool,
}

impl Taken {
    pub(crate) fn of(node: &Node, facts: &Facts) -> Self {
        let mut taken = Taken::default();
        for net in 0..node.nets.len() {
            let void = |content: &str| {
                node.atts.iter().any(|(key, att)| key.0 == net && att.void && has_word(content, &id(key.1)))
            };
            let unclear = |content: &str| {
                let gone = |(key, att): (&Key, &Att)| {
                    key.0 == net
                        && att.state == State::Loose
                        && att.pod.is_none()
                        && has_word(content, &id(key.1))
                };
                node.atts.iter().any(gone)
            };
            let unclear = leased(facts, &name(net)).filter(|(_, content)| unclear(content));
            taken.unclear.extend(unclear.map(|(ip, _)| (net, ip)));
            let held = leased(facts, &name(net)).filter(|(_, content)| !void(content));
            taken.leases.insert(net, held.map(|(ip, _)| ip).collect());
            let bridge = format!("link br{net} ");
            let four = facts.iter().find(|fact| fact.starts_with(&bridge)).and_then(|fact| {
                let addresses = fact.split_once("addresses=")?.1;
                addresses.split('"').find(|text| text.contains('.')).map(str::to_owned)
            });
            taken.gateways.extend(four.map(|four| (net, four)));
        }
        for (key, att) in &node.atts {
            let has_rule = |port: u16| att.has.iter().any(|fact| is_rule(fact) && has_port(fact, port));
            // The ports of the earlier attachment.
            let inherited = ports().filter(|port| att.inherits && Some(*port) != att.port && has_rule(*port));
            taken.ports.extend(inherited.flat_map(|port| [false, true].map(|six| (port, six, key.1, false))));
            let Some(port) = att.port else { continue };
            let sure = att.state == State::Living && !att.flushed && att.by == Set::Ours;
            if att.state == State::Loose || has_rule(port) {
                let six = att.ips.iter().map(IpAddr::is_ipv6).collect::<BTreeSet<_>>();
                let six = if att.ips.is_empty() { BTreeSet::from([false, true]) } else { six };
                taken.ports.extend(six.into_iter().map(|six| (port, six, key.1, sure)));
            }
        }
        taken
    }
}
