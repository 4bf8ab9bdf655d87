//! Packet rules whose pods are gone.

use super::world::{Verdict, World};
use super::{Action, Finding, Kind, Whose};
use crate::net::nft::Nft;
use crate::rules::survey::{self, Named, Trace};
use crate::spec::Error;

pub(super) fn findings(world: &World, nft: &mut Nft) -> Result<Vec<Finding>, Error> {
    let mut findings = Vec::new();
    for trace in survey::traces(nft)? {
        let (why, doubt) = match judge(world, &trace) {
            Verdict::Lives => continue,
            Verdict::Orphan(why) => (why, None),
            Verdict::Doubt(doubt) => ("nothing shows that its pod lives".to_owned(), Some(doubt)),
        };
        findings.push(Finding {
            kind: Kind::Rules,
            what: trace.what.clone(),
            whose: whose(&trace),
            why,
            doubt,
            remedy: "remove it, and what nobody uses without it",
            action: Action::Rules(Box::new(trace)),
        });
    }
    Ok(findings)
}

/// Chains and sets that are for nobody.
pub(super) fn idle(nft: &mut Nft) -> Result<Option<Finding>, Error> {
    let idle = survey::idle(nft)?;
    Ok((!idle.is_empty()).then(|| Finding {
        kind: Kind::EmptyRules,
        what: idle.join("; "),
        whose: Whose::default(),
        why: "there is no pod that they are for".to_owned(),
        doubt: None,
        remedy: "remove them; the next pod makes them again",
        action: Action::EmptyRules,
    }))
}

fn judge(world: &World, trace: &Trace) -> Verdict {
    match &trace.named {
        Named::Comment(comment) => match survey::tag(comment) {
            // Somebody else's element in our table.
            None => Verdict::Lives,
            Some(tag) if world.has_tag(tag) => Verdict::Lives,
            Some(_) => world.by_addresses(&trace.addrs, "its pod is gone".to_owned()),
        },
        Named::Container { id, .. } if world.has_container(id) => Verdict::Lives,
        Named::Container { .. } => world.by_container(&trace.addrs, "its container is gone".to_owned()),
        Named::Link(name) => by_link(world, trace, name),
        // Whoever has the address, the rules are for it.
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

fn whose(trace: &Trace) -> Whose {
    match &trace.named {
        Named::Container { network, id } => {
            Whose { network: network.clone(), container_id: Some(id.clone()), ifname: None }
        }
        _ => trace.comment().map(names).unwrap_or_default(),
    }
}

/// The names in a comment or alias, as far as they are there.
pub(super) fn names(comment: &str) -> Whose {
    let value = |key: &str, end: Option<&str>| {
        let (_, rest) = comment.split_once(key)?;
        Some(end.and_then(|end| rest.split_once(end)).map_or(rest, |(value, _)| value).to_owned())
    };
    match survey::tag(comment) {
        None => Whose::default(),
        Some(_) => Whose {
            network: value(", net: ", Some(", if: ")),
            ifname: value(", if: ", Some(", id: ")),
            container_id: value(", id: ", None),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_comments() {
        let tag = "b70a60970e0f5394-b85eb1db7af38d45";
        let whose = names(&format!("{tag}, of: 4, net: cluster, if: eth0, id: web"));
        assert_eq!(whose.network.as_deref(), Some("cluster"));
        assert_eq!((whose.ifname.as_deref(), whose.container_id.as_deref()), (Some("eth0"), Some("web")));
        assert_eq!(names("ingressPolicy: open"), Whose::default());
        assert_eq!(names(tag), Whose::default());
    }
}
