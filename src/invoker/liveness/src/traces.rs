//! Verdicts on packet rules.

use std::net::IpAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use cnimble_cni::Error;
use cnimble_netlink::arp::Asking;
use cnimble_netlink::link::Link;
use cnimble_netlink::nft::Nft;
use cnimble_netlink::{IfPresent as _, Netlink, neigh};
use cnimble_rules::survey::{self, Contested, OwnerHint, Trace};

use super::node::Node;
use super::{Sight, Verdict};

/// How long to wait for an answer after each ARP request. A neighbour answers within milliseconds.
const PAUSES: [Duration; 2] = [Duration::from_millis(300), Duration::from_millis(700)];

/// The time in which the kernel sends its three neighbor solicitations (RFC 4861: one a second), and gives up.
const SOLICITATIONS: Duration = Duration::from_secs(4);

/// The time between two looks at what the kernel has heard.
const PAUSE: Duration = Duration::from_millis(50);

impl Sight {
    /// Returns the verdict on a packet rule. A port mapping of an attachment that lives without certainty is an orphan
    /// if it takes the packets of a living pod: see [`takes_packets_of_another`].
    pub fn judge(&self, trace: &Trace) -> Verdict {
        match judge(&self.node, trace) {
            Verdict::Lives => takes_packets_of_another(&self.node, trace)
                .unwrap_or_else(|err| Some(Verdict::Doubt(err.to_string())))
                .unwrap_or(Verdict::Lives),
            verdict => verdict,
        }
    }
}

/// Returns another verdict on a port mapping that takes the packets of another pod, or `None` if it doesn't. A Go
/// plugin's DEL of a pod of ours can fail half-way and leave our port mapping. The next pod with the port, made by the
/// Go plugin, then receives nothing. The mapping may be removed if all of this holds:
///
/// - neither a link nor a good entry shows that its pod lives, and the runtime doesn't list the pod;
/// - the other pod lives, and an interface has its address;
/// - no interface has the address that the mapping leads to, and nothing answers for it. A virtual machine in a pod can
///   have an address that no interface has.
fn takes_packets_of_another(node: &Node, trace: &Trace) -> Result<Option<Verdict>, Error> {
    let OwnerHint::Comment(comment) = &trace.named else { return Ok(None) };
    let is_known = survey::tag(comment).is_none_or(|tag| node.lives_surely(tag));
    if is_known || node.is_listed_in(comment) {
        return Ok(None);
    }
    let Some(Contested { port, address, container }) = trace.contested_port(&mut Nft::new())? else {
        return Ok(None);
    };
    let mut others = node.entries.iter().filter(|known| known.entry.container_id == container);
    let other_lives = others.any(|known| {
        let mut addrs = known.addrs().into_iter().filter(|ip| ip.is_ipv4() == address.is_ipv4());
        known.verdict == Verdict::Lives && addrs.any(|ip| node.place_of(ip).is_some())
    });
    if !other_lives || node.place_of(address).is_some() {
        return Ok(None);
    }
    let why = format!(
        "it takes the packets for port {port} from container {container}, and leads them to {address}, which no \
         interface that was read has"
    );
    Ok(match answers(address)? {
        Answer::Seen => None,
        Answer::Silence => Some(node.unless_blind(format!("{why}, and nothing answers there"))),
        Answer::NoWay => Some(node.unless_blind(format!("{why}, and no link with a carrier leads there"))),
        Answer::Unasked => {
            Some(Verdict::Doubt(format!("{why}; whether something answers there can't be asked")))
        }
    })
}

/// What is known of a neighbour with an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Seen,
    /// Nothing has answered in time.
    Silence,
    /// No route, or no link with a carrier, leads to the address, so no neighbour can answer.
    NoWay,
    /// It can't be asked: on a link without a MAC, or because of an IPv6 entry that was written by hand.
    Unasked,
}

/// Asks whether a neighbour of this host has the address: by ARP for IPv4, and by the kernel's neighbor solicitations
/// for IPv6.
fn answers(address: IpAddr) -> Result<Answer, Error> {
    let mut host = Netlink::open()?;
    let Some(index) = host.link_towards(address)? else { return Ok(Answer::NoWay) };
    let link = host.link_at(index)?;
    if !link.carrier {
        return Ok(Answer::NoWay);
    }
    let Some(mac) = link.mac else { return Ok(Answer::Unasked) };
    match address {
        IpAddr::V4(address) => match Asking::open(index, mac, vec![address])?.probe_with(&PAUSES) {
            Ok(()) => Ok(Answer::Silence),
            Err(err) if err.is(Errno::EADDRINUSE) => Ok(Answer::Seen),
            Err(err) => Err(err.into()),
        },
        IpAddr::V6(_) => answers_solicitations(&mut host, &link, address),
    }
}

