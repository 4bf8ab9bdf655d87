//! The model of a picture.

use serde::Serialize;

use cnimble_rules::listing::Effect;

/// The networks of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tree {
    /// The networks, sorted by name.
    pub networks: Vec<Network>,
    /// Rules of an owner without any other trace, in words.
    pub strays: Vec<String>,
    /// Unreadable parts of the node, with the reasons.
    pub problems: Vec<String>,
}

/// A network of the node.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    /// The name of the network.
    pub name: String,
    /// The version in its configuration, or in that which its pods were added with.
    pub cni_version: Option<String>,
    /// The plugins of its chain.
    pub plugins: Vec<String>,
    /// The places that join its pods to the host: bridges and masters by name, then all others.
    pub places: Vec<Place>,
}

/// Where pods are joined to the host.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Place {
    /// The bridge, or the master that pods' interfaces are made on; `None` for pods that are routed to one by
    /// one, or not joined at all.
    pub link: Option<HostLink>,
    /// `ingressPolicy` of the bridge.
    pub policy: Option<String>,
    /// The pods, sorted by name.
    pub pods: Vec<Pod>,
    /// Ports of the bridge that belong to no pod: uplinks, and what is not ours.
    pub others: Vec<HostLink>,
}

/// A link of the host.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostLink {
    /// The name of the link.
    pub name: String,
    /// `bridge`, `veth`, …; empty for hardware.
    pub kind: String,
    /// The link's hardware address.
    pub mac: Option<String>,
    /// The MTU in bytes.
    pub mtu: u32,
    /// Whether it has been switched on.
    pub up: bool,
    /// Addresses with prefix lengths, without IPv6 link-local ones.
    pub addresses: Vec<String>,
    /// Routes of the host out of this link, for a link that is no port. The kernel's own
    /// (to the network of an address) aren't among them.
    pub routes: Vec<String>,
    /// How it is set as a port of a bridge, for a port.
    pub port: Option<Port>,
}

/// Flags of a bridge's port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// Frames may go back where they came from.
    pub hairpin: bool,
    /// It reaches only ports that aren't isolated.
    pub isolated: bool,
}

/// A container's attachment to the network.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pod {
    /// The container's ID. From a link's alias alone it may be cut.
    pub container_id: String,
    /// The interface in it.
    pub ifname: String,
    /// `NAMESPACE/NAME`, if a kubelet-like runtime has said so.
    pub name: Option<String>,
    /// The path of its namespace.
    pub netns: Option<String>,
    /// The host's end of its veth pair.
    pub link: Option<HostLink>,
    /// The interface as the kernel has it; `None` if it isn't there, see `problem`.
    pub interface: Option<PodInterface>,
    /// Addresses with prefix lengths. Without an interface: those that it was given.
    pub addresses: Vec<String>,
    /// Routes out of the interface, without the kernel's own.
    pub routes: Vec<String>,
    /// Packet rules of this attachment.
    pub rules: Vec<Effect>,
    /// A problem, such as a missing namespace.
    pub problem: Option<String>,
}

/// An interface in a pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodInterface {
    /// The kind of the link.
    pub kind: String,
    /// The kind with its settings, `macvlan mode bridge` for example, for a kind that has some.
    pub settings: Option<String>,
    /// The link in the pod that it is made on, if it is one.
    pub on: Option<String>,
    /// The link in the pod that it is a port of: a VRF, a bridge.
    pub port_of: Option<String>,
    /// The device of the host that it is, by its name there.
    pub device: Option<String>,
    /// The link's hardware address.
    pub mac: Option<String>,
    /// The MTU in bytes.
    pub mtu: u32,
    /// Whether it has been switched on.
    pub up: bool,
}

impl Tree {
    /// How many attachments there are.
    pub fn attachments(&self) -> usize {
        let places = self.networks.iter().flat_map(|network| &network.places);
        places.map(|place| place.pods.len()).sum()
    }
}

impl Pod {
    /// The title in a picture.
    pub fn title(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.container_id)
    }

    /// Its packet rules in words, one a line.
    pub fn rules_in_words(&self) -> Vec<String> {
        self.rules.iter().map(ToString::to_string).collect()
    }
}
