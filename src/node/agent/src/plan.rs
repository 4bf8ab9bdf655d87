//! Computes the planned state from the nodes of the API server or etcd, and from this host's state. All data is checked
//! before anything is changed. A network is refused if another node has it, or if this host is connected to it. The
//! same holds if it contains an address of a node, of this host or of the API server. A block from etcd must also be
//! part of a subnet that nodes have blocks of.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use cnimble_cni::cidr::overlap;
use cnimble_netlink::route::NewRoute;

use crate::{Node, Nodes};

/// The protocol of the agent's routes (`ip route show proto 203`). None of iproute2's rt_protos has the number.
pub const PROTOCOL: u8 = 203;

/// The state of this host that the plan depends on.
#[derive(Debug, Clone, Default)]
pub struct Host {
    /// The routes of the main table, with the protocol of each.
    pub routes: Vec<(NewRoute, u8)>,
    /// The networks of living pods on this node, if the node now has other networks.
    pub living: Vec<IpNetwork>,
    /// All addresses of this host.
    pub addresses: BTreeSet<IpAddr>,
    /// Addresses that no pod may have, with a description of each.
    pub reserved: BTreeMap<IpAddr, &'static str>,
    /// The subnets of which nodes own blocks and single addresses. The list is empty if each node has podCIDRs.
    pub shared: Vec<IpNetwork>,
    /// The index of the bridge of pods with addresses of these subnets. It is `None` if there is no such bridge.
    pub bridge: Option<u32>,
}

impl Host {
    /// Returns what a network of a node is called in messages.
    fn noun(&self) -> &'static str {
        if self.shared.is_empty() { "podCIDR" } else { "block" }
    }

    /// Returns why no node may have the network: it contains an address of this host or of the API server. It returns
    /// `None` if it contains none.
    fn reserves(&self, cidr: IpNetwork) -> Option<String> {
        let (ip, what) = self.reserved.range(cidr.network()..=cidr.broadcast()).next()?;
        Some(format!("{} {cidr} is refused: {ip} is the address of {what}", self.noun()))
    }
}

/// The next hop to a node's pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// The node's address, or `None` for this node's own bridge.
    pub via: Option<IpAddr>,
    /// The index of the link.
    pub index: u32,
    /// The name of the node, for messages.
    pub node: String,
}

/// The planned state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The networks of this node, without refused ones.
    pub own: Vec<IpNetwork>,
    /// The routes to the pods of other nodes.
    pub routes: BTreeMap<IpNetwork, Hop>,
    /// The routes to local pods through the bridge: the subnets with all blocks, and borrowed addresses in them.
    pub local: BTreeMap<IpNetwork, Hop>,
    /// The networks of all pods, for the exceptions from masquerading. With shared subnets these are the subnets.
    pub pods: BTreeSet<IpNetwork>,
    /// Why networks are refused or have no route, as sentences, each with the name of its node.
    pub conditions: Vec<(String, String)>,
}

/// Computes the plan for the node `own`. Changes nothing.
pub fn plan(nodes: &Nodes, own: &str, host: &Host) -> Plan {
    let mut planner = Planner {
        nodes,
        own,
        host,
        addresses: nodes.values().flat_map(|node| node.ips.iter().copied()).collect(),
        ways: Ways::new(host),
        taken: Taken { is_nested: !host.shared.is_empty(), ..Taken::default() },
        plan: Plan::default(),
    };
    for (name, node) in nodes {
        planner.plan.conditions.extend(node.wrong.iter().map(|why| (name.clone(), why.clone())));
    }
    planner.plan_own();
    planner.plan_others();
    planner.plan_local();
    planner.plan
}

struct Planner<'p> {
    nodes: &'p Nodes,
    own: &'p str,
    host: &'p Host,
    addresses: BTreeSet<IpAddr>,
    ways: Ways<'p>,
    taken: Taken,
    plan: Plan,
}

