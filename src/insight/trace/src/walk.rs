//! Walks along the stations in the order in which the packet meets them. The walk ends at the first station that stops
//! the packet, because the later ones never see it.

use cnimble_liveness::named::Records;
use cnimble_netlink::addr::Addr;
use cnimble_netlink::link::Link;
use cnimble_netlink::nft::{DeviceChain, Nft};
use cnimble_netlink::xfrm::IpsecPolicy;
use cnimble_netlink::{Error, NetNs, Netlink};
use cnimble_rules::drops::ReadTables;
use cnimble_rules::forward::ForwardChain;
use cnimble_rules::nat;

use super::flow::Flow;
use super::programs::{bounded, in_words, on_link};
use super::station::{Station, Verdict, Way};

/// Why a walk ends before the receiver.
#[derive(Debug)]
pub(crate) enum Halt {
    /// The last station stops the packet, or cannot be known.
    Ended,
    Failed(Error),
}

impl From<Error> for Halt {
    fn from(err: Error) -> Self {
        Halt::Failed(err)
    }
}

/// The result of a step of a walk. An error ends the walk.
pub(crate) type Step<T> = Result<T, Halt>;

/// The name of the host among the places of stations.
pub(crate) const HOST: &str = "host";

/// A walk in progress: the node, and the stations so far.
pub(crate) struct Walk<'a> {
    pub(crate) host_ns: NetNs,
    pub(crate) host: Netlink,
    pub(crate) nft: Nft,
    pub(crate) tables: ReadTables,
    /// The chains that drop all that pods send, and those that drop it only without a plugin's rules. It is `None` until
    /// they have been read.
    pub(crate) closed: Option<[Vec<ForwardChain>; 2]>,
    /// The IPsec policies. It is `None` until they have been read.
    pub(crate) ipsec: Option<Vec<IpsecPolicy>>,
    /// The chains on links. It is `None` until they have been read.
    pub(crate) device_chains: Option<Vec<DeviceChain>>,
    /// The NAT rules of others that have been read.
    pub(crate) nat: nat::Tables,
    pub(crate) records: &'a Records<'a>,
    /// The host's own addresses, each with the index of its link.
    pub(crate) own: Vec<(u32, Addr)>,
    /// The rule that kept the probe from connection tracking. It is `None` if none did, or without a probe.
    pub(crate) untracked: Option<String>,
    /// Whether a packet was sent a moment ago, so that the kernel has asked for each neighbour on its way.
    pub(crate) probed: bool,
    /// The direction of the packet that is followed now.
    pub(crate) way: Way,
    pub(crate) stations: Vec<Station>,
}

impl<'a> Walk<'a> {
    /// Begins a walk. The calling thread is in the host's network namespace.
    pub(crate) fn new(records: &'a Records<'a>) -> Result<Self, Error> {
        let mut host = Netlink::open()?;
        let own = host.addrs_with_links()?;
        Ok(Walk {
            host_ns: NetNs::current()?,
            host,
            nft: Nft::new(),
            tables: ReadTables::default(),
            closed: None,
            ipsec: None,
            device_chains: None,
            nat: nat::Tables::default(),
            records,
            own,
            untracked: None,
            probed: false,
            way: Way::Out,
            stations: Vec::new(),
        })
    }

    /// Begins again after a probe. The packet rules are not read a second time, because that is most of the work where
    /// there are thousands.
    pub(crate) fn begin_again(&mut self) {
        self.probed = true;
        self.way = Way::Out;
        self.stations.clear();
    }

    /// Adds a station that lets the packet pass.
    pub(crate) fn passes(&mut self, place: &str, name: &'static str, text: impl Into<String>) {
        self.stations.push(Station::new(self.way, place, name, Verdict::Ok, text));
    }

    /// Adds a station of which it is unknown whether the packet passes.
    pub(crate) fn unknown(&mut self, place: &str, name: &'static str, text: impl Into<String>) {
        self.stations.push(Station::new(self.way, place, name, Verdict::Unknown, text));
    }

