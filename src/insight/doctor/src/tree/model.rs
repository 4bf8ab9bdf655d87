//! The model of a picture.

use serde::Serialize;

use cnimble_liveness::named::short_name;
use cnimble_rules::listing::Effect;

/// The networks of a node with their pods.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tree {
    pub networks: Vec<Network>,
    /// Rules whose owner has no other trace, as texts.
    pub strays: Vec<String>,
    /// Unreadable parts, with the reasons.
    pub problems: Vec<String>,
    /// What the doctor has not looked at or not compared, with the reasons. It is empty without a look of the doctor.
    pub not_checked: Vec<String>,
}

/// A network, and where its pods are.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    pub name: String,
    /// The version in its configuration. Without a file it is that of its pods' ADD.
    pub cni_version: Option<String>,
    pub plugins: Vec<String>,
    /// Bridges and masters by name, then all others.
    pub places: Vec<PodGroup>,
}

/// The pods on one bridge or master of the host, or those without either.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodGroup {
    /// The bridge or the master. It is `None` for pods that the host routes, or that have no link on the host.
    pub link: Option<HostLink>,
    /// The policy of the bridge for incoming packets.
    pub policy: Option<String>,
    pub pods: Vec<Pod>,
    /// Ports of the bridge that belong to no pod.
    pub others: Vec<HostLink>,
}

/// A link of the host.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostLink {
    pub name: String,
    /// The kind, such as `bridge` or `veth`. It is empty for hardware.
    pub kind: String,
    pub mac: Option<String>,
    pub mtu: u32,
    pub up: bool,
    /// Addresses with prefix lengths, without IPv6 link-local ones.
    pub addresses: Vec<String>,
    /// The host's routes over this link, without those that the kernel adds for its addresses. The list is empty for a
    /// port of a bridge.
    pub routes: Vec<String>,
    /// Its settings as a port of a bridge. It is `None` if it is none.
    pub port: Option<Port>,
}

/// The settings of a bridge's port.
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
    /// The container's ID. It may be cut if only a link's alias tells it.
    pub container_id: String,
    pub ifname: String,
    /// `NAMESPACE/NAME`, if a kubelet-like runtime has said so.
    pub name: Option<String>,
    pub netns: Option<String>,
    /// The host's end of the pod's pair.
    pub link: Option<HostLink>,
    /// The interface in the pod. It is `None` if it was not found, as `problem` says.
    pub interface: Option<PodInterface>,
    /// The addresses with prefix lengths. Without an interface these are the ones that ADD returned.
    pub addresses: Vec<String>,
    /// The routes over the interface, without those that the kernel adds for its addresses.
    pub routes: Vec<String>,
    pub rules: Vec<Effect>,
    pub state: InterfaceState,
    /// What is wrong with the pod.
    pub problem: Option<String>,
}

/// The state of the interface in the pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum InterfaceState {
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

impl InterfaceState {
    /// Returns the word for people and for JSON.
    pub fn word(self) -> &'static str {
        match self {
            InterfaceState::Up => "up",
            InterfaceState::Down => "down",
            InterfaceState::NoInterface => "no-interface",
            InterfaceState::NoNamespace => "no-namespace",
            InterfaceState::Unknown => "unknown",
        }
    }
}

impl Serialize for InterfaceState {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

/// An interface in a pod.
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
    /// Returns the number of pods in the picture.
    pub fn attachments(&self) -> usize {
        let places = self.networks.iter().flat_map(|network| &network.places);
        places.map(|place| place.pods.len()).sum()
    }

    /// Returns whether the picture shows a fault: of a pod, of rules without a pod, or of something that could not be
    /// read.
    pub fn shows_faults(&self) -> bool {
        let mut pods = self.networks.iter().flat_map(|network| &network.places).flat_map(|place| &place.pods);
        pods.any(|pod| pod.problem.is_some()) || !self.strays.is_empty() || !self.problems.is_empty()
    }

    /// Keeps only this network. Returns false if there is none of this name, and then changes nothing.
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
    /// Returns the name for people: `NAMESPACE/NAME`, or else the container ID or the namespace.
    pub fn title(&self) -> &str {
        self.name.as_deref().unwrap_or_else(|| short_name(&self.container_id, self.netns.as_deref()))
    }

    /// Returns whether the container ID is the pod's, which may be cut.
    pub(super) fn may_have_id(&self, id: &str) -> bool {
        !self.container_id.is_empty() && id.starts_with(&self.container_id)
    }

    /// Returns the effects of the pod's rules as texts.
    pub fn rules_in_words(&self) -> Vec<String> {
        self.rules.iter().map(ToString::to_string).collect()
    }
}