impl Planner<'_> {
    /// Accepts this node's networks, and reserves those of living pods.
    fn plan_own(&mut self) {
        let (own, host) = (self.own, self.host);
        for cidr in self.nodes.get(own).into_iter().flat_map(|node| &node.cidrs) {
            let why = self.find_refusal(*cidr).or_else(|| self.ways.wider(*cidr));
            match why.or_else(|| host.reserves(*cidr)) {
                Some(why) => self.plan.conditions.push((own.to_owned(), why)),
                None => {
                    self.taken.insert(*cidr, own);
                    self.plan.own.push(*cidr);
                }
            }
        }
        for cidr in &host.living {
            if self.taken.overlap(*cidr).is_none() {
                self.taken.insert(*cidr, own);
            }
        }
    }

    /// Plans the routes to other nodes. Of two nodes that claim overlapping networks, the one with an existing route
    /// wins, then the older one.
    fn plan_others(&mut self) {
        let ours = &self.ways.ours;
        let others = self.nodes.iter().filter(|(name, _)| *name != self.own);
        let mut wanted: Vec<_> = others
            .flat_map(|(name, node)| node.cidrs.iter().map(move |cidr| (name, node, *cidr)))
            .map(|(name, node, cidr)| {
                let has_route = ours.get(&cidr).is_some_and(|via| node.ips.contains(via));
                ((!has_route, &node.created, name, cidr), node)
            })
            .collect();
        wanted.sort_by_key(|(key, _)| *key);
        for ((_, _, name, cidr), node) in wanted {
            match self.hop(cidr, name, node) {
                Ok((via, index)) => {
                    let hop = Hop { via: Some(via), index, node: name.clone() };
                    self.plan.routes.insert(cidr, hop);
                }
                Err(why) => self.plan.conditions.push((name.clone(), why)),
            }
        }
        self.plan.pods.extend(self.plan.own.iter().copied());
    }

    /// Accepts a network of another node, and returns its next hop. A network without a way still counts as the pods'.
    fn hop(&mut self, cidr: IpNetwork, name: &str, node: &Node) -> Result<(IpAddr, u32), String> {
        let why = self.find_refusal(cidr).or_else(|| self.ways.connected(cidr));
        if let Some(why) = why.or_else(|| self.host.reserves(cidr)) {
            return Err(why);
        }
        self.taken.insert(cidr, name);
        self.plan.pods.insert(cidr);
        self.ways.foreign(cidr).map_or_else(|| self.ways.hop(cidr, &node.ips), Err)
    }

    /// Plans the routes to local pods of a shared subnet.
    fn plan_local(&mut self) {
        let shared = &self.host.shared;
        if let Some(index) = self.host.bridge {
            let borrowed: Vec<IpNetwork> =
                self.plan.own.iter().copied().filter(|cidr| is_host(*cidr)).collect();
            for cidr in shared.iter().copied().chain(borrowed) {
                match self.ways.foreign(cidr) {
                    Some(why) => self.plan.conditions.push((self.own.to_owned(), why)),
                    None => {
                        let hop = Hop { via: None, index, node: self.own.to_owned() };
                        self.plan.local.insert(cidr, hop);
                    }
                }
            }
        }
        if !shared.is_empty() {
            self.plan.pods = shared.iter().copied().collect();
        }
    }

    /// Returns why no node may have the network: it contains a node's address, is outside the shared subnets, or
    /// overlaps an accepted network.
    fn find_refusal(&self, cidr: IpNetwork) -> Option<String> {
        let (noun, shared) = (self.host.noun(), &self.host.shared);
        if let Some(ip) = self.addresses.range(cidr.network()..=cidr.broadcast()).next() {
            return Some(format!("{noun} {cidr} is refused: {ip} is the address of a node"));
        }
        if !shared.is_empty() && !shared.iter().any(|subnet| is_within(cidr, *subnet)) {
            return Some(format!("{noun} {cidr} is refused: it is no part of the network's subnet"));
        }
        let (other, owner) = self.taken.overlap(cidr)?;
        Some(format!("{noun} {cidr} is refused: it overlaps {other} of node {owner}"))
    }
}

/// The accepted networks with their nodes, by their first address. They do not overlap.
#[derive(Default)]
struct Taken {
    networks: BTreeMap<IpAddr, (IpNetwork, String)>,
    /// Single addresses, which may be inside of other nodes' blocks.
    singles: BTreeMap<IpAddr, (IpNetwork, String)>,
    /// Whether single addresses count apart from blocks. So it is with shared subnets.
    is_nested: bool,
}

impl Taken {
    fn insert(&mut self, cidr: IpNetwork, node: &str) {
        let is_single = self.is_nested && is_host(cidr);
        let of = if is_single { &mut self.singles } else { &mut self.networks };
        of.insert(cidr.network(), (cidr, node.to_owned()));
    }

    /// Returns an accepted network that overlaps this one.
    fn overlap(&self, cidr: IpNetwork) -> Option<&(IpNetwork, String)> {
        let of = if self.is_nested && is_host(cidr) { &self.singles } else { &self.networks };
        let (_, found) = of.range(..=cidr.broadcast()).next_back()?;
        (found.0.is_ipv4() == cidr.is_ipv4() && found.0.broadcast() >= cidr.network()).then_some(found)
    }
}