    /// Adds a station that stops the packet. Returns the end of the walk.
    pub(crate) fn stops(&mut self, place: &str, name: &'static str, text: impl Into<String>) -> Halt {
        self.stations.push(Station::new(self.way, place, name, Verdict::Stops, text));
        Halt::Ended
    }

    /// Adds a station that stops the packet. `remedy` is a command that shows or repairs the cause. Returns the end of
    /// the walk.
    pub(crate) fn stops_until(
        &mut self,
        place: &str,
        name: &'static str,
        text: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Halt {
        self.stations.push(Station::new(self.way, place, name, Verdict::Stops, text).remedy(remedy));
        Halt::Ended
    }

    /// Adds the station of everything that is not on this node.
    pub(crate) fn report_network(&mut self, link: &str, flow: &Flow) {
        let text = format!("{} is not on this node: nothing behind {link} was looked at", flow.to);
        self.unknown("beyond", "network", text);
    }

    /// Returns the link of the host with this index.
    pub(crate) fn host_link(&mut self, index: u32) -> Step<Link> {
        Ok(self.host.link_at(index)?)
    }

    /// Returns the VRF in which packets that arrive at the link are routed. Returns `None` if it is in none.
    pub(crate) fn vrf_of(&mut self, link: &Link) -> Step<Option<Link>> {
        let Some(master) = link.master else { return Ok(None) };
        let master = self.host_link(master)?;
        Ok((master.kind == "vrf").then_some(master))
    }

    /// Checks that a link of the host is up and has a carrier. It also reports the tc programs on it.
    pub(crate) fn check_host_link(&mut self, link: &Link) -> Step<()> {
        match link_fault(link) {
            None => {
                let programs = self.programs_on(link)?;
                let text = format!("{} is up, MTU {}{}", link.name, link.mtu, in_words(&programs));
                let station = Station::new(self.way, HOST, "link", Verdict::Ok, text);
                let station = station.tapped(None, link.index);
                self.stations.push(Station { programs: on_link(&link.name, programs), ..station });
                Ok(())
            }
            Some(fault) => {
                let mut station = Station::new(self.way, HOST, "link", Verdict::Stops, fault);
                if !link.up {
                    station = station.remedy(format!("ip link set {} up", link.name));
                }
                self.stations.push(station.tapped(None, link.index));
                Err(Halt::Ended)
            }
        }
    }
}

/// Returns why no packet passes a link. It returns `None` if it is up and has a carrier.
pub(crate) fn link_fault(link: &Link) -> Option<String> {
    if !link.up {
        Some(format!("{} is down", link.name))
    } else if !link.carrier {
        let why = match link.kind.as_str() {
            "veth" => ": its other end is down",
            // Hardware has no kind.
            "" => ": its other end is down, or no cable is in it",
            _ => "",
        };
        Some(format!("{} is up and has no carrier{why}", link.name))
    } else {
        None
    }
}

/// Returns the text about links that are down, as the end of a sentence about a missing route. When a link goes down,
/// the kernel removes its routes, but not its IPv4 addresses.
pub(crate) fn down_links(net: &mut Netlink) -> Result<String, Error> {
    let mut indexes: Vec<u32> = net.addrs_with_links()?.into_iter().map(|(index, _)| index).collect();
    indexes.sort_unstable();
    indexes.dedup();
    let mut names = Vec::new();
    for index in indexes {
        let link = net.link_at(index)?;
        if !link.up {
            names.push(link.name);
        }
    }
    Ok(match bounded(names).as_slice() {
        [] => String::new(),
        [name] => format!(", and {name} is down"),
        names => format!(", and {} are down", names.join(" and ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bridge or a bond without a working port has neither another end nor a cable.
    #[test]
    fn only_a_link_with_another_end_or_a_cable_is_said_to_have_one() {
        let fault = |kind: &str| {
            let link = Link { name: "l0".to_owned(), kind: kind.into(), up: true, ..Link::default() };
            link_fault(&link).unwrap()
        };
        assert_eq!(fault("bridge"), "l0 is up and has no carrier");
        assert_eq!(fault("veth"), "l0 is up and has no carrier: its other end is down");
        assert_eq!(fault(""), "l0 is up and has no carrier: its other end is down, or no cable is in it");
    }
}
