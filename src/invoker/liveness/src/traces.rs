//! Verdicts about packet rules.

use cnimble_rules::survey::{self, Named, Trace};

use super::Verdict;
use super::node::Node;

pub fn judge(node: &Node, trace: &Trace) -> Verdict {
    match &trace.named {
        Named::Comment(comment) => match survey::tag(comment) {
            // Another program's element in our table.
            None => Verdict::Lives,
            Some(tag) if node.has_tag(tag) || node.is_listed_in(comment) => Verdict::Lives,
            Some(_) => node.by_addresses(&trace.addrs, "its pod is gone".to_owned()),
        },
        Named::Container { id, .. } if node.has_container(id) || node.is_listed(id, true) => Verdict::Lives,
        Named::Container { .. } => node.by_container(&trace.addrs, "its container is gone".to_owned()),
        Named::Link(name) => by_link(node, trace, name),
        // The rules are for the address, of any pod.
        Named::Nothing => {
            let in_use = |ip: &std::net::IpAddr| node.is_held(*ip) || node.place_of(*ip).is_some();
            match trace.addrs.iter().any(in_use) {
                true => Verdict::Lives,
                false => node.unless_blind("no pod has the address".to_owned()),
            }
        }
    }
}

fn by_link(node: &Node, trace: &Trace, name: &str) -> Verdict {
    let Some(link) = node.links.iter().find(|link| link.name == name) else {
        if trace.comment().is_some_and(|comment| node.is_listed_in(comment)) {
            return Verdict::Lives;
        }
        let name = if name.is_empty() { "its port" } else { name };
        return Verdict::Orphan(format!("there is no link {name} any more"));
    };
    if trace.is_of_bridge() {
        let has_ports = node.links.iter().any(|port| port.master == Some(link.index));
        return match has_ports {
            true => Verdict::Lives,
            false => Verdict::Orphan(format!("the bridge {name} has no ports")),
        };
    }
    match (trace.comment().and_then(survey::tag), survey::tag(&link.alias)) {
        (Some(tag), Some(owner)) if tag == owner => Verdict::Lives,
        (Some(_), Some(_)) => Verdict::Orphan(format!("{name} belongs to another pod now")),
        (Some(tag), None) if node.has_tag(tag) => Verdict::Lives,
        (Some(_), None) => Verdict::Doubt(format!("there is a link {name}, and nothing tells whose it is")),
        (None, _) => Verdict::Lives,
    }
}
