//! Finds rules of others in iptables' table `nat` that decide about a pod's packets, in both variants.
//!
//! Our chains come after theirs, so a packet that their rules translate stays translated so. An **exemption** needs
//! more: after an ACCEPT in one base chain, the next base chain runs all the same. To honour it, our rules must come
//! after it in the same chain of the same variant. So ADD uses iptables where a rule may exempt packets of the pod
//! ([`exempting`]). As in iptables, these exempt packets:
//!
//! - ACCEPT in any chain that a built-in one leads to,
//! - RETURN in a built-in chain, and a `-g` there, from which no packet comes back.
//!
//! A rule is left aside if its addresses, protocol or ports show that no such packet can match it. Other conditions are
//! not read; any of them may hold. Chains of CNI plugins, kube-proxy and Docker are not read, because they exempt none
//! of these packets.
//!
//! [`deciding`] also finds rules that translate, for messages. They come before ours, so ADD needs no other backend.

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
use walk::NatWalk;
pub use walk::Tables;

/// A host port and its protocol, on one address of the node or, with `None`, on all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    pub(super) protocol: Protocol,
    pub(super) port: u16,
    pub(super) address: Option<IpAddr>,
}

/// The hook at which a packet gets its translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// The hook for the destination of a packet that arrives.
    Prerouting,
    /// The hook for the destination of a packet that the host sends.
    Output,
    /// The hook for the source of any packet that leaves.
    Postrouting,
}

/// The first packet of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// The source. `None` if it is unknown: then it fits every rule.
    pub from: Option<IpAddr>,
    pub to: IpAddr,
    /// The number of its protocol (`IPPROTO_TCP`).
    pub protocol: u8,
    /// The port of its destination; `None` for a protocol without ports.
    pub port: Option<u16>,
}

/// Packets of a pod, for a look at rules of others.
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
    /// The family of the packets.
    fn family(&self) -> Family {
        let is_ipv4 = match self {
            Traffic::Leaving { source, .. } => source.is_ipv4(),
            Traffic::Arriving { is_ipv4, .. } => *is_ipv4,
            Traffic::Packet(packet, _) => packet.to.is_ipv4(),
        };
        if is_ipv4 { Family::Ipv4 } else { Family::Ipv6 }
    }

    /// Returns the built-in chains that see the packets.
    fn chains(&self) -> &'static [&'static str] {
        match self {
            Traffic::Leaving { .. } | Traffic::Packet(_, Hook::Postrouting) => &["POSTROUTING"],
            Traffic::Packet(_, Hook::Prerouting) => &["PREROUTING"],
            Traffic::Packet(_, Hook::Output) => &["OUTPUT"],
            Traffic::Arriving { .. } => &["PREROUTING", "OUTPUT"],
        }
    }

    /// Returns whether a translation changes the packets' source rather than their destination.
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
    /// The rule's handle, or in the legacy variant its number in the chain. 0 is the chain as a whole: it has too many
    /// rules to be read, or the walk has read too many chains already.
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
            Variant::Nft | Variant::Usual if *number == 0 => {
                write!(f, "chain {family} nat {chain}, with too many rules to be read")?;
            }
            Variant::Legacy if *number == 0 => {
                write!(
                    f,
                    "chain {chain} in the legacy table nat of {family}, with too many rules to be read"
                )?;
            }
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
    /// Returns a sentence about what the rule may do to packets of this traffic. `packets` names them for people.
    pub fn consequence(&self, traffic: &Traffic, packets: &str) -> String {
        let rule = format!("{self} (made by {})", whose::maker(self.family, "nat", &self.chain));
        match (&self.effect, traffic.gets_a_source()) {
            (Effect::Exempts(_), true) => format!("{rule} may exempt {packets} from masquerading"),
            (Effect::Exempts(_), false) => format!("{rule} may leave {packets} with the host"),
            (Effect::Translates(_), true) => format!("{rule} may give {packets} another source"),
            (Effect::Translates(_), false) => format!("{rule} may lead {packets} to another address"),
        }
    }

    /// Returns the command that shows the rule.
    pub fn command(&self) -> String {
        let Decision { family, chain, number, .. } = self;
        match (self.variant, family) {
            (Variant::Legacy, Family::Ipv6) if *number == 0 => format!("ip6tables-legacy -t nat -S {chain}"),
            (Variant::Legacy, _) if *number == 0 => format!("iptables-legacy -t nat -S {chain}"),
            (Variant::Nft | Variant::Usual, _) => format!("nft -a list chain {family} nat {chain}"),
            (Variant::Legacy, Family::Ipv6) => format!("ip6tables-legacy -t nat -S {chain} {number}"),
            (Variant::Legacy, _) => format!("iptables-legacy -t nat -S {chain} {number}"),
        }
    }
}

/// Returns the error of CHECK for a rule of others that should exempt packets, but has no effect on our rules in
/// nf_tables.
pub(super) fn passed_over(what: &str, rule: &Decision) -> Error {
    Error::check(format!("{rule} may be meant for the pod's packets, and has no effect on them"))
        .details(format!("the rules of {what} are in nf_tables, where it exempts nothing"))
        .details("hint: cnimble doctor --repair, which writes them behind it in iptables")
}

/// Returns the first rule that may exempt some of the packets from translation. Looks at the nf_tables variant first.
pub(super) fn exempting(nft: &mut Nft, traffic: &Traffic) -> Result<Option<Decision>, Error> {
    find_first(nft, &mut Tables::default(), traffic, false, |effect| matches!(effect, Effect::Exempts(_)))
}

/// Returns the first rule that may decide about some of the packets: it exempts them, or translates them before a rule
/// of ours can. MASQUERADE does not count, because it does to leaving packets what a rule of ours would. `tables` keeps
/// what is read for further looks.
///
/// # Errors
/// Fails if the tables can't be read.
pub fn deciding(nft: &mut Nft, tables: &mut Tables, traffic: &Traffic) -> Result<Option<Decision>, Error> {
    find_first(
        nft,
        tables,
        traffic,
        true,
        |effect| !matches!(effect, Effect::Translates(target) if target == "MASQUERADE"),
    )
}

/// Returns the first decision whose effect is wanted. Only `with_translations` are Docker's chains read.
fn find_first(
    nft: &mut Nft,
    tables: &mut Tables,
    traffic: &Traffic,
    with_translations: bool,
    is_wanted: impl Fn(&Effect) -> bool,
) -> Result<Option<Decision>, Error> {
    for variant in [Variant::Nft, Variant::Legacy] {
        let Some(mut walk) = NatWalk::open(nft, tables, variant, traffic, with_translations)? else {
            continue;
        };
        for chain in traffic.chains() {
            if let Some(found) = walk.through(chain, &mut |found| is_wanted(&found.effect))? {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}
