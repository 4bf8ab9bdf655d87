//! Rules of others in iptables' table `nat` that decide about a pod's packets, in both variants.
//!
//! Our chains come after theirs, so what they translate stays as they say. An **exemption** needs more: after an ACCEPT
//! in one base chain, the next one runs all the same. Only rules in the same chain of the same variant honour it, behind
//! it. So ADD takes iptables where a rule may exempt packets of the pod ([`exempting`]). Like the Go plugins, it counts
//!
//! - ACCEPT in any chain that a built-in one leads to,
//! - RETURN in a built-in chain, and a `-g` there, from which no packet comes back.
//!
//! A rule is left aside if its addresses, protocol or ports show that no such packet can meet it. Of other conditions
//! nothing is known: they may hold. Chains of plugins, kube-proxy and Docker have no exemptions, and are not read.
//!
//! People see one more kind: a rule that translates ([`deciding`]). It comes before ours, so ADD needs no other backend.

mod lines;
mod walk;

use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use cnimble_cni::Error;
use cnimble_netlink::nft::{Family, Nft};

use super::protocol::Protocol;
use super::whose;
pub use super::xtables::Variant;
pub use walk::Tables;
use walk::Walk;

/// A host port and its protocol, on one address of the node or on all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    pub(super) protocol: Protocol,
    pub(super) port: u16,
    pub(super) address: Option<IpAddr>,
}

/// A place where a connection gets its translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// The destination of a packet that arrives.
    Prerouting,
    /// The destination of a packet that the host sends.
    Output,
    /// The source of any packet that leaves.
    Postrouting,
}

/// The first packet of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    pub from: Option<IpAddr>,
    pub to: IpAddr,
    /// The number of its protocol (`IPPROTO_TCP`).
    pub protocol: u8,
    /// The port of its destination; `None` for a protocol without ports.
    pub port: Option<u16>,
}

/// Packets of a pod, for which rules of others are looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Traffic {
    /// Packets from the address to any but these networks, which a rule of ours would translate.
    Leaving { source: IpAddr, spared: Vec<IpNetwork> },
    /// Packets to these ports of the node, which a rule of ours would translate.
    Arriving { is_ipv4: bool, ports: Vec<Port> },
    /// One packet at a hook.
    Packet(Packet, Hook),
}

impl Traffic {
    fn family(&self) -> Family {
        let is_ipv4 = match self {
            Traffic::Leaving { source, .. } => source.is_ipv4(),
            Traffic::Arriving { is_ipv4, .. } => *is_ipv4,
            Traffic::Packet(packet, _) => packet.to.is_ipv4(),
        };
        if is_ipv4 { Family::Ipv4 } else { Family::Ipv6 }
    }

    /// The built-in chains that see them.
    fn chains(&self) -> &'static [&'static str] {
        match self {
            Traffic::Leaving { .. } | Traffic::Packet(_, Hook::Postrouting) => &["POSTROUTING"],
            Traffic::Packet(_, Hook::Prerouting) => &["PREROUTING"],
            Traffic::Packet(_, Hook::Output) => &["OUTPUT"],
            Traffic::Arriving { .. } => &["PREROUTING", "OUTPUT"],
        }
    }

    /// Whether a translation changes their source.
    fn gets_a_source(&self) -> bool {
        self.chains() == ["POSTROUTING"]
    }
}

/// The effect of a rule on packets that meet it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// The packets are not translated. The text is the target: ACCEPT, RETURN and so on.
    Exempts(&'static str),
    /// The packets are translated by this target.
    Translates(String),
}

/// A rule of others that decides about packets of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub variant: Variant,
    pub family: Family,
    pub chain: String,
    /// The rule's handle, or in the legacy variant its number in the chain.
    pub number: u64,
    pub comment: String,
    pub effect: Effect,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Decision { variant, family, chain, number, comment, effect } = self;
        let target = match effect {
            Effect::Exempts(target) => *target,
            Effect::Translates(target) => target,
        };
        match variant {
            Variant::Nft | Variant::Usual => {
                write!(f, "rule {target} of chain {family} nat {chain}, handle {number}")?;
            }
            Variant::Legacy => {
                write!(f, "rule {number} ({target}) of chain {chain} in the legacy table nat of {family}")?;
            }
        }
        if comment.is_empty() { Ok(()) } else { write!(f, " ({comment})") }
    }
}

impl Decision {
    /// Says what the rule may do to packets of this traffic, which `packets` names for people.
    pub fn consequence(&self, traffic: &Traffic, packets: &str) -> String {
        let rule = format!("{self}, made by {}", whose::maker(self.family, "nat", &self.chain));
        match (&self.effect, traffic.gets_a_source()) {
            (Effect::Exempts(_), true) => format!("{rule}, may exempt {packets} from masquerading"),
            (Effect::Exempts(_), false) => format!("{rule}, may leave {packets} with the host"),
            (Effect::Translates(_), true) => format!("{rule}, may give {packets} another source"),
            (Effect::Translates(_), false) => format!("{rule}, may lead {packets} to another address"),
        }
    }

    /// The command that shows the rule.
    pub fn command(&self) -> String {
        let Decision { family, chain, number, .. } = self;
        match (self.variant, family) {
            (Variant::Nft | Variant::Usual, _) => format!("nft -a list chain {family} nat {chain}"),
            (Variant::Legacy, Family::Ipv6) => format!("ip6tables-legacy -t nat -S {chain} {number}"),
            (Variant::Legacy, _) => format!("iptables-legacy -t nat -S {chain} {number}"),
        }
    }
}

/// The error of CHECK for rules of ours that a rule of others should come before.
pub(super) fn passed_over(what: &str, rule: &Decision) -> Error {
    Error::check(format!("{rule} has no effect on the pod's packets"))
        .details(format!("the rules of {what} are in nf_tables, where it exempts nothing"))
        .details("hint: cnimble doctor --repair, which writes them behind it in iptables")
}

/// Returns the rule that may exempt some of the packets; that of the nf_tables variant first.
pub(super) fn exempting(nft: &mut Nft, traffic: &Traffic) -> Result<Option<Decision>, Error> {
    first(nft, &mut Tables::default(), traffic, false, |effect| matches!(effect, Effect::Exempts(_)))
}

/// Returns the rule that may decide about some of the packets: it exempts them, or translates them before a rule of ours
/// can. MASQUERADE is left aside, because it does to leaving packets what a rule of ours would. `tables` keeps what is
/// read for further looks.
///
/// # Errors
/// Fails if the tables can't be read.
pub fn deciding(nft: &mut Nft, tables: &mut Tables, traffic: &Traffic) -> Result<Option<Decision>, Error> {
    first(
        nft,
        tables,
        traffic,
        true,
        |effect| !matches!(effect, Effect::Translates(target) if target == "MASQUERADE"),
    )
}

fn first(
    nft: &mut Nft,
    tables: &mut Tables,
    traffic: &Traffic,
    with_translations: bool,
    is_wanted: impl Fn(&Effect) -> bool,
) -> Result<Option<Decision>, Error> {
    for variant in [Variant::Nft, Variant::Legacy] {
        let Some(mut walk) = Walk::open(nft, tables, variant, traffic, with_translations)? else { continue };
        for chain in traffic.chains() {
            if let Some(found) = walk.through(chain, &mut |found| is_wanted(&found.effect))? {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}
