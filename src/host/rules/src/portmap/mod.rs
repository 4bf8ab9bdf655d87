//! Ports of the host that lead into a pod (`portMappings`). With either backend, removal also looks for what the Go
//! plugins made (`reference`).
//!
//! Three things have to happen to a packet besides the new destination:
//! - **Hairpin.** Another pod (or the same) would be answered directly, from an address that it never asked.
//!   Such packets are masqueraded.
//! - **Localhost.** Packets to 127.0.0.1 have that as their source, too, which doesn't leave a host.
//!   `route_localnet` lets it, on the link towards the pod and only for such a mapping. Masquerading gives it an
//!   address that can be answered. The switch would let *others* on that link reach 127.0.0.0/8, hence a guard that
//!   drops them (`localnet`). IPv6 has no such switch, so a mapped port of ::1 stays with a program that listens there.
//! - **UDP** has no connections to end, and an SCTP peer with fixed ports never ends its own: the kernel would go on
//!   sending its packets to the first destination. So it forgets a mapped port's entries when a mapping comes or goes
//!   (`conntrack`).

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
use super::elements::{self, Changes, Layout};
use super::failures::{Failures, has_nf_tables, not_available};
use super::go_chains::DNAT;
use super::nat::{self, Port, Traffic};
pub use super::protocol::Protocol;
pub use super::undo::Applied;
use super::undo::undone;
use super::xtables::Variant;
use localnet::Notes;
use nftables::Portmap;

/// Displayed as `8080/tcp` or `192.0.2.1:8080/tcp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    pub protocol: Protocol,
    /// `None` stands for all addresses, 0.0.0.0 and :: for all of their family.
    pub host_ip: Option<IpAddr>,
    pub host_port: u16,
    pub container_port: u16,
}

impl Mapping {
    /// Returns `None` for an unknown protocol.
    pub fn of(entry: &PortMapping) -> Option<Self> {
        Some(Mapping {
            protocol: Protocol::parse(&entry.protocol)?,
            host_ip: entry.host_ip,
            host_port: entry.host_port,
            container_port: entry.container_port,
        })
    }

    /// Whether both would take the same packets of one family, and neither is more special.
    pub fn collides_with(&self, other: &Mapping) -> bool {
        let family = |ip: Option<IpAddr>| ip.map(|ip| ip.is_ipv4());
        let same_family = match (family(self.host_ip), family(other.host_ip)) {
            (Some(one), Some(two)) => one == two,
            _ => true,
        };
        self.place() == other.place() && same_family
    }

    /// A pod can have each place once in each family.
    fn place(&self) -> (Protocol, u16, Option<IpAddr>) {
        (self.protocol, self.host_port, self.address())
    }

    fn address(&self) -> Option<IpAddr> {
        self.host_ip.filter(|ip| !ip.is_unspecified())
    }

    fn is_for(&self, pod: &IpNetwork) -> bool {
        self.host_ip.is_none_or(|ip| ip.is_ipv4() == pod.is_ipv4())
    }

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
    /// Whether hairpin and localhost work (`snat`).
    pub snat: bool,
    /// The pod sees the host as client (`masqAll`).
    pub masq_all: bool,
    /// The bit that marks what iptables masquerades (`markMasqBit`). nf_tables needs no mark.
    pub mark_bit: u8,
    /// A foreign chain that sets the mark (`externalSetMarkChain`), for iptables.
    pub external_mark_chain: Option<String>,
    /// More matches for the IPv4 rules (`conditionsV4`), in the language of the backend's command.
    pub conditions_v4: Vec<String>,
    pub conditions_v6: Vec<String>,
}

impl Forward {
    /// Each mapping with the pod's address of its family. Of a duplicate port, the first.
    fn targets(&self) -> impl Iterator<Item = (&Mapping, &IpNetwork)> {
        self.addrs.iter().flat_map(|pod| {
            let mut seen = HashSet::new();
            let mappings = self.mappings.iter().filter(move |mapping| mapping.is_for(pod));
            mappings.filter(move |mapping| seen.insert(mapping.place())).map(move |mapping| (mapping, pod))
        })
    }

    /// Mappings of a host's address whose family the pod lacks. Nothing leads from there to the pod.
    pub fn without_target(&self) -> impl Iterator<Item = &Mapping> {
        self.mappings.iter().filter(|mapping| !self.addrs.iter().any(|pod| mapping.is_for(pod)))
    }

    pub(super) fn traffic(&self) -> Vec<Traffic> {
        let arriving = |is_ipv4: bool| {
            let targets = self.targets().filter(|(_, pod)| pod.is_ipv4() == is_ipv4);
            let port = |mapping: &Mapping| Port {
                protocol: mapping.protocol,
                port: mapping.host_port,
                address: mapping.address(),
            };
            Traffic::Arriving { is_ipv4, ports: targets.map(|(mapping, _)| port(mapping)).collect() }
        };
        let has_ports = |of: &Traffic| matches!(of, Traffic::Arriving { ports, .. } if !ports.is_empty());
        [true, false].map(arriving).into_iter().filter(has_ports).collect()
    }