/// The routes of the host, those of the agent apart.
struct Ways<'h> {
    host: &'h Host,
    /// The routes that the agent did not make.
    others: Vec<&'h NewRoute>,
    /// The destinations of these routes.
    prefixes: BTreeSet<IpNetwork>,
    /// The agent's routes with their gateways.
    ours: BTreeMap<IpNetwork, IpAddr>,
}

impl<'h> Ways<'h> {
    fn new(host: &'h Host) -> Self {
        let routes = &host.routes;
        let others: Vec<_> =
            routes.iter().filter(|(_, by)| *by != PROTOCOL).map(|(route, _)| route).collect();
        let ours = routes.iter().filter(|(_, by)| *by == PROTOCOL);
        Ways {
            host,
            prefixes: others.iter().map(|route| route.dst).collect(),
            others,
            ours: ours.filter_map(|(route, _)| Some((route.dst, route.via?))).collect(),
        }
    }

    /// Returns the networks to which this host is connected: routes without a gateway. Default routes and routes to
    /// local pods of the shared subnets are left out.
    fn on_links(&self) -> impl Iterator<Item = &&'h NewRoute> {
        self.others
            .iter()
            .filter(|route| route.via.is_none() && route.dst.prefix() > 0 && !self.is_local_pod(route.dst))
    }

    /// Returns whether a route to `dst` leads to a single local pod. Such routes are inside the shared subnet.
    fn is_local_pod(&self, dst: IpNetwork) -> bool {
        is_host(dst) && self.host.shared.iter().any(|subnet| is_within(dst, *subnet))
    }

    /// Returns the problem if this host is connected to a network that overlaps `cidr`.
    fn connected(&self, cidr: IpNetwork) -> Option<String> {
        let route = self.on_links().find(|route| overlap(route.dst, cidr))?;
        Some(format!("{} {cidr} is refused: this host is connected to {}", self.host.noun(), route.dst))
    }

    /// Returns the problem if this host is connected to a wider network that contains the node's own.
    fn wider(&self, cidr: IpNetwork) -> Option<String> {
        let route =
            self.on_links().find(|route| overlap(route.dst, cidr) && route.dst.prefix() < cidr.prefix())?;
        Some(format!(
            "{} {cidr} is refused: it is a part of {}, which this host is connected to",
            self.host.noun(),
            route.dst
        ))
    }

    /// Returns the problem if another program has a route to exactly this network. Such a route is left alone.
    fn foreign(&self, cidr: IpNetwork) -> Option<String> {
        self.prefixes.contains(&cidr).then(|| {
            format!("there is a route to {cidr} already that cnimble has not made: it is left alone")
        })
    }

    /// Returns the first of a node's addresses that is on a link of this host, with the link. Fails if there is none of
    /// the network's family.
    fn hop(&self, cidr: IpNetwork, ips: &[IpAddr]) -> Result<(IpAddr, u32), String> {
        let mut family = ips.iter().filter(|ip| ip.is_ipv4() == cidr.is_ipv4()).peekable();
        let Some(any) = family.peek().copied() else {
            let why = if self.host.shared.is_empty() {
                "the node has no InternalIP of that family"
            } else {
                "the store has no address of the node of that family; `cnimble node` there tells it"
            };
            return Err(format!("there is no way to {cidr}: {why}"));
        };
        // The kernel refuses an address of this host. An address that moves between nodes is in some lists.
        let mut ips = family.filter(|ip| !self.host.addresses.contains(ip)).peekable();
        let Some(first) = ips.peek() else {
            return Err(format!(
                "there is no way to {cidr}: {any} is an address of this host. If this is that node, name it with --node-name"
            ));
        };
        let off = format!(
            "there is no way to {cidr}: {first} is on no link of this host. cnimble routes between nodes of one \
             network; behind a router, let that have the routes, or use a network with tunnels"
        );
        ips.find_map(|ip| Some((*ip, self.link(*ip)?))).ok_or(off)
    }

    /// Returns the link on which the address is, or `None` if the longest matching route has a gateway or is a default
    /// route.
    fn link(&self, ip: IpAddr) -> Option<u32> {
        let leading = self.others.iter().filter(|route| route.dst.contains(ip));
        let best = leading.max_by_key(|route| route.dst.prefix())?;
        (best.via.is_none() && best.dst.prefix() > 0).then_some(best.index)
    }
}

fn is_host(cidr: IpNetwork) -> bool {
    cidr == cnimble_cni::cidr::host(cidr.ip())
}

fn is_within(cidr: IpNetwork, subnet: IpNetwork) -> bool {
    cidr.is_ipv4() == subnet.is_ipv4() && subnet.prefix() <= cidr.prefix() && subnet.contains(cidr.network())
}

#[cfg(test)]
mod tests;
