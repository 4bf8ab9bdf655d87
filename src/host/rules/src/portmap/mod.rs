//! Publishes ports of the host that lead into a pod (`portMappings`). With either backend, removal also looks for the
//! rules of the Go plugins (`reference`).
//!
//! Besides the new destination, three things need care:
//! - **Hairpin.** A client may be a pod of the same network. The published pod would answer it directly, from an
//!   address that the client never asked. So these packets are masqueraded.
//! - **Localhost.** A packet to 127.0.0.1 also comes from 127.0.0.1, and the kernel lets no such packet leave the
//!   host. So `route_localnet` is switched on for the link towards the pod, and masquerading gives the packet a
//!   source that the pod can answer. The switch would also let *others* on that link reach 127.0.0.0/8, so a guard
//!   drops their packets (`localnet`). IPv6 has no such switch, so a published port of ::1 stays with the program
//!   that listens there.
//! - **UDP and SCTP.** Connection tracking sends the packets of a known flow to its first destination. A UDP flow has
//!   no end, and an SCTP peer with fixed ports never ends its own. So the kernel is told to forget these flows when a
//!   mapping comes or goes (`conntrack`).

mod conntrack;
pub(super) mod foreign;
pub(super) mod hand_over;
mod holder;
mod iptables;
mod listeners;
mod localnet;
pub(super) mod nftables;
pub(super) mod reference;

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

pub use super::backend::Backend;
use cnimble_cni::capability::PortMapping;
use cnimble_cni::{Attachment, Error, Owner};
use cnimble_netlink::nft::Nft;
pub use holder::{Holder, IsGone};
pub use listeners::{shadowed, shadowed_by};

use super::command;
use super::elements::{Changes, Layout};
use super::failures::{Failures, has_nf_tables, not_available};
use super::go_chains::DNAT;
use super::nat::{self, Port, Traffic};
pub use super::protocol::Protocol;
pub use super::undo::Applied;
use super::undo::undone;
use super::xtables::Variant;
use localnet::Notes;
use nftables::Portmap;

/// A published port. Displayed as `8080/tcp` or `192.0.2.1:8080/tcp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    pub protocol: Protocol,
    /// The address of the host. `None` stands for all addresses, and 0.0.0.0 and :: for all of their family.
    pub host_ip: Option<IpAddr>,
    pub host_port: u16,
    pub container_port: u16,
}

impl Mapping {
    /// Reads an entry of the runtime's `portMappings`. Returns `None` for an unknown protocol.
    pub fn from_entry(entry: &PortMapping) -> Option<Self> {
        Some(Mapping {
            protocol: Protocol::parse(&entry.protocol)?,
            host_ip: entry.host_ip,
            host_port: entry.host_port,
            container_port: entry.container_port,
        })
    }

    /// Returns whether both publish the same port on the same address, or both on all addresses of a family. A mapping
    /// of one address does not collide with one of all addresses, because the former takes its packets first. This is
    /// for mappings of one pod: the ports of two containers compete even then (`nftables/conflict.rs`).
    pub fn collides_with(&self, other: &Mapping) -> bool {
        let same_family = match (self.host_ip, other.host_ip) {
            (Some(one), Some(two)) => one.is_ipv4() == two.is_ipv4(),
            _ => true,
        };
        self.place() == other.place() && same_family
    }

    /// Returns what a pod can publish only once in each family.
    fn place(&self) -> (Protocol, u16, Option<IpAddr>) {
        (self.protocol, self.host_port, self.address())
    }

    /// Returns the one address of the host, or `None` for all addresses, also of one family.
    fn address(&self) -> Option<IpAddr> {
        self.host_ip.filter(|ip| !ip.is_unspecified())
    }

    /// Returns whether the mapping can lead to a pod's address: the host's address, if any, has the same family.
    fn is_for(&self, pod: &IpNetwork) -> bool {
        self.host_ip.is_none_or(|ip| ip.is_ipv4() == pod.is_ipv4())
    }

    /// Returns the port for messages: `8080/tcp` or `8080/tcp of 192.0.2.1`.
    fn port_text(&self) -> String {
        let on = self.address().map(|ip| format!(" of {ip}")).unwrap_or_default();
        format!("{}/{}{on}", self.host_port, self.protocol)
    }
}

impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host_ip {
            Some(IpAddr::V4(ip)) => write!(f, "{ip}:")?,
            Some(IpAddr::V6(ip)) => write!(f, "[{ip}]:")?,
            None => {}
        }
        write!(f, "{}/{}", self.host_port, self.protocol)
    }
}

/// The port mappings that one attachment wants.
#[derive(Debug, Clone, Default)]
pub struct Forward {
    pub mappings: Vec<Mapping>,
    /// The pod's addresses, at most one of each family, with the prefix length of its network.
    pub addrs: Vec<IpNetwork>,
    /// Whether packets are masqueraded if they come from the pod's network or from localhost (`snat`). If not, the port
    /// does not work from there.
    pub snat: bool,
    /// Whether packets of all clients are masqueraded (`masqAll`), so that the pod sees the host as client. Needs
    /// `snat`.
    pub masq_all: bool,
    /// The number of the bit in the packet mark by which iptables chooses what to masquerade (`markMasqBit`). nf_tables
    /// needs no mark.
    pub mark_bit: u8,
    /// A foreign chain that sets the mark (`externalSetMarkChain`), for iptables.
    pub external_mark_chain: Option<String>,
    /// More matches for the IPv4 rules (`conditionsV4`). Each backend's own command must understand them: `nft` or
    /// `iptables`.
    pub conditions_v4: Vec<String>,
    /// More matches for the IPv6 rules (`conditionsV6`), like [`conditions_v4`](Self::conditions_v4).
    pub conditions_v6: Vec<String>,
}

impl Forward {
    /// Returns each mapping with each of the pod's addresses that it leads to. If a port is there twice, the first one
    /// counts.
    fn targets(&self) -> impl Iterator<Item = (&Mapping, &IpNetwork)> {
        self.addrs.iter().flat_map(|pod| {
            let mut seen = HashSet::new();
            let mappings = self.mappings.iter().filter(move |mapping| mapping.is_for(pod));
            mappings.filter(move |mapping| seen.insert(mapping.place())).map(move |mapping| (mapping, pod))
        })
    }

    /// Returns the mappings that lead nowhere, because the pod has no address of the family of the host's address.
    pub fn without_target(&self) -> impl Iterator<Item = &Mapping> {
        self.mappings.iter().filter(|mapping| !self.addrs.iter().any(|pod| mapping.is_for(pod)))
    }

    /// Returns the packets that the mappings take, for a look at rules of others: at most one entry for each family.
    pub(super) fn traffic(&self) -> Vec<Traffic> {
        let mut traffic = Vec::new();
        for is_ipv4 in [true, false] {
            let targets = self.targets().filter(|(_, pod)| pod.is_ipv4() == is_ipv4);
            let ports: Vec<Port> = targets
                .map(|(mapping, _)| Port {
                    protocol: mapping.protocol,
                    port: mapping.host_port,
                    address: mapping.address(),
                })
                .collect();
            if !ports.is_empty() {
                traffic.push(Traffic::Arriving { is_ipv4, ports });
            }
        }
        traffic
    }

    /// Returns the pod's IPv4 address if one of its ports must be reachable by 127.0.0.1.
    fn localhost(&self) -> Option<IpAddr> {
        let mut targets = self.targets().filter(|(mapping, pod)| {
            pod.is_ipv4() && mapping.address().is_none_or(|host| host.is_loopback())
        });
        targets.next().filter(|_| self.snat).map(|(_, pod)| pod.ip())
    }
}

/// What an undo has to take back: the changes in nf_tables, or all of the owner's rules in iptables.
enum Made {
    Nftables(Box<Changes>),
    Iptables(Owner),
}

