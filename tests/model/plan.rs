//! A plan: the networks of a node, and what happens on it. Every operation means something in every state, so
//! that what is left of a plan when some are taken out is a plan, too.

use std::collections::BTreeSet;
use std::fmt;

use proptest::prelude::*;
use serde::{Deserialize, Serialize};

/// Pods that a node has at a time.
pub(crate) const PODS: u8 = 4;

/// Ports of the node that pods ask for.
const PORTS: u8 = 3;

/// Networks and operations.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) nets: Vec<Net>,
    pub(crate) ops: Vec<Op>,
}

/// Whose rules are made, where the configuration may choose.
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

/// A network's configuration. What is written here stays; an edit changes [`Edition`](crate::node::Edition).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Net {
    /// ptp instead of bridge.
    pub(crate) ptp: bool,
    pub(crate) v4: bool,
    pub(crate) v6: bool,
    /// Addresses of each family for pods.
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

/// Whose plugins do it.
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

/// What happens. `net` and `pod` are numbers, taken modulo what there is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Op {
    Add {
        net: u8,
        pod: u8,
        port: u8,
        by: Set,
    },
    /// With the result of ADD, or without.
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
    /// The list leaves out a pod that lives.
    Gc {
        net: u8,
        without: Option<u8>,
    },
    Status {
        net: u8,
    },
    /// The pod's namespace is removed; its place is taken by a new pod.
    Die {
        pod: u8,
    },
    /// All of the kernel's state goes, files stay.
    Reboot,
    /// `nft flush ruleset`.
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
    /// The configuration gets another subnet, or `ipMasq` switched.
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
    /// Two verbs at once, of different pods.
    Both(Box<Op>, Box<Op>),
    /// `cnimble doctor`: it must find nothing of what lives.
    Doctor,
}

impl Plan {
    /// What the Go plugins can do of it.
    pub(crate) fn for_go(mut self) -> Self {
        for net in &mut self.nets {
            net.firewall = net.firewall.map(|(_, policy)| (Backend::Iptables, policy));
            // Where it is the other, their DEL asks iptables, too, and fails on what that says (1.8.9).
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
    /// The pods that it may change.
    pub(crate) fn pods(&self) -> BTreeSet<usize> {
        match self {
            Op::Add { pod, .. } | Op::Del { pod, .. } | Op::Kill { pod, .. } => {
                BTreeSet::from([usize::from(*pod)])
            }
            // The second may go to the next pod.
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
            // A mapping leads to an address that the node has a way to.
            ports: ports.filter(|_| gateway || ptp),
            firewall,
            shaped,
            tuned,
            sbr: sbr && (gateway || ptp),
        }
    })
}

/// What can be done at the same time as another.
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

/// Any plan. `go`: whether the Go plugins take part; `long`: whether it may take a minute.
pub(crate) fn plans(go: bool, long: bool) -> impl Strategy<Value = Plan> {
    let nets = proptest::collection::vec(net(), 1..4);
    let ops = prop_oneof![
        3 => proptest::collection::vec(op(go), 5..40),
        u32::from(long) => proptest::collection::vec(op(go), 40..200),
    ];
    (nets, ops).prop_map(|(nets, ops)| Plan { nets, ops })
}

/// The port of the host behind a number, if it is one of a pod that asks for a port.
pub(crate) fn port(number: u8) -> Option<u16> {
    (number < PORTS).then(|| 8000 + u16::from(number))
}

/// All ports that pods ask for.
pub(crate) fn ports() -> impl Iterator<Item = u16> {
    (0..PORTS).filter_map(port)
}
