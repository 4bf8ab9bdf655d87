//! A plan: the networks of a node and the operations on it. Every operation is valid in every state, so any subset of a
//! plan is also a plan.

use std::collections::BTreeSet;
use std::fmt;

use proptest::prelude::*;
use serde::{Deserialize, Serialize};

/// The number of pods on a node at a time.
pub(crate) const PODS: u8 = 4;

/// The number of host ports that pods request.
const PORTS: u8 = 3;

/// The networks of a node, and the operations on it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) nets: Vec<Net>,
    pub(crate) ops: Vec<Op>,
}

/// The backend of rules, for configurations that offer a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Backend {
    Nftables,
    Iptables,
}

impl Backend {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Backend::Nftables => "nftables",
            Backend::Iptables => "iptables",
        }
    }
}

/// A network's configuration. It does not change, as an edit changes [`Edition`](crate::node::Edition).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Net {
    /// Use ptp instead of bridge.
    pub(crate) ptp: bool,
    pub(crate) v4: bool,
    pub(crate) v6: bool,
    /// The number of pod addresses of each family.
    pub(crate) room: u8,
    pub(crate) masq: Option<Backend>,
    pub(crate) gateway: bool,
    pub(crate) force_address: bool,
    pub(crate) spoof: bool,
    pub(crate) isolated: bool,
    pub(crate) goes: bool,
    pub(crate) ports: Option<Backend>,
    pub(crate) firewall: Option<(Backend, bool)>,
    pub(crate) shaped: bool,
    pub(crate) tuned: bool,
    pub(crate) sbr: bool,
}

/// The set of plugins that runs a verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Set {
    Ours,
    Go,
}

/// A verb that is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Victim {
    Add,
    Del,
    Gc,
}

/// An operation. `net` and `pod` are taken modulo the number of networks and pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Op {
    Add {
        net: u8,
        pod: u8,
        port: u8,
        by: Set,
    },
    /// A DEL, with the result of ADD or without.
    Del {
        net: u8,
        pod: u8,
        told: bool,
        by: Set,
    },
    Check {
        net: u8,
        pod: u8,
    },
    /// A GC. The list may leave out a living pod.
    Gc {
        net: u8,
        without: Option<u8>,
    },
    Status {
        net: u8,
    },
    /// The pod's namespace is removed, and a new pod takes its place.
    Die {
        pod: u8,
    },
    /// The kernel's state is lost, and files stay.
    Reboot,
    /// The command `nft flush ruleset`.
    Flush,
    /// The administrator renames the host's end.
    Rename {
        net: u8,
        pod: u8,
    },
    /// The administrator removes the host's end.
    Unplug {
        net: u8,
        pod: u8,
    },
    /// The configuration gets another subnet, or `ipMasq` is switched.
    Edit {
        net: u8,
        subnet: bool,
        masq: bool,
    },
    /// SIGKILL at the n-th system call of one of the plugins.
    Kill {
        verb: Victim,
        net: u8,
        pod: u8,
        port: u8,
        plugin: u8,
        call: u16,
    },
    /// Two concurrent verbs of different pods.
    Both(Box<Op>, Box<Op>),
    /// `cnimble doctor`, which must not report anything of living pods.
    Doctor,
}

impl Plan {
    /// Returns the plan, limited to the features of the Go plugins.
    pub(crate) fn for_go(mut self) -> Self {
        for net in &mut self.nets {
            net.firewall = net.firewall.map(|(_, policy)| (Backend::Iptables, policy));
            // With the other backend, their DEL also calls iptables and fails on its output (1.8.9).
            net.masq = net.masq.map(|_| Backend::Iptables);
        }
        for op in &mut self.ops {
            if let Op::Edit { masq, .. } = op {
                *masq = false;
            }
        }
        self
    }
}