/// Makes the host's ports lead to the pod. Returns what takes it back. A second call leaves the same rules. If it fails
/// half-way, it takes back what it did.
///
/// Another container keeps the ports that it has. But if `is_gone` says that it no longer exists, all of its mappings
/// are removed, and an undo does not restore them.
///
/// # Errors
/// Fails with code 102 and the names of the owner if a port belongs to another container.
pub fn add(
    backend: Backend,
    nft: &mut Nft,
    owner: &Owner,
    forward: &Forward,
    is_gone: IsGone<'_>,
) -> Result<Applied, Error> {
    let backend = backend.honouring(nft, &forward.traffic())?.0;
    let variant = backend.variant().unwrap_or(Variant::Usual);
    let made = backend.add(
        "mapping ports",
        nft,
        |nft| nftables::add(nft, owner, forward, is_gone).map(|changes| Made::Nftables(Box::new(changes))),
        |nft| {
            iptables::add(nft, owner, forward, is_gone, variant)?;
            // An earlier ADD may have made elements before the others' rule existed. That rule has no effect on
            // elements.
            if let Backend::IptablesIn(_) = backend {
                nftables::remove(nft, owner, Some(forward))?;
            }
            Ok(Made::Iptables(owner.clone()))
        },
    )?;
    let mut link = None;
    let opened = match (forward.localhost(), &made) {
        (None, _) => Ok(()),
        // If the part is new, a flush of the ruleset may have removed the notes with the former part.
        (Some(pod), Made::Nftables(changes)) => {
            let notes = if changes.made_part { Notes::Lost } else { Notes::Kept };
            localnet::open(pod, notes, |link| Ok(nftables::note_link(nft, link)?), &mut link)
        }
        // The guard in iptables is never removed, so the switch may stay on, too.
        (Some(pod), Made::Iptables(_)) => localnet::open_for_good(pod),
    };
    let mut undo = Applied::default();
    let targets = conntrack::targets(forward);
    undo.push(move |nft| {
        let mut failures = Failures::default();
        match made {
            Made::Nftables(changes) => {
                // This takes the note of the link away once `route_localnet` is off there. While there is a note, no
                // removal takes the chain that guards localhost.
                if let Some(link) = link {
                    failures.note(nftables::close_link(nft, &changes, &link));
                }
                failures.note(nftables::revert(nft, &changes));
            }
            Made::Iptables(owner) => failures.note(iptables::remove(nft, &owner)),
        }
        conntrack::after(targets);
        failures.outcome()
    });
    if let Err(err) = opened {
        return Err(undone(err, undo.run()));
    }
    conntrack::before(forward);
    Ok(undo)
}

/// Notes the link towards a pod again, if the note was lost with the rules and we have switched `route_localnet` on
/// there. Without a note the switch would stay on after the last mapping, while its guard is removed.
pub fn note_link(nft: &mut Nft, forward: &Forward) -> Result<(), Error> {
    let Some(pod) = forward.localhost() else { return Ok(()) };
    match localnet::opened_towards(pod)? {
        Some(link) if !nftables::is_noted(nft, &link)? => Ok(nftables::note_link(nft, &link)?),
        _ => Ok(()),
    }
}

/// Returns the links on which we have switched `route_localnet` on, for mappings that no longer exist.
pub(super) fn open_links(nft: &mut Nft) -> cnimble_netlink::Result<Vec<String>> {
    nftables::orphans(nft, localnet::opened()?)
}

/// Switches `route_localnet` off on the links that [`open_links`] lists.
pub(super) fn close_links(nft: &mut Nft) -> cnimble_netlink::Result<()> {
    nftables::close_orphans(nft, localnet::opened()?)
}

/// Excludes the node's present addresses of Services from published ports. Does nothing if no port is published.
pub fn keep_off_services(nft: &mut Nft) -> Result<(), Error> {
    Ok(nftables::services::refresh(nft)?)
}

/// Returns the interface indexes of the links that have addresses of Services (`kube-ipvs0`, `kube-dummy-if`).
pub fn links_of_services() -> Result<BTreeSet<u32>, Error> {
    Ok(nftables::services::links()?)
}

/// Returns whether a link of this name has addresses of Services (`kube-ipvs0`, `kube-dummy-if`).
pub fn is_link_of_services(name: &str) -> bool {
    nftables::services::LINKS.contains(&name)
}