/// Asks whether something on the link answers the kernel's neighbor solicitations for an IPv6 address. An entry that was
/// written by hand keeps the kernel from asking.
///
/// An entry that is there may name a machine that had the address before, so it goes first. That is a change of the
/// kernel's neighbour cache, which the kernel makes good with the next packet.
fn answers_solicitations(host: &mut Netlink, link: &Link, address: IpAddr) -> Result<Answer, Error> {
    if let Some(entry) = host.neighbour_entry(link.index, address)? {
        if entry.is_permanent() {
            return Ok(Answer::Unasked);
        }
        // The kernel may have removed it meanwhile.
        host.execute(neigh::del(link.index, &link.name, address)).if_present()?;
    }
    host.execute(neigh::resolve(link.index, &link.name, address))?;
    let end = Instant::now() + SOLICITATIONS;
    while Instant::now() < end {
        match host.neighbour_entry(link.index, address)? {
            Some(entry) if entry.is_known() => return Ok(Answer::Seen),
            Some(entry) if entry.is_failed() => return Ok(Answer::Silence),
            _ => sleep(PAUSE),
        }
    }
    Ok(Answer::Silence)
}

/// Judges a packet rule by its comment, container, link or address, whichever it names.
pub fn judge(node: &Node, trace: &Trace) -> Verdict {
    match &trace.named {
        OwnerHint::Comment(comment) => match survey::tag(comment) {
            // An element without a tag in our table is another program's.
            None => Verdict::Lives,
            Some(tag) if node.has_tag(tag) || node.is_listed_in(comment) => Verdict::Lives,
            Some(_) => {
                node.by_addresses(&trace.addrs, "nothing that was read shows that its pod lives".to_owned())
            }
        },
        OwnerHint::Container { id, .. } if node.has_container(id) || node.is_listed(id, true) => {
            Verdict::Lives
        }
        OwnerHint::Container { .. } => node.by_container(
            &trace.addrs,
            "no record and no lease that was read shows that its container lives".to_owned(),
        ),
        OwnerHint::Link(name) => by_link(node, trace, name),
        // The rules name no owner, and serve any pod with the address.
        OwnerHint::Nothing => {
            if trace.addrs.iter().any(|ip| node.is_held(*ip) || node.place_of(*ip).is_some()) {
                Verdict::Lives
            } else {
                node.unless_blind("no pod that can be seen from here has the address".to_owned())
            }
        }
    }
}

/// Judges a rule that names a link. The link of that name must exist and must not carry another owner's alias.
fn by_link(node: &Node, trace: &Trace, name: &str) -> Verdict {
    let Some(link) = node.links.iter().find(|link| link.name == name) else {
        if trace.comment().is_some_and(|comment| node.is_listed_in(comment)) {
            return Verdict::Lives;
        }
        return Verdict::Orphan(if name.is_empty() {
            "its port is not there any more".to_owned()
        } else {
            format!("there is no link {name} any more")
        });
    };
    if trace.is_of_bridge() {
        return by_isolated_interface(node, link);
    }
    match (trace.comment().and_then(survey::tag), survey::tag(&link.alias)) {
        (Some(tag), Some(owner)) if tag == owner => Verdict::Lives,
        (Some(_), Some(_)) => Verdict::Orphan(format!("{name} belongs to another pod now")),
        (Some(tag), None) if node.has_tag(tag) => Verdict::Lives,
        (Some(_), None) => Verdict::Doubt(format!("there is a link {name}, and nothing tells whose it is")),
        (None, _) => Verdict::Lives,
    }
}

/// The verdict on an `ingressPolicy`. It is for a bridge, for the gateway of a VLAN (BRIDGE.VLAN), or with ptp for the
/// host's end of one pod. Only a bridge can be without pods while its link is there.
fn by_isolated_interface(node: &Node, link: &Link) -> Verdict {
    let bridge = if link.kind == "bridge" {
        link
    } else {
        let of_vlan = link.name.rsplit_once('.').filter(|(_, vlan)| vlan.parse::<u16>().is_ok());
        let bridge = of_vlan.and_then(|(bridge, _)| {
            node.links.iter().find(|link| link.name == bridge && link.kind == "bridge")
        });
        let Some(bridge) = bridge else { return Verdict::Lives };
        bridge
    };
    let mut ports = node.links.iter().filter(|port| port.master == Some(bridge.index));
    // The pair of a VLAN's gateway has both ends in the host's namespace.
    if ports.any(|port| port.kind != "veth" || port.peer_netnsid.is_some()) {
        Verdict::Lives
    } else {
        Verdict::Orphan(format!("the bridge {} has no ports that lead to pods", bridge.name))
    }
}
