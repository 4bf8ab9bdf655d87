//! The rules of a pod that is handed over. They are read from its elements.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use cnimble_cni::{Error, Owner};
use cnimble_netlink::nft::Nft;

use crate::elements::Placed;
use crate::masquerade::Translation;
use crate::portmap::{Forward, hand_over as ports};
use crate::survey::{PARTS, Part, Trace};
use crate::xtables::FAMILIES;
use crate::{command, forward, masquerade};

/// The bit of the packet mark that portmap uses if `markMasqBit` is not configured.
const DEFAULT_MARK_BIT: u8 = 13;

/// Settings that are in the pod's configuration but not in its elements.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// The key `backend` of portmap.
    pub portmap_backend: Option<String>,
    /// The key `markMasqBit` of portmap.
    pub mark_bit: Option<u8>,
    /// The key `iptablesAdminChainName` of firewall.
    pub admin_chain: Option<String>,
}

/// A living attachment with elements in our tables.
#[derive(Debug)]
pub struct Pod {
    pub owner: Owner,
    settings: Settings,
    /// The attachment's elements with their parts.
    pub(super) elements: Vec<(Part, Placed)>,
}

impl Pod {
    /// Takes the elements among the traces; others are left out. All must belong to `owner`.
    pub fn new<'t>(owner: Owner, settings: Settings, traces: impl IntoIterator<Item = &'t Trace>) -> Self {
        let elements = traces.into_iter().filter_map(Trace::element);
        Pod { owner, settings, elements: elements.map(|(part, placed)| (part, placed.clone())).collect() }
    }

    /// Returns the elements of one part.
    pub(super) fn elements_of(&self, part: Part) -> impl Iterator<Item = &Placed> {
        self.elements.iter().filter(move |(of, _)| *of == part).map(|(_, placed)| placed)
    }

    /// Returns the masqueraded addresses, with the prefix length of their network.
    pub(super) fn masqueraded(&self) -> Vec<IpNetwork> {
        self.elements_of(Part::Masquerade).filter_map(masquerade::nftables::address).collect()
    }

    /// Returns the exceptions of masquerading, of both families.
    pub(super) fn translation(&self) -> Translation {
        let read = self.elements_of(Part::Masquerade).filter_map(masquerade::nftables::translation);
        read.fold(Translation::default(), Translation::join)
    }

    /// Returns the port mappings, for each address of the pod.
    pub(super) fn mapped(&self) -> Vec<Forward> {
        let elements: Vec<&Placed> = self.elements_of(Part::Portmap).collect();
        ports::read(&elements, self.settings.mark_bit.unwrap_or(DEFAULT_MARK_BIT))
    }

    /// Returns the addresses whose traffic the plugin firewall accepts.
    pub(super) fn forwarded(&self) -> Vec<IpAddr> {
        self.elements_of(Part::Forward).filter_map(forward::nftables::address).collect()
    }

    /// Returns the chain of iptables with the administrator's rules.
    pub(super) fn admin_chain(&self) -> &str {
        self.settings.admin_chain.as_deref().unwrap_or(forward::table::ADMIN)
    }

    /// Returns what is handed over, for people.
    pub fn summary(&self) -> Vec<String> {
        let mut parts = Vec::new();
        let masqueraded = self.masqueraded();
        if !masqueraded.is_empty() {
            let addrs: Vec<String> = masqueraded.iter().map(|addr| addr.ip().to_string()).collect();
            parts.push(format!("masquerading of {}", addrs.join(" and ")));
        }
        let mut shown: Vec<String> = Vec::new();
        for mapping in self.mapped().into_iter().flat_map(|forward| forward.mappings) {
            let text = mapping.to_string();
            if !shown.contains(&text) {
                shown.push(text);
            }
        }
        if !shown.is_empty() {
            parts.push(format!("ports {}", shown.join(" ")));
        }
        if self.has(Part::Forward) {
            parts.push("forwarding".to_owned());
        }
        if self.has(Part::Spoof) {
            parts.push("the MAC check".to_owned());
        }
        parts
    }

    /// Returns whether the pod has elements of the part.
    fn has(&self, part: Part) -> bool {
        self.elements_of(part).next().is_some()
    }

    /// Returns whether the pod has elements of some part, and none of them is among `present`.
    pub(super) fn has_lost_a_part(&self, present: &[(Part, Placed)]) -> bool {
        PARTS.into_iter().any(|part| {
            let mut of_part = self.elements.iter().filter(|(of, _)| *of == part).peekable();
            of_part.peek().is_some() && !of_part.any(|element| present.contains(element))
        })
    }

    /// Returns why the pod's rules can't be handed over, or `None` if they can.
    pub fn problem(&self, nft: &mut Nft) -> Result<Option<String>, Error> {
        if self.has(Part::Portmap) && self.settings.portmap_backend.as_deref() == Some("nftables") {
            return Ok(Some(
                "portmap is configured with \"backend\": \"nftables\", and then the Go plugin removes nothing of iptables"
                    .to_owned(),
            ));
        }
        if self.elements_of(Part::Portmap).any(ports::has_conditions) {
            return Ok(Some("its ports have conditions in the language of nft".to_owned()));
        }
        if self.has(Part::Forward) && forward::firewalld::is_running(nft)? {
            return Ok(Some(
                "firewalld is running, and then the Go plugin firewall removes nothing else".to_owned(),
            ));
        }
        if self.has(Part::Spoof) && command::find_program("nft").is_none() {
            return Ok(Some(
                "the Go plugins need the command nft for macspoofchk, and it is not installed".to_owned(),
            ));
        }
        if self.has(Part::Masquerade) || self.has(Part::Portmap) || self.has(Part::Forward) {
            return Ok(without_iptables());
        }
        Ok(None)
    }
}

/// Returns a sentence about a missing command of iptables, or `None` if all are installed.
pub(super) fn without_iptables() -> Option<String> {
    let tools =
        FAMILIES.into_iter().flat_map(|family| ["restore", "save"].map(|of| command::tool(family, of)));
    let missing = tools.into_iter().find(|name| command::find_program(name).is_none())?;
    Some(format!("the command {missing} is not installed, by which the Go plugins' rules are written"))
}