/// Removes all port mappings of the owner, also those in the form of the Go plugins. `forward` saves a listing and may
/// be missing or outdated. If a step fails, the others are tried before the error is returned.
pub fn remove(nft: &mut Nft, owner: &Owner, forward: Option<&Forward>) -> Result<(), Error> {
    let mut failures = Failures::default();
    let mut flows = forward.map(conntrack::targets).unwrap_or_default();
    if has_nf_tables(nft, &mut failures) {
        if let Some(removed) = failures.value(nftables::remove(nft, owner, forward)) {
            flows.extend(conntrack::of_elements(&removed));
            // After a flush of the ruleset, only the value of `route_localnet` still shows a mapping.
            if removed.is_empty() {
                let opened = localnet::opened_for(forward.map(|forward| forward.addrs.as_slice()));
                failures.note(opened.and_then(|opened| nftables::close_orphans(nft, opened)));
            }
        }
        failures.note(reference::remove_nf_tables(nft, owner));
    }
    failures.note(reference::remove_legacy(owner));
    conntrack::after(flows);
    failures.outcome()
}

/// Returns the container that gets a port by rules in the form of the Go plugins. These are the rules of their nftables
/// backend, and those of iptables in both variants. `pod` is any address of the family in question.
///
/// # Errors
/// Fails if the rules can't be read.
pub fn holder_by_go_rules(nft: &mut Nft, mapping: Mapping, pod: IpNetwork) -> Result<Option<Holder>, Error> {
    let nobody = Attachment { container_id: String::new(), ifname: String::new() };
    let owner = Owner { network: String::new(), attachment: nobody };
    let forward = Forward { mappings: vec![mapping], addrs: vec![pod], ..Forward::default() };
    foreign::holder_of(nft, &owner, &forward)
}

/// Fails with code 103 and the missing object if a port is not mapped, or localhost can't reach it. Rules in the form
/// of the Go plugins are as good as ours.
pub fn check(nft: &mut Nft, owner: &Owner, forward: &Forward) -> Result<(), Error> {
    let missing = nftables::check(nft, owner, forward).unwrap_or_else(|err| Some(err.to_string()));
    if let Some(missing) = missing
        && !reference::is_mapped(nft, owner, forward)?
    {
        return Err(Error::check(format!("port mappings of {} are missing", owner.attachment.container_id))
            .details(missing));
    }
    if let Some(pod) = forward.localhost() {
        localnet::check(pod)?;
    }
    Ok(())
}

/// Fails with code 103 if the owner's mappings are in nf_tables, while a rule of others in iptables exempts packets
/// from translation. Such a rule has no effect on nf_tables.
pub fn check_exemptions(
    backend: Backend,
    nft: &mut Nft,
    owner: &Owner,
    forward: &Forward,
) -> Result<(), Error> {
    match nftables::check(nft, owner, forward) {
        Ok(None) => {}
        _ => return Ok(()),
    }
    match backend.honouring(nft, &forward.traffic())? {
        (_, None) => Ok(()),
        (_, Some(rule)) => Err(nat::passed_over("the published ports", &rule)),
    }
}

/// Removes the mappings of all attachments of `network` that are not in `valid`. Rules of the Go plugins' nftables
/// backend name no network and stay. If a step fails, the others are tried before the error is returned.
pub fn gc(nft: &mut Nft, network: &str, valid: &[Attachment]) -> Result<(), Error> {
    let mut failures = Failures::default();
    if has_nf_tables(nft, &mut failures) {
        if let Some(removed) = failures.value(Portmap::gc(nft, network, valid)) {
            conntrack::after(conntrack::of_elements(&removed).collect());
        }
        failures.note(close_links(nft));
        failures.note(DNAT.gc(nft, network, valid));
    }
    failures.note(DNAT.gc_legacy(network, valid));
    failures.outcome()
}

/// Fails with code 50 if ADD could not use `backend` now.
pub fn status(backend: Backend, nft: &mut Nft) -> Result<(), Error> {
    backend.status(|| Portmap::usable(nft), || command::usable("nat", "backend"))
}

/// Fails with code 50 if the `nft` command is missing, which conditions in its language need.
pub fn conditions_status() -> Result<(), Error> {
    nftables::conditions::available().map_err(not_available)
}
