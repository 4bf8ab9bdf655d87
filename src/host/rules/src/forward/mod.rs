//! Lets the host forward traffic to and from pods (the plugin `firewall`). Every backend accepts traffic from pods and
//! the answers to it, applies the administrator's rules first, and separates bridges by their [`Policy`].
//!
//! An accept in **nf_tables** is in a table of our own and ends only our own chain: another chain can still drop the
//! packet. **iptables** uses the Go plugin's chains *in* `FORWARD`, before foreign rules. **firewalld** drops all
//! traffic that it does not know. Without a configured backend, a running firewalld is used. Otherwise it is iptables
//! if `FORWARD` has foreign rules (`others`), and else nf_tables.
//!
//! A policy separates only bridges that are in the same place. So if nf_tables or iptables has policies already, a new
//! one is written there, too. Each ADD first writes its own and then looks at the other place, so at least one of two
//! concurrent ADDs sees the other.
//!
//! There is one exception. An ADD for which [`choose`] found no table `filter` of iptables does not look there again.
//! If another ADD writes its policy to iptables meanwhile, neither of the two may see the other.

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
use super::drops::ReadTables;
use super::elements::Layout;
use super::failures::{Failures, has_nf_tables};
pub use super::undo::Applied;
use super::undo::undone;
use super::{command, xtables};
use nftables::{Forwarding, When};
use others::FilterContent;
use walk::{ChainEffect, Pods};

/// The packet filter that lets pods' traffic pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// The table `inet cnimble`.
    Nftables,
    /// The Go plugin's chains in `FORWARD`.
    Iptables,
    /// firewalld by D-Bus. Policies of bridges are in our own table.
    Firewalld,
}

/// The pods that may open connections to the pods of a bridge (`ingressPolicy`). The latest ADD decides for all pods of
/// the bridge. A vlan's gateway counts as a bridge, and so does the host's end of a pod without one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// All pods.
    #[default]
    Open,
    /// Pods on the same bridge, and those on bridges with the policy `open`.
    SameBridge,
    /// Pods on bridges with the policy `open`, but not those on the same bridge.
    Isolated,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The chain with the administrator's rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Admin {
    /// `CNI-ADMIN` with iptables, and the chain `admin` with nf_tables.
    #[default]
    Default,
    /// The configured chain of iptables (`iptablesAdminChainName`), which rules out nf_tables.
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

/// What one attachment wants to be forwarded.
#[derive(Debug, Clone, Default)]
pub struct Forward {
    /// The pod's addresses.
    pub addrs: Vec<IpAddr>,
    pub policy: Policy,
    /// The interfaces by which the host receives the pod's packets: bridge and vlan gateway, or the host's end. The
    /// policy is about these.
    pub interfaces: Vec<String>,
    pub admin: Admin,
    /// The zone of firewalld that gets the addresses.
    pub zone: String,
    /// The comment of rules that accept only connections to published ports of the pod. It names the owner. `None`
    /// accepts all that the pod sends, and the answers to it.
    pub published: Option<String>,
}

impl Forward {
    /// Returns the rules of iptables for one address of the pod.
    fn rules(&self, ip: IpAddr) -> [String; 2] {
        match &self.published {
            Some(comment) => table::published_rules(ip, comment),
            None => table::pod_rules(ip),
        }
    }

    /// Returns the interfaces that get a policy: none with the policy `open`.
    fn policed(&self) -> &[String] {
        if self.policy == Policy::Open { &[] } else { &self.interfaces }
    }

    fn of_family(&self, family: Family) -> impl Iterator<Item = IpAddr> {
        self.addrs.iter().copied().filter(move |ip| ip.is_ipv4() == (family == Family::Ipv4))
    }
}

/// The result of [`choose`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chosen {
    pub backend: Backend,
    /// Whether iptables may have policies that a bridge must join. True unless a look has found no table `filter`.
    has_iptables: bool,
}

impl Chosen {
    /// Returns a choice that assumes a table `filter`, because no look has shown that there is none.
    fn assuming_iptables(backend: Backend) -> Self {
        Chosen { backend, has_iptables: true }
    }
}

