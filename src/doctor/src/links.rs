//! The host's ends of veth pairs, and the devices of the plugin bandwidth.

use std::collections::BTreeSet;

use cnimble_cni::Error;
use cnimble_cni::hash::{ifb_name, is_ifb_name};
use cnimble_life::Verdict;
use cnimble_life::world::World;
use cnimble_netlink::Netlink;
use cnimble_netlink::link::{self, Filter, Link};
use cnimble_rules::survey;

use super::{Finding, Kind, rules};

/// Deletes a link.
#[derive(Debug, Clone)]
pub(super) struct Action {
    found: Box<Link>,
}

impl Action {
    pub(super) fn run(&self) -> Result<(), Error> {
        let mut host = Netlink::open()?;
        let now = match host.link_at(self.found.index) {
            Err(err) if err.is_missing() => return Ok(()),
            now => now?,
        };
        let same =
            |a: &Link, b: &Link| (&a.name, &a.kind, &a.alias, a.far) == (&b.name, &b.kind, &b.alias, b.far);
        if !same(&now, &self.found) || now.kind == "ifb" && is_used(&mut host, now.index)? {
            return Ok(());
        }
        match host.execute(link::del(now.index, &now.name)) {
            Err(err) if !err.is_missing() => Err(err.into()),
            _ => Ok(()),
        }
    }
}

pub(super) fn findings(world: &World) -> Result<Vec<Finding>, Error> {
    let mut findings = Vec::new();
    for link in world.candidates.iter().filter(|link| world.both_ends_here(link)) {
        let Some(tag) = survey::tag(&link.alias) else { continue };
        let doubt = world.has_tag(tag).then(|| "its pod lives".to_owned());
        let why = "its other end is on the host, too, and not in a pod".to_owned();
        findings.push(finding(Kind::Veth, link, why, doubt));
    }
    let names: BTreeSet<String> = world.containers().map(|(network, id)| ifb_name(network, id)).collect();
    for link in world.candidates.iter().filter(|link| link.kind == "ifb") {
        if let Some(finding) = ifb(world, &names, link)? {
            findings.push(finding);
        }
    }
    Ok(findings)
}

/// Ours by its alias; the Go plugin's by its name, unless some link leads there.
fn ifb(world: &World, names: &BTreeSet<String>, link: &Link) -> Result<Option<Finding>, Error> {
    let why = match survey::tag(&link.alias) {
        Some(tag) if world.has_tag(tag) => return Ok(None),
        Some(_) => "it limited a pod that is gone".to_owned(),
        None if !is_ifb_name(&link.name) || !link.alias.is_empty() || names.contains(&link.name) => {
            return Ok(None);
        }
        None => "it has a name as the plugin bandwidth makes it, and no link leads to it".to_owned(),
    };
    let used = is_used(&mut Netlink::open()?, link.index)?;
    if used && link.alias.is_empty() {
        return Ok(None);
    }
    let doubt = match world.unless_blind(String::new()) {
        _ if used => Some("a link of the host still leads to it".to_owned()),
        Verdict::Doubt(doubt) => Some(doubt),
        _ => None,
    };
    Ok(Some(finding(Kind::Ifb, link, why, doubt)))
}

/// Whether something that a link of the host receives is sent to it.
fn is_used(host: &mut Netlink, index: u32) -> Result<bool, Error> {
    for link in host.links(&Filter::default())? {
        if host.redirects(link.index)?.contains(&index) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn finding(kind: Kind, link: &Link, why: String, doubt: Option<String>) -> Finding {
    Finding {
        kind,
        what: format!("link {} ({})", link.name, link.kind),
        whose: rules::names(&link.alias),
        why,
        doubt,
        remedy: "delete it",
        action: super::Action::Link(Action { found: Box::new(link.clone()) }),
    }
}
