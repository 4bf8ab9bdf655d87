//! Packet rules, judged.

use cnimble_rules::survey::{self, Named, Trace};

use super::Verdict;
use super::world::World;

/// What to think of a packet rule.
pub fn judge(world: &World, trace: &Trace) -> Verdict {
    match &trace.named {
        Named::Comment(comment) => match survey::tag(comment) {
            // Another program's element in our table.
            None => Verdict::Lives,
            Some(tag) if world.has_tag(tag) => Verdict::Lives,
            Some(_) => world.by_addresses(&trace.addrs, "its pod is gone".to_owned()),
        },
        Named::Container { id, .. } if world.has_container(id) => Verdict::Lives,
        Named::Container { .. } => world.by_container(&trace.addrs, "its container is gone".to_owned()),
        Named::Link(name) => by_link(world, trace, name),
        // The rules are for the address, whichever pod has it.
        Named::Nothing => {
            let in_use = |ip: &std::net::IpAddr| world.is_held(*ip) || world.place_of(*ip).is_some();
            match trace.addrs.iter().any(in_use) {
                true => Verdict::Lives,
                false => world.unless_blind("nobody has the address".to_owned()),
            }
        }
    }
}

fn by_link(world: &World, trace: &Trace, name: &str) -> Verdict {
    let Some(link) = world.links.iter().find(|link| link.name == name) else {
        let name = if name.is_empty() { "its port" } else { name };
        return Verdict::Orphan(format!("there is no link {name} any more"));
    };
    if trace.is_of_bridge() {
        let has_ports = world.links.iter().any(|port| port.master == Some(link.index));
        return match has_ports {
            true => Verdict::Lives,
            false => Verdict::Orphan(format!("the bridge {name} has no ports")),
        };
    }
    match (trace.comment().and_then(survey::tag), survey::tag(&link.alias)) {
        (Some(tag), Some(owner)) if tag == owner => Verdict::Lives,
        (Some(_), Some(_)) => Verdict::Orphan(format!("{name} belongs to another pod now")),
        (Some(tag), None) if world.has_tag(tag) => Verdict::Lives,
        (Some(_), None) => Verdict::Doubt(format!("there is a link {name}, and nothing tells whose it is")),
        (None, _) => Verdict::Lives,
    }
}