/// Returns the configured backend, or else the one that works on this host (see the [module](self)).
///
/// If `FORWARD` may drop what pods send, but does not surely, iptables is better, but not needed. Without its commands
/// this then warns and returns nf_tables, and rules of others may drop packets of pods.
///
/// # Errors
/// Fails if iptables is needed and its commands are missing. It is needed for a configured chain of the administrator,
/// and if `FORWARD` surely drops what pods send.
pub fn choose(configured: Option<Backend>, admin: &Admin, nft: &mut Nft) -> Result<Chosen, Error> {
    if let Some(backend) = configured {
        return Ok(Chosen::assuming_iptables(backend));
    }
    if !nft.is_supported()? {
        // An error about nf_tables tells more than one about a missing command.
        let backend = if command::installed() { Backend::Iptables } else { Backend::Nftables };
        return Ok(Chosen::assuming_iptables(backend));
    }
    if firewalld::is_running(nft)? {
        return Ok(Chosen::assuming_iptables(Backend::Firewalld));
    }
    let found = others::look_at_all(nft)?;
    if !admin.needs_iptables() && found < FilterContent::Rules {
        return Ok(Chosen { backend: Backend::Nftables, has_iptables: found > FilterContent::Nothing });
    }
    if command::installed() {
        return Ok(Chosen::assuming_iptables(Backend::Iptables));
    }
    if admin.needs_iptables() {
        return Err(lacks_iptables("iptablesAdminChainName needs iptables"));
    }
    if let Some(chain) = shut(nft)?.first() {
        return Err(lacks_iptables(&format!("{} drops what pods send", chain.text)));
    }
    log::warn!("FORWARD of iptables has rules that a pod may not pass, but iptables-restore is missing");
    Ok(Chosen::assuming_iptables(Backend::Nftables))
}

/// Returns the error that the commands of iptables are missing although they are needed. `why` begins its text.
fn lacks_iptables(why: &str) -> Error {
    Error::new(Code::KERNEL, format!("{why}, and the command iptables-restore is not installed"))
        .details("hint: install iptables, or set \"backend\": \"nftables\" and let the pods pass yourself")
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

/// Returns the families' chains `FORWARD` that surely drop what pods send if no plugin's rule accepts it. Either
/// variant of iptables can drop it.
pub fn shut(nft: &mut Nft) -> Result<Vec<ForwardChain>, Error> {
    let mut chains = Vec::new();
    for family in xtables::FAMILIES {
        if others::way(nft, family, Pods::Refused)? == (ChainEffect::Shut { surely: true }) {
            chains.push(ForwardChain { family, text: format!("{} FORWARD", table::filter(family)) });
        }
    }
    Ok(chains)
}

/// Returns the other chains of nf_tables that surely drop what pods send, and in which no backend accepts it. A kernel
/// without nf_tables has none. The tables with such chains are in `tables` afterwards.
pub fn closed(nft: &mut Nft, tables: &mut ReadTables) -> Result<Vec<ForwardChain>, Error> {
    if nft.is_supported()? { others::closed(nft, tables) } else { Ok(Vec::new()) }
}

/// Writes the pod's rules and the policy of its bridge. Returns what takes it back. A second call changes nothing. If
/// it fails half-way, it takes back what it did.
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
            |nft| nftables::add(nft, owner, forward).map(Applied::from_changes::<Forwarding>),
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

/// Returns whether no pod uses the bridge of this name any more.
pub(super) type Unused<'a> = &'a mut dyn FnMut(&str) -> Result<bool, Error>;

/// What a DEL knows of the attachment.
#[derive(Debug, Clone, Copy)]
pub struct Leaving<'a> {
    /// The backend in the configuration. ADD may have had another one.
    pub configured: Option<Backend>,
    pub policy: Policy,
    /// The zone of firewalld in the configuration.
    pub zone: &'a str,
    pub addrs: &'a [IpAddr],
    pub interfaces: &'a [String],
    /// Whether `interfaces` are all that ADD used. If false, because ADD's result is missing, policies of all unused
    /// bridges are removed.
    pub knows_interfaces: bool,
}

/// Removes the rules that accept the pod's traffic, and the policy of its bridge if no other pod needs it.
///
/// iptables' rules and firewalld's sources name no owner and are found by the pod's addresses. If an address is `taken`
/// by another pod by now, its rules stay for that one. `unused` tells whether a bridge has no pods left. If a step
/// fails, the others are tried before the error is returned.
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
    // Policies of other unused bridges are removed, too, because the Go plugin never removes any.
    if nf_tables && (policed || in_iptables) {
        failures.note(isolation::remove_nf_tables(nft, leaving.interfaces, &mut unused));
    }
    if legacy {
        failures.note(isolation::remove_legacy(&mut unused));
    }
    failures.outcome()
}

/// Removes the elements of attachments of `network` that are not in `valid`, policies of `unused` bridges, and then
/// unused sets and chains. Pods' rules in iptables and sources of firewalld name no owner and stay. If a step fails,
/// the others are tried before the error is returned.
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
