//! Traffic that the host forwards to and from pods (the plugin `firewall`). Every backend accepts traffic from pods and
//! answers to it, puts the administrator's rules first, and separates bridges by their [`Policy`].
//!
//! An accept of **nf_tables**, in our own table, ends only our own chain: another chain can still drop the packet.
//! **iptables** uses the Go plugin's chains *in* `FORWARD`, before foreign rules. **firewalld** drops all traffic that
//! it does not know. Without a configured backend a running firewalld is used, else iptables if `FORWARD` has foreign
//! rules (`others`), else nf_tables.
//!
//! Policies in nf_tables and in iptables must exclude each other, so each place that has any gets a new one. Each ADD
//! writes its own first and then looks at the other place, so at least one of two concurrent ADDs sees the other.

pub(super) mod direct;
pub(super) mod firewalld;
pub(super) mod hand_over;
pub(super) mod iptables;
mod isolation;
pub(super) mod nftables;
mod others;
pub mod published;
pub(super) mod table;
mod verify;
mod walk;

pub use verify::{check, status};

use std::fmt;
use std::net::IpAddr;

use serde::Serialize;

use cnimble_cni::{Attachment, Code, Error, Owner};
use cnimble_netlink::nft::{Family, Nft};

use super::backend as rules;
use super::elements::Layout;
use super::failures::{Failures, has_nf_tables};
pub use super::undo::Applied;
use super::undo::undone;
use super::{command, xtables};
use nftables::{Forwarding, When};
use others::Found;
use walk::{Pods, Way};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    Nftables,
    Iptables,
    /// firewalld by D-Bus. Policies of bridges are in our own table.
    Firewalld,
}

/// The pods that may open connections to a pod (`ingressPolicy`). The latest ADD decides for all pods of a bridge. A
/// vlan's gateway counts as a bridge, and so does the host's end of a pod without one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    #[default]
    Open,
    /// Those on the same bridge, and those on bridges with the policy `open`.
    SameBridge,
    /// As `SameBridge`, without those on the same bridge.
    Isolated,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Admin {
    /// `CNI-ADMIN`, if iptables is used.
    #[default]
    Default,
    /// The chain in the configuration, which needs iptables.
    Named(String),
}

impl Admin {
    fn chain(&self) -> &str {
        match self {
            Admin::Default => table::ADMIN,
            Admin::Named(chain) => chain,
        }
    }

    fn needs_iptables(&self) -> bool {
        matches!(self, Admin::Named(_))
    }
}

#[derive(Debug, Clone, Default)]
pub struct Forward {
    pub addrs: Vec<IpAddr>,
    pub policy: Policy,
    /// The interfaces by which the host receives its packets: bridge and vlan gateway, or the host's end. Policies need
    /// one.
    pub interfaces: Vec<String>,
    pub admin: Admin,
    pub zone: String,
    /// Accepts only what was translated to the pod. The comment of the rules, which names their owner.
    pub published: Option<String>,
}

impl Forward {
    fn rules(&self, ip: IpAddr) -> [String; 2] {
        match &self.published {
            Some(comment) => table::published_rules(ip, comment),
            None => table::pod_rules(ip),
        }
    }

    fn policed(&self) -> &[String] {
        if self.policy == Policy::Open { &[] } else { &self.interfaces }
    }

