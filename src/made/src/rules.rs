//! Packet rules of pods: which plugin makes which, whether a pod has lost them, and how they come back.
//!
//! Some plugins may be asked by CHECK, and put their rules back by another ADD, which changes
//! nothing else. The main plugins can't be called twice for a pod: what their keys ask for is looked at and
//! put back here.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde_json::Value;

use cnimble_cni::list::ListEntry;
use cnimble_cni::{CniResult, Error, NetworkList, Owner, Version, json};
use cnimble_netlink::link::{Link, Mac};
use cnimble_netlink::nft::Nft;
use cnimble_rules::hand_over::Settings;
use cnimble_rules::{apart, masquerade, portmap, spoof};

use super::pair;

/// Plugins with the keys `ipMasq`, `macspoofchk` and `portIsolation`, as far as they have them.
const MAIN: [&str; 2] = ["bridge", "ptp"];
const FIREWALL: &str = "firewall";
const PORTMAP: &str = "portmap";

/// How a plugin's rules are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// By what its keys ask for: [`lost`].
    Keys,
    /// By its CHECK; its ADD puts them back, and [`after_add`] has to follow.
    Verbs,
}

/// How the rules of a plugin of a network are looked at; `None` if it has none, or there is no way.
pub fn way(list: &NetworkList, plugin: &ListEntry) -> Option<Way> {
    match plugin.plugin_type.as_str() {
        name if MAIN.contains(&name) => Some(Way::Keys),
        // Before 0.4.0 there was no CHECK, and no result for it.
        FIREWALL | PORTMAP if list.version >= Version::V0_4_0 => Some(Way::Verbs),
        _ => None,
    }
}

/// Completes the repair after a plugin's ADD has put its rules back.
///
/// # Errors
/// Fails if the kernel refuses the request.
pub fn after_add(plugin: &ListEntry, nft: &mut Nft) -> Result<(), Error> {
    if plugin.plugin_type == PORTMAP { portmap::note_links(nft) } else { Ok(()) }
}

/// Rules that a pod has lost.
#[derive(Debug, Clone)]
pub enum Lost {
    /// `ipMasq`
    Masquerade {
        /// The owner.
        owner: Owner,
        /// `ipMasqBackend`
        backend: Option<String>,
        /// The pod's addresses.
        addrs: Vec<IpNetwork>,
    },
    /// `macspoofchk`
    Spoof {
        /// The owner.
        owner: Owner,
        /// The pod's port of its bridge.
        port: String,
        /// The pod's.
        mac: Mac,
    },
    /// `portIsolation`
    Apart {
        /// The owner.
        owner: Owner,
        /// The pod's port of its bridge.
        port: String,
        /// The pod's addresses.
        addrs: Vec<IpAddr>,
    },
}

impl Lost {
    /// Puts them back.
    ///
    /// # Errors
    /// The kernel's, or what iptables printed.
    pub fn put_back(&self, nft: &mut Nft) -> Result<(), Error> {
        match self {
            Lost::Masquerade { owner, backend, addrs } => {
                let backend = masquerade::choose(backend.as_deref(), nft)?;
                masquerade::add(backend, nft, owner, addrs).map(drop)
            }
            Lost::Spoof { owner, port, mac } => spoof::add(nft, owner, port, *mac).map(drop),
            Lost::Apart { owner, port, addrs } => apart::add(nft, owner, port, addrs).map(drop),
        }
    }
}

/// The rules that the keys of a plugin ask for and the pod with this result has lost, each with an error that says so.
pub fn lost(plugin: &ListEntry, owner: &Owner, result: &CniResult, links: &[Link]) -> Vec<(Error, Lost)> {
    let mut nft = Nft::new();
    let mut lost = Vec::new();
    let is = |key: &str| json::get(&plugin.document, key).and_then(Value::as_bool) == Some(true);
    let addrs: Vec<IpNetwork> = result.ips.iter().map(|ip| ip.address).collect();
    let pods: Vec<IpAddr> = addrs.iter().map(IpNetwork::ip).collect();
    if is("portIsolation")
        && !pods.is_empty()
        && let Some((port, _)) = port_and_mac(links, result)
        && let Err(why) = apart::check(&mut nft, owner, &port, &pods)
    {
        lost.push((why, Lost::Apart { owner: owner.clone(), port, addrs: pods }));
    }
    let family = json::get(&plugin.document, "ipMasqFamily").and_then(Value::as_str);
    let families = masquerade::Families::read(family.unwrap_or_default()).unwrap_or_default();
    let addrs = families.of(addrs.into_iter());
    if is("ipMasq")
        && !addrs.is_empty()
        && let Err(why) = masquerade::check(&mut nft, owner, &addrs)
    {
        let backend = json::get(&plugin.document, "ipMasqBackend").and_then(Value::as_str);
        let backend = backend.map(str::to_owned);
        lost.push((why, Lost::Masquerade { owner: owner.clone(), backend, addrs }));
    }
    if is("macspoofchk")
        && let Some((port, mac)) = port_and_mac(links, result)
        && let Err(why) = spoof::check(&mut nft, owner, &port, mac)
    {
        lost.push((why, Lost::Spoof { owner: owner.clone(), port, mac }));
    }
    lost
}

/// The pod's port of its bridge, and the pod's MAC.
fn port_and_mac(links: &[Link], result: &CniResult) -> Option<(String, Mac)> {
    let is_port = |name: &str| {
        links.iter().any(|link| link.name == name && link.kind == pair::KIND && link.master.is_some())
    };
    let port = result.interfaces.iter().find(|of| of.sandbox.is_empty() && is_port(&of.name))?;
    let pod = result.interfaces.iter().find(|of| !of.sandbox.is_empty())?;
    Some((port.name.clone(), Mac::parse(&pod.mac)?))
}

/// The settings in a network's configuration that handing the rules of its pods over to the Go plugins needs.
pub fn settings(list: &NetworkList) -> Settings {
    let mut settings = Settings::default();
    for plugin in &list.plugins {
        let text = |key: &str| {
            let text = json::get(&plugin.document, key).and_then(Value::as_str);
            text.filter(|text| !text.is_empty()).map(str::to_owned)
        };
        match plugin.plugin_type.as_str() {
            PORTMAP => {
                let bit = json::get(&plugin.document, "markMasqBit").and_then(Value::as_u64);
                settings.portmap_backend = text("backend");
                settings.mark_bit = bit.and_then(|bit| u8::try_from(bit).ok()).filter(|bit| *bit < 32);
            }
            FIREWALL => settings.admin_chain = text("iptablesAdminChainName"),
            _ => {}
        }
    }
    settings
}