impl Op {
    /// Returns the pods that the operation may change.
    pub(crate) fn pods(&self) -> BTreeSet<usize> {
        match self {
            Op::Add { pod, .. } | Op::Del { pod, .. } | Op::Kill { pod, .. } => {
                BTreeSet::from([usize::from(*pod)])
            }
            // The second may be moved to the next pod.
            Op::Both(..) => (0..usize::from(PODS)).collect(),
            _ => BTreeSet::new(),
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

fn backend() -> impl Strategy<Value = Backend> {
    prop_oneof![3 => Just(Backend::Nftables), 1 => Just(Backend::Iptables)]
}

fn sometimes<T: Strategy>(percent: u32, strategy: T) -> impl Strategy<Value = Option<T::Value>> {
    proptest::option::weighted(f64::from(percent) / 100.0, strategy)
}

fn chance(percent: u32) -> impl Strategy<Value = bool> {
    proptest::bool::weighted(f64::from(percent) / 100.0)
}

fn net() -> impl Strategy<Value = Net> {
    let main = (chance(30), 0..4u8, 1..5u8, sometimes(65, backend()), chance(75), chance(30));
    let bridge = (chance(30), chance(15), chance(20));
    let chain = (
        sometimes(50, backend()),
        sometimes(40, (backend(), any::<bool>())),
        chance(20),
        chance(25),
        chance(20),
    );
    (main, bridge, chain).prop_map(|(main, bridge, chain)| {
        let (ptp, family, room, masq, gateway, force_address) = main;
        let (spoof, isolated, goes) = bridge;
        let (ports, firewall, shaped, tuned, sbr) = chain;
        Net {
            ptp,
            v4: family != 1,
            v6: family == 1 || family == 2,
            room,
            masq,
            gateway,
            force_address,
            spoof: spoof && !ptp,
            isolated: isolated && !ptp,
            goes: goes && !ptp,
            // A mapping leads to an address that the node has a route to.
            ports: ports.filter(|_| gateway || ptp),
            firewall,
            shaped,
            tuned,
            sbr: sbr && (gateway || ptp),
        }
    })
}

/// Returns an operation that can run at the same time as another.
fn verb(go: bool) -> impl Strategy<Value = Op> {
    let by = move || {
        proptest::bool::weighted(if go { 0.25 } else { 0.0 })
            .prop_map(|go| if go { Set::Go } else { Set::Ours })
    };
    prop_oneof![
        4 => (0..8u8, 0..PODS, 0..PORTS * 2, by())
            .prop_map(|(net, pod, port, by)| Op::Add { net, pod, port, by }),
        2 => (0..8u8, 0..PODS, any::<bool>(), by())
            .prop_map(|(net, pod, told, by)| Op::Del { net, pod, told, by }),
    ]
}

fn op(go: bool) -> impl Strategy<Value = Op> {
    let at = || (0..8u8, 0..PODS);
    let victim = prop_oneof![3 => Just(Victim::Add), 2 => Just(Victim::Del), 1 => Just(Victim::Gc)];
    prop_oneof![
        20 => verb(go),
        3 => at().prop_map(|(net, pod)| Op::Check { net, pod }),
        3 => (0..8u8, sometimes(30, 0..PODS)).prop_map(|(net, without)| Op::Gc { net, without }),
        1 => (0..8u8).prop_map(|net| Op::Status { net }),
        3 => (0..PODS).prop_map(|pod| Op::Die { pod }),
        1 => Just(Op::Reboot),
        1 => Just(Op::Flush),
        1 => at().prop_map(|(net, pod)| Op::Rename { net, pod }),
        1 => at().prop_map(|(net, pod)| Op::Unplug { net, pod }),
        1 => (0..8u8, any::<bool>(), any::<bool>()).prop_map(|(net, subnet, masq)| Op::Edit { net, subnet, masq }),
        4 => (victim, at(), 0..PORTS * 2, 0..6u8, 0..260u16)
            .prop_map(|(verb, (net, pod), port, plugin, call)| Op::Kill { verb, net, pod, port, plugin, call }),
        3 => (verb(go), verb(go)).prop_map(|(one, two)| Op::Both(Box::new(one), Box::new(two))),
        1 => Just(Op::Doctor),
    ]
}

/// Returns any plan. With `go` the Go plugins take part, and with `long` it may take a minute.
pub(crate) fn plans(go: bool, long: bool) -> impl Strategy<Value = Plan> {
    let nets = proptest::collection::vec(net(), 1..4);
    let ops = prop_oneof![
        3 => proptest::collection::vec(op(go), 5..40),
        u32::from(long) => proptest::collection::vec(op(go), 40..200),
    ];
    (nets, ops).prop_map(|(nets, ops)| Plan { nets, ops })
}

/// Returns the host port for a number, or `None` for a pod without a port.
pub(crate) fn port(number: u8) -> Option<u16> {
    (number < PORTS).then(|| 8000 + u16::from(number))
}

/// Returns all ports that pods request.
pub(crate) fn ports() -> impl Iterator<Item = u16> {
    (0..PORTS).filter_map(port)
}