    fn of_family(&self, family: Family) -> impl Iterator<Item = IpAddr> {
        self.addrs.iter().copied().filter(move |ip| ip.is_ipv4() == (family == Family::Ipv4))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chosen {
    pub backend: Backend,
    has_iptables: bool,
}

/// The configured backend, or else the one that works for this host (see the module). Fails if iptables is missing.
pub fn choose(configured: Option<Backend>, admin: &Admin, nft: &mut Nft) -> Result<Chosen, Error> {
    let chosen = |backend| Ok(Chosen { backend, has_iptables: true });
    if let Some(backend) = configured {
        return chosen(backend);
    }
    if !nft.is_supported()? {
        // An error about nf_tables tells more than one about a missing command.
        return chosen(if command::installed() { Backend::Iptables } else { Backend::Nftables });
    }
    if firewalld::is_running(nft)? {
        return chosen(Backend::Firewalld);
    }
    let found = others::look(nft)?;
    if !admin.needs_iptables() && found < Found::Rules {
        return Ok(Chosen { backend: Backend::Nftables, has_iptables: found > Found::Nothing });
    }
    if command::installed() {
        return chosen(Backend::Iptables);
    }
    let needed = |why: &str| {
        Error::new(Code::KERNEL, format!("{why}, and the command iptables-restore is not installed")).details(
            "hint: install iptables, or set \"backend\": \"nftables\" and let the pods pass yourself",
        )
    };
    if admin.needs_iptables() {
        return Err(needed("iptablesAdminChainName needs iptables"));
    }
    if let Some(chain) = shut(nft)?.first() {
        return Err(needed(&format!("{} drops what pods send", chain.text)));
    }
    log::warn!("FORWARD of iptables has rules that a pod may not pass, but iptables-restore is missing");
    chosen(Backend::Nftables)
}

/// A chain of others at the hook forward.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardChain {
    pub family: Family,
    /// The chain as `nft` names it: `ip filter FORWARD`.
    pub text: String,
}

impl ForwardChain {
    /// Whether packets of IPv4, or of IPv6, pass through the chain.
    pub fn meets(&self, ipv4: bool) -> bool {
        match self.family {
            Family::Ipv4 => ipv4,
            Family::Ipv6 => !ipv4,
            _ => true,
        }
    }
}

/// The chains `FORWARD` that surely drop what pods send unless a rule accepts it.
pub fn shut(nft: &mut Nft) -> Result<Vec<ForwardChain>, Error> {
    let mut chains = Vec::new();
    for family in xtables::FAMILIES {
        if others::way(nft, family, Pods::Refused)? == (Way::Shut { surely: true }) {
            chains.push(ForwardChain { family, text: format!("{} FORWARD", table::filter(family)) });
        }
    }
    Ok(chains)
}

/// The chains of nf_tables that surely drop what pods send, and in which no plugin accepts it.
pub fn closed(nft: &mut Nft) -> Result<Vec<ForwardChain>, Error> {
    if nft.is_supported()? { others::closed(nft) } else { Ok(Vec::new()) }
}

/// Puts everything in place. Idempotent. Takes back what it did if it fails half-way.
pub fn add(chosen: Chosen, nft: &mut Nft, owner: &Owner, forward: &Forward) -> Result<Applied, Error> {
    let mut undo = Applied::default();
    match add_all(chosen, nft, owner, forward, &mut undo) {
        Ok(()) => Ok(undo),
        Err(err) => Err(undone(err, undo.run())),
    }
}

fn add_all(
    chosen: Chosen,
    nft: &mut Nft,
    owner: &Owner,
    forward: &Forward,
    undo: &mut Applied,
) -> Result<(), Error> {
    let Chosen { backend, has_iptables } = chosen;
    if backend == Backend::Firewalld {
        let made = firewalld::add(&forward.zone, &forward.addrs)?;
        undo.push(move |_| firewalld::revert(&made));
    }
    if backend != Backend::Firewalld || !forward.policed().is_empty() {
        let writer =
            if backend == Backend::Iptables { rules::Backend::Iptables } else { rules::Backend::Nftables };
        undo.join(writer.add(
            "forwarding",
            nft,
            |nft| nftables::add(nft, owner, forward).map(Applied::of::<Forwarding>),
            |nft| iptables::add(nft, forward),
        )?);
    }
    if forward.interfaces.is_empty() {
        return Ok(());
    }
    if backend != Backend::Nftables && nft.is_supported()? {
        undo.push_changes::<Forwarding>(nftables::add_policy(nft, owner, forward)?);
    }
    if backend != Backend::Iptables && has_iptables {
        undo.join(iptables::add_policy(nft, forward)?);
    }
    Ok(())
}

/// Whether the bridge of this name is of no use any more.
pub(super) type Unused<'a> = &'a mut dyn FnMut(&str) -> Result<bool, Error>;

#[derive(Debug, Clone, Copy)]
pub struct Leaving<'a> {
    /// ADD may have had another one.
    pub configured: Option<Backend>,
    pub policy: Policy,
    pub zone: &'a str,
    pub addrs: &'a [IpAddr],
    pub interfaces: &'a [String],
    /// Whether these are all. Without ADD's result, unused ones may be its own, too.
    pub knows_interfaces: bool,
}

/// Removes the rules that accept the pod's traffic, and the policy of a bridge that is `unused` without the pod.
/// iptables' rules and firewalld's sources are found by the addresses. Those of an address that is `taken` by another
/// pod are its own now, and stay. Tries everything before it fails.
pub fn remove(
    nft: &mut Nft,
    owner: &Owner,
    leaving: &Leaving<'_>,
    taken: &dyn Fn(IpAddr) -> bool,
    mut unused: impl FnMut(&str) -> Result<bool, Error>,
) -> Result<(), Error> {
    let mut failures = Failures::default();
    let nf_tables = has_nf_tables(nft, &mut failures);
    let concerned = leaving.configured == Some(Backend::Firewalld)
        || nf_tables
            && !leaving.addrs.is_empty()
            && failures.value(firewalld::has_table(nft)).unwrap_or_default();
    if concerned {
        let own: Vec<IpAddr> = leaving.addrs.iter().copied().filter(|ip| !taken(*ip)).collect();
        failures.note(firewalld::remove(leaving.zone, &own));
    }
    let (mut policed, mut in_iptables) = (false, leaving.policy != Policy::Open);
    if nf_tables {
        policed = failures.value(nftables::remove(nft, owner, leaving)).unwrap_or_default();
        in_iptables |= failures.value(direct::remove(nft, leaving.addrs, taken)).unwrap_or_default();
    }
    let legacy = failures.value(iptables::remove_legacy(leaving.addrs, taken)).unwrap_or_default();
    if leaving.interfaces.is_empty() && leaving.knows_interfaces {
        return failures.outcome();
    }
    if policed {
        for interface in leaving.interfaces {
            failures.note(nftables::remove_policy(nft, interface, &mut unused, When::Idle));
        }
    }
    if nf_tables && !leaving.knows_interfaces {
        failures.note(nftables::remove_unused(nft, &mut unused));
    }
    // Other unused bridges' go along: the Go plugin never removes any.
    if nf_tables && (policed || in_iptables) {
        failures.note(isolation::remove_nf_tables(nft, leaving.interfaces, &mut unused));
    }
    if legacy {
        failures.note(isolation::remove_legacy(&mut unused));
    }
    failures.outcome()
}

/// Removes the elements of attachments of `network` outside `valid`, policies of `unused` bridges, then unused sets and
/// chains. Rules of iptables and sources of firewalld name no owner and stay. Tries everything before it fails.
pub fn gc(
    nft: &mut Nft,
    network: &str,
    valid: &[Attachment],
    mut unused: impl FnMut(&str) -> Result<bool, Error>,
) -> Result<(), Error> {
    let mut failures = Failures::default();
    if has_nf_tables(nft, &mut failures) {
        failures.note(Forwarding::gc(nft, network, valid).map(drop));
        failures.note(nftables::remove_unused(nft, &mut unused));
        failures.note(isolation::remove_nf_tables(nft, &[], &mut unused));
    }
    failures.note(isolation::remove_legacy(&mut unused));
    failures.outcome()
}
