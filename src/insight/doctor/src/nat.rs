//! Finds NAT rules of other programs that may decide about packets of living pods. They are notes and no warnings. With
//! the Go plugins such rules come first, too, and their authors may want that.

use std::collections::BTreeSet;

use cnimble_cni::Error;
use cnimble_liveness::Verdict;
use cnimble_liveness::cache_entries::published_ports;
use cnimble_liveness::node::Node;
use cnimble_netlink::nft::Nft;
use cnimble_rules::nat::{self, Decision, Tables, Traffic};
use cnimble_rules::objects::configured;
use cnimble_runtime::Entry;

/// A rule, and the networks with pods whose packets may meet it.
struct ContestingRule {
    decision: Decision,
    traffic: Traffic,
    networks: BTreeSet<String>,
}

/// Returns a text for each such rule. A text about each pod whose rules can't be read goes to `unchecked`.
pub(super) fn notes(node: &Node, unchecked: &mut Vec<String>) -> Vec<String> {
    let (mut nft, mut tables, mut found) = (Nft::new(), Tables::default(), Vec::new());
    for known in node.entries.iter().filter(|known| known.verdict == Verdict::Lives) {
        if let Err(err) = add_deciding_rules(&mut nft, &mut tables, &known.entry, &mut found) {
            unchecked.push(format!("rules for NAT that {} may meet: {err}", known.entry.container_id));
        }
    }
    found.iter().map(text).collect()
}

/// Adds the rules that decide about the packets of one attachment.
fn add_deciding_rules(
    nft: &mut Nft,
    tables: &mut Tables,
    entry: &Entry,
    found: &mut Vec<ContestingRule>,
) -> Result<(), Error> {
    let (list, result) = (entry.network_list()?, entry.cni_result()?.unwrap_or_default());
    let addrs: Vec<_> = result.ips.iter().map(|ip| ip.address).collect();
    for traffic in configured::translated(&list, &addrs, &published_ports(entry)) {
        let Some(decision) = nat::deciding(nft, tables, &traffic)? else { continue };
        let is_same = |of: &&mut ContestingRule| {
            of.decision == decision && is_leaving(&of.traffic) == is_leaving(&traffic)
        };
        match found.iter_mut().find(is_same) {
            Some(known) => drop(known.networks.insert(entry.network.clone())),
            None => {
                found.push(ContestingRule {
                    decision,
                    traffic,
                    networks: BTreeSet::from([entry.network.clone()]),
                });
            }
        }
    }
    Ok(())
}

/// Returns whether it is the traffic that pods send, and not that to published ports.
fn is_leaving(traffic: &Traffic) -> bool {
    matches!(traffic, Traffic::Leaving { .. })
}

fn text(found: &ContestingRule) -> String {
    let networks = found.networks.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let packets = if is_leaving(&found.traffic) {
        format!("what pods of {networks} send")
    } else {
        format!("what comes for published ports of {networks}")
    };
    let consequence = found.decision.consequence(&found.traffic, &packets);
    format!("{consequence}: change that if you do not want it (try {})", found.decision.command())
}
