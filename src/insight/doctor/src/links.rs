//! Finds links of the host without an owner. [`cnimble_rules::objects`] knows the kinds of links.

use std::collections::BTreeSet;

use cnimble_cni::Error;
use cnimble_leases::lock::{Lock, LockError};
use cnimble_liveness::Verdict;
use cnimble_liveness::node::Node;
use cnimble_netlink::link::{self, Link};
use cnimble_netlink::{IfPresent, Netlink};
use cnimble_rules::objects::{Judge, Orphan, bridge, ifb, pair};
use cnimble_rules::survey;

use super::{Finding, FindingKind, Repair, stale_rules};

/// The removal of a link.
#[derive(Debug, Clone)]
pub(super) struct LinkRemoval {
    found: Box<Link>,
}

impl LinkRemoval {
    /// Deletes the link, unless it has changed since it was found, or is used.
    pub(super) fn run(&self) -> Result<Repair, Error> {
        // The lock keeps an ADD from using the bridge meanwhile.
        let _alone = (self.found.kind == bridge::KIND).then(lock_bridges).transpose()?;
        let mut host = Netlink::open()?;
        let Some(now) = host.link_at(self.found.index).if_present()? else { return Ok(Repair::Gone) };
        let same = |a: &Link, b: &Link| {
            (&a.name, &a.kind, &a.alias, a.peer_netnsid) == (&b.name, &b.kind, &b.alias, b.peer_netnsid)
        };
        if !same(&now, &self.found) || cnimble_rules::objects::is_used(&mut host, &now)? {
            return Ok(Repair::Gone);
        }
        let deleted = host.execute(link::del(now.index, &now.name)).if_present()?;
        Ok(deleted.map_or(Repair::Gone, |_| Repair::Done))
    }
}

/// The evidence about links.
struct OnNode<'a> {
    node: &'a Node,
    /// The names of the Go plugins' ifbs that living containers have.
    ifbs: BTreeSet<String>,
}

impl Judge for OnNode<'_> {
    fn lives(&self, alias: &str) -> bool {
        survey::tag(alias).is_some_and(|tag| self.node.has_tag(tag)) || self.node.is_listed_in(alias)
    }

    fn both_ends_here(&self, link: &Link) -> bool {
        self.node.both_ends_here(link)
    }

    fn has_ifb(&self, name: &str) -> bool {
        self.ifbs.contains(name)
    }

    fn doubt(&self) -> Option<String> {
        match self.node.unless_blind(String::new()) {
            Verdict::Doubt(doubt) => Some(doubt),
            _ => None,
        }
    }
}

/// Returns the findings about the host's links.
pub(super) fn findings(node: &Node) -> Result<Vec<Finding>, Error> {
    let ifbs = node.containers().map(|(network, id)| ifb::name(network, id)).collect();
    let judge = OnNode { node, ifbs };
    let mut findings = Vec::new();
    for link in &node.candidates {
        let kind = match link.kind.as_str() {
            ifb::KIND => FindingKind::Ifb,
            pair::KIND => FindingKind::Veth,
            _ => FindingKind::Shim,
        };
        findings
            .extend(cnimble_rules::objects::orphan(&judge, link)?.map(|orphan| finding(kind, link, orphan)));
    }
    Ok(findings)
}

/// Returns findings about bridges that a killed ADD has left. It waits for the lock of bridges, because without it
/// their ADD may still run.
pub(super) fn unfinished_bridges(node: &Node) -> Result<Vec<Finding>, Error> {
    let mut findings = Vec::new();
    for found in node.candidates.iter().filter(|link| bridge::is_unfinished(link)) {
        let _alone = lock_bridges()?;
        let mut host = Netlink::open()?;
        let now = host.link_at(found.index).if_present()?;
        if let Some(link) = now.filter(|link| link.name == found.name)
            && bridge::is_left_over(&mut host, &link)?
        {
            let why = "its ADD was killed before it was complete, and it has no port";
            findings.push(finding(FindingKind::UnfinishedBridge, &link, Orphan { why, doubt: None }));
        }
    }
    Ok(findings)
}

/// Waits for the lock that ADDs of bridges hold.
pub(super) fn lock_bridges() -> Result<Lock, Error> {
    bridge::open_lock().map_err(LockError::Io).and_then(Lock::wait).map_err(|why| match why {
        LockError::Stopped(err) => err,
        LockError::Io(err) => Error::io("lock", bridge::LOCK.as_ref(), &err),
    })
}

fn finding(kind: FindingKind, link: &Link, orphan: Orphan) -> Finding {
    Finding {
        kind,
        what: format!("link {} ({})", link.name, link.kind),
        subject: stale_rules::names(&link.alias),
        why: orphan.why.to_owned(),
        doubt: orphan.doubt,
        passing: false,
        remedy: "delete it".into(),
        action: super::FindingRepair::Link(LinkRemoval { found: Box::new(link.clone()) }),
    }
}