    fn localhost(&self) -> Option<IpAddr> {
        let reaches = |mapping: &Mapping| mapping.address().is_none_or(|ip| ip.is_loopback());
        let mut targets = self.targets().filter(|(mapping, pod)| pod.is_ipv4() && reaches(mapping));
        targets.next().filter(|_| self.snat).map(|(_, pod)| pod.ip())
    }
}

enum Made {
    Nftables(Box<Changes>),
    Iptables(Owner),
}

/// Leads the ports to the pod. Idempotent. Takes back what it did if it fails half-way. A port belongs to a container.
/// The mapping of a container that `is_gone` is removed. Fails with code 102 and the owner of a taken port.
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
            // A rule of others came after an earlier ADD, and would exempt nothing from these elements.
            if let Backend::IptablesIn(_) = backend {
                nftables::remove(nft, owner, Some(forward))?;
            }
            Ok(Made::Iptables(owner.clone()))
        },
    )?;
    let mut link = None;
    let opened = match (forward.localhost(), &made) {
        (None, _) => Ok(()),
        // A flush has taken the part and the notes.
        (Some(pod), Made::Nftables(changes)) => {
            let note = |link: &str| Ok(nftables::note_link(nft, link)?);
            let notes = if changes.made_part { Notes::Lost } else { Notes::Kept };
            localnet::open(pod, notes, note, &mut link)
        }
        // The guard of this backend stays.
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
                failures.note(elements::revert::<Portmap>(nft, &changes));
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

/// Notes the link towards a pod if `route_localnet` is on there by us and the note was lost with the rules. Without it
/// the switch would stay on after the last mapping, and the guard would go.
pub fn note_link(nft: &mut Nft, forward: &Forward) -> Result<(), Error> {
    let Some(pod) = forward.localhost() else { return Ok(()) };
    match localnet::opened_towards(pod)? {
        Some(link) if !nftables::is_noted(nft, &link)? => Ok(nftables::note_link(nft, &link)?),
        _ => Ok(()),
    }
}

/// Links on which `route_localnet` was switched on by us for mappings that are lost.
pub(super) fn open_links(nft: &mut Nft) -> cnimble_netlink::Result<Vec<String>> {
    nftables::orphans(nft, localnet::opened()?)
}

pub(super) fn close_links(nft: &mut Nft) -> cnimble_netlink::Result<()> {
    nftables::close_orphans(nft, localnet::opened()?)
}

/// Lets published ports take no packets for addresses of Services that the node has now.
pub fn keep_off_services(nft: &mut Nft) -> Result<(), Error> {
    Ok(nftables::services::refresh(nft)?)
}

/// The numbers of the links that have addresses of Services (`kube-ipvs0`).
pub fn links_of_services() -> Result<BTreeSet<u32>, Error> {
    Ok(nftables::services::links()?)
}

/// Removes all port mappings of the owner, also the Go plugins'. `forward` is a hint. Tries everything before it fails.
pub fn remove(nft: &mut Nft, owner: &Owner, forward: Option<&Forward>) -> Result<(), Error> {
    let mut failures = Failures::default();
    let mut flows = forward.map(conntrack::targets).unwrap_or_default();
    if has_nf_tables(nft, &mut failures) {
        if let Some(removed) = failures.value(nftables::remove(nft, owner, forward)) {
            flows.extend(conntrack::of_elements(&removed));
            // After a flush only the link tells what else there was.
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

/// Returns the container that rules in the form of the Go plugins lead a port to: of either backend, and of both variants
/// of iptables. `pod` is an address of the family in question.
///
/// # Errors
/// Fails if the rules can't be read.
pub fn holder_by_go_rules(nft: &mut Nft, mapping: Mapping, pod: IpNetwork) -> Result<Option<Holder>, Error> {
    let nobody = Attachment { container_id: String::new(), ifname: String::new() };
    let owner = Owner { network: String::new(), attachment: nobody };
    let forward = Forward { mappings: vec![mapping], addrs: vec![pod], ..Forward::default() };
    foreign::holder_of(nft, &owner, &forward)
}

/// Fails with code 103 and the missing object if a port is not mapped. Objects of the Go plugins count as well.
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

/// Fails with code 103 if a rule of others exempts packets, and the owner's mappings are where it has no effect.
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

/// Removes the mappings of all attachments of `network` outside `valid`. Tries everything before it fails.
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

/// Fails with code 50 if `backend` can't be used now.
pub fn status(backend: Backend, nft: &mut Nft) -> Result<(), Error> {
    backend.status(|| Portmap::usable(nft), || command::usable("nat", "backend"))
}

/// Fails with code 50 if conditions in the language of the `nft` command can't be used now.
pub fn conditions_status() -> Result<(), Error> {
    nftables::conditions::available().map_err(not_available)
}
