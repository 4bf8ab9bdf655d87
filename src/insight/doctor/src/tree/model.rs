//! The model of a picture.

use serde::Serialize;

use cnimble_liveness::named::short_name;
use cnimble_rules::listing::Effect;

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tree {
    pub networks: Vec<Network>,
    /// Rules of an owner without any other trace, in words.
    pub strays: Vec<String>,
    /// Unreadable parts, with the reasons.
    pub problems: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    pub name: String,
    /// The version in its configuration, or in that which its pods were added with.
    pub cni_version: Option<String>,
    pub plugins: Vec<String>,
    /// Bridges and masters by name, then all others.
    pub places: Vec<Place>,
}

/// The pods on one bridge or master of the host, or those without either.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Place {
    /// The bridge or the master; `None` for pods with a route each, or none.
    pub link: Option<HostLink>,
    pub policy: Option<String>,
    pub pods: Vec<Pod>,
    /// Ports of the bridge that belong to no pod.
    pub others: Vec<HostLink>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostLink {
    pub name: String,
    /// `bridge`, `veth`, …; empty for hardware.
    pub kind: String,
    pub mac: Option<String>,
    pub mtu: u32,
    pub up: bool,
    /// Addresses with prefix lengths, without IPv6 link-local ones.
    pub addresses: Vec<String>,
    /// The host's routes out of a link that is no port, without the kernel's own (to the network of an address).
    pub routes: Vec<String>,
    pub port: Option<Port>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    pub hairpin: bool,
    pub isolated: bool,
}

/// A container's attachment to the network.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pod {
    /// The container's ID. From a link's alias alone it may be cut.
    pub container_id: String,
    pub ifname: String,
    /// `NAMESPACE/NAME`, if a kubelet-like runtime has said so.
    pub name: Option<String>,
    pub netns: Option<String>,
    pub link: Option<HostLink>,
    /// `None` if the interface isn't there, see `problem`.
    pub interface: Option<PodInterface>,
    /// Addresses with prefix lengths. Without an interface: those that it was given.
    pub addresses: Vec<String>,
    /// Routes out of the interface, without the kernel's own.
    pub routes: Vec<String>,
    pub rules: Vec<Effect>,
    pub state: State,
    pub problem: Option<String>,
}

/// The state of the interface in the pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum State {
    /// The interface is up, and so is its end on the host.
    Up,
    Down,
    /// The namespace has no such interface.
    NoInterface,
    /// The namespace is gone.
    NoNamespace,
    /// The namespace could not be entered, or nothing tells where it is.
    #[default]
    Unknown,
}

impl State {
    /// The word for people and for JSON.
    pub fn word(self) -> &'static str {
        match self {
            State::Up => "up",
            State::Down => "down",
            State::NoInterface => "no-interface",
            State::NoNamespace => "no-namespace",
            State::Unknown => "unknown",
        }
    }
}

impl Serialize for State {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodInterface {
    pub kind: String,
    /// The kind with its settings, `macvlan mode bridge` for example, for a kind that has some.
    pub settings: Option<String>,
    /// The link in the pod that it is made on, if it is one.
    pub on: Option<String>,
    /// The link in the pod that it is a port of: a VRF, a bridge.
    pub port_of: Option<String>,
    /// The device of the host that it is, by its name there.
    pub device: Option<String>,
    pub mac: Option<String>,
    pub mtu: u32,
    pub up: bool,
}

impl Tree {
    pub fn attachments(&self) -> usize {
        let places = self.networks.iter().flat_map(|network| &network.places);
        places.map(|place| place.pods.len()).sum()
    }

    /// Whether the picture shows a fault: of a pod, of rules without a pod, or of something that could not be read.
    pub fn shows_faults(&self) -> bool {
        let mut pods = self.networks.iter().flat_map(|network| &network.places).flat_map(|place| &place.pods);
        pods.any(|pod| pod.problem.is_some()) || !self.strays.is_empty() || !self.problems.is_empty()
    }

    /// Keeps one network. Returns false if there is none of this name, and then changes nothing.
    pub fn keep_network(&mut self, name: &str) -> bool {
        let is_there = self.networks.iter().any(|network| network.name == name);
        if is_there {
            self.networks.retain(|network| network.name == name);
            self.strays.clear();
        }
        is_there
    }

    /// Keeps the pods that are chosen, with their networks and bridges. Other ports of these bridges, and rules without
    /// a pod, are left out.
    pub fn keep_pods(&mut self, chosen: impl Fn(&Pod) -> bool) {
        for network in &mut self.networks {
            for place in &mut network.places {
                place.pods.retain(&chosen);
                place.others.clear();
            }
            network.places.retain(|place| !place.pods.is_empty());
        }
        self.networks.retain(|network| !network.places.is_empty());
        self.strays.clear();
    }
}

impl Pod {
    /// The name that people know.
    pub fn title(&self) -> &str {
        self.name.as_deref().unwrap_or_else(|| short_name(&self.container_id, self.netns.as_deref()))
    }

    pub fn rules_in_words(&self) -> Vec<String> {
        self.rules.iter().map(ToString::to_string).collect()
    }
}
