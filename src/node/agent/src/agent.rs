use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use cnimble_netlink as netlink;
use cnimble_netlink::Netlink;
use cnimble_netlink::link::Filter;
use cnimble_netlink::nft::Nft;

use crate::conflist::{Conflist, Plugin};
use crate::earlier::{self, Earlier};
use crate::masquerade::{self, Masquerade};
use crate::node::is_host;
use crate::plan::{Host, Plan, plan};
use crate::{Nodes, bridge, routes, uplink};

/// The options of an agent.
#[derive(Debug, Clone)]
pub struct Options {
    pub node: String,
    pub conflist: Conflist,
    /// The pods' MTU. `None` takes the uplink's.
    pub mtu: Option<u32>,
    /// Whether packets that leave the cluster get the node's address.
    pub masquerade: bool,
    /// Destinations outside the cluster that see the pods' own addresses.
    pub non_masquerade: Vec<IpNetwork>,
    /// Whether the configuration is removed when the API server has no such node any more.
    pub remove_on_delete: bool,
}

/// The outcome of one reconciliation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The networks from which this node's pods get addresses.
    pub own: Vec<IpNetwork>,
    /// The number of planned routes to other nodes' pods. A route that the kernel refused counts, too.
    pub routes: usize,
    /// How many changes were requested: routes, the packet rules and the file.
    pub writes: usize,
    /// Problems that last until somebody acts, as sentences, each with the node that they are about.
    pub conditions: Vec<(String, String)>,
    /// Failures that the next reconciliation may not have.
    pub failures: Vec<String>,
}

impl Report {
    /// Counts a change, or keeps the failure.
    fn count(&mut self, outcome: Result<bool, impl Display>) {
        match outcome {
            Ok(changed) => self.writes += usize::from(changed),
            Err(err) => self.failures.push(err.to_string()),
        }
    }
}

/// Configures the network of this node. It remembers the packet rules between reconciliations.
#[derive(Debug)]
pub struct Agent {
    options: Options,
    netlink: Netlink,
    nft: Nft,
    masquerade: masquerade::Known,
    servers: BTreeSet<IpAddr>,
}

impl Agent {
    /// Returns an agent for the current network namespace.
    pub fn new(options: Options) -> netlink::Result<Self> {
        Ok(Agent {
            options,
            netlink: Netlink::open()?,
            nft: Nft::new(),
            masquerade: masquerade::Known::default(),
            servers: BTreeSet::new(),
        })
    }

    /// Sets the addresses of the API server. A network that contains one is refused, because pods would cut the node
    /// off.
    pub fn reserve(&mut self, servers: &BTreeSet<IpAddr>) {
        self.servers.clone_from(servers);
    }

    /// Returns the name of this node.
    pub fn node(&self) -> &str {
        &self.options.node
    }

    /// Returns the plan without applying it. Fails if the state of the host cannot be read.
    pub fn plan(&mut self, nodes: &Nodes) -> Result<Plan, String> {
        let (host, _) = self.read_host(nodes)?;
        Ok(plan(nodes, &self.options.node, &host))
    }

    /// Reads the state of the host that the plan depends on, and the node's earlier networks.
    fn read_host(&mut self, nodes: &Nodes) -> Result<(Host, Earlier), String> {
        let mut routes = self.netlink.routes_by_protocol().map_err(|err| err.to_string())?;
        let addresses = self.netlink.all_addrs().map_err(|err| err.to_string())?;
        let addresses = addresses.iter().map(|address| address.net.ip()).collect();
        let shared = self.options.conflist.shared().to_vec();
        let now = if shared.is_empty() {
            nodes.get(&self.options.node).map(|node| node.cidrs.clone()).unwrap_or_default()
        } else {
            shared.clone()
        };
        let earlier = Earlier::read(&self.options.conflist, &now);
        if self.has_bridge_of_cidrs() {
            earlier.ignore_routes(&mut self.netlink, &mut routes).map_err(|err| err.to_string())?;
        }
        let mut reserved: BTreeMap<IpAddr, &str> =
            self.servers.iter().map(|ip| (*ip, "the API server")).collect();
        reserved.extend(
            self.own_addresses().map_err(|err| err.to_string())?.into_iter().map(|ip| (ip, "this host")),
        );
        // A network in the file may get a pod at any time.
        let living = earlier.living.iter().chain(&earlier.in_file).copied().collect();
        Ok((Host { routes, living, addresses, reserved, shared, bridge: None }, earlier))
    }

    /// Returns whether the pods' bridge has the gateways of podCIDRs in a file without a template.
    fn has_bridge_of_cidrs(&self) -> bool {
        let conflist = &self.options.conflist;
        conflist.plugin == Plugin::Bridge && conflist.takes_new_cidrs_at_once()
    }

    /// Returns the addresses by which others reach this host. Addresses of bridges, pairs and tunnels are left out,
    /// because they may be the pods', unless the link has the default route.
    fn own_addresses(&mut self) -> netlink::Result<BTreeSet<IpAddr>> {
        let uplink = self.netlink.default_link()?;
        let links = self.netlink.links(&Filter::default())?;
        let mut found = BTreeSet::new();
        for link in links.iter().filter(|link| link.kind.is_empty() || Some(link.index) == uplink) {
            found.extend(
                self.netlink.addrs(link.index)?.iter().map(|addr| addr.net.ip()).filter(|ip| is_host(*ip)),
            );
        }
        Ok(found)
    }

    /// Brings file, routes and packet rules to the planned state. It goes on past a failure of one of them, and reports
    /// it.
    ///
    /// # Errors
    /// Fails, before any change, if the state of the host cannot be read or the bridge cannot be made.
    pub fn reconcile(&mut self, nodes: &Nodes) -> Result<Report, String> {
        let (mut host, earlier) = self.read_host(nodes)?;
        if !host.shared.is_empty() && self.options.conflist.plugin == Plugin::Bridge {
            // The bridge must exist before the first pod, which needs its routes.
            host.bridge = Some(bridge::ensure(&mut self.netlink).map_err(|err| err.to_string())?);
        }
        let plan = plan(nodes, &self.options.node, &host);
        let mut report = Report { conditions: plan.conditions.clone(), ..Report::default() };
        let ranges = self.file(nodes, &plan, &host, &earlier, &mut report);
        if ranges == plan.own {
            // This precedes the routes, because the kernel's route to a departed network would be in their way.
            self.leave_departed(&earlier, &mut report);
        }
        report.own = if host.shared.is_empty() { ranges.clone() } else { plan.own.clone() };
        let ways = plan.routes.clone().into_iter().chain(plan.local).collect();
        routes::apply(&mut self.netlink, &host.routes, &ways, &mut report);
        report.routes = plan.routes.len();
        if self.options.masquerade {
            // Pods of an earlier network may still live, and are masqueraded, too.
            let own: BTreeSet<IpNetwork> =
                ranges.iter().copied().chain(host.living.iter().copied()).collect();
            let pods = plan.pods.iter().copied().chain(own.iter().copied()).collect();
            let others = self.options.non_masquerade.iter().copied().collect();
            let wanted = Masquerade { own, pods, others };
            report.count(masquerade::apply(&mut self.nft, &mut self.masquerade, &wanted));
        }
        Ok(report)
    }

    /// Records the earlier networks, and gives the bridge the gateways of `own` beside theirs. Returns the number of
    /// changes.
    fn keep_earlier(&mut self, earlier: &Earlier, own: &[IpNetwork]) -> Result<usize, String> {
        let conflist = &self.options.conflist;
        let recorded = earlier.record(conflist).map_err(|err| {
            format!("the record of earlier networks in {} can't be written: {err}", conflist.dir.display())
        })?;
        let mut added = false;
        if self.has_bridge_of_cidrs() && !earlier.living.is_empty() {
            added = earlier::add_gateways(&mut self.netlink, own).map_err(|err| err.to_string())?;
        }
        Ok(usize::from(recorded) + usize::from(added))
    }

    /// Ends the earlier networks without a living pod: takes their gateways off the bridge, and them out of the record.
    fn leave_departed(&mut self, earlier: &Earlier, report: &mut Report) {
        if !self.options.conflist.takes_new_cidrs_at_once() {
            return;
        }
        if self.has_bridge_of_cidrs() {
            match earlier.remove_gateways(&mut self.netlink) {
                Ok(removed) => report.writes += usize::from(removed),
                Err(err) => return report.failures.push(err.to_string()),
            }
        }
        report.count(earlier.forget_departed(&self.options.conflist));
    }

    /// Writes the runtime's file before any node is known. A caller does so only with a shared subnet, on which the
    /// file depends alone.
    pub fn prepare(&mut self) -> Result<Report, String> {
        let (host, earlier) = self.read_host(&Nodes::new())?;
        let mut report = Report::default();
        self.file(&Nodes::new(), &Plan::default(), &host, &earlier, &mut report);
        Ok(report)
    }

    /// Writes or removes the runtime's file. Returns the networks that are in it afterwards.
    fn file(
        &mut self,
        nodes: &Nodes,
        plan: &Plan,
        host: &Host,
        earlier: &Earlier,
        report: &mut Report,
    ) -> Vec<IpNetwork> {
        let (conflist, node) = (&self.options.conflist, &self.options.node);
        let current = conflist.ranges();
        if !host.shared.is_empty() {
            return self.write_file(&host.shared, current, host, earlier, report);
        }
        let Some(known) = nodes.get(node) else {
            if self.options.remove_on_delete {
                report.count(conflist.remove());
                return Vec::new();
            }
            let why = format!(
                "the API server has no node {node}: the configuration stays as it is (--node-name, --remove-on-delete)"
            );
            report.conditions.push((node.clone(), why));
            return current;
        };
        if plan.own.is_empty() || plan.own.len() < known.cidrs.len() {
            if known.cidrs.is_empty() {
                let why =
                    "it has no podCIDR yet: the controller manager gives one with --allocate-node-cidrs";
                report.conditions.push((node.clone(), why.to_owned()));
            }
            return current;
        }
        self.write_file(&plan.own, current, host, earlier, report)
    }

    /// Writes the file. Returns the networks of the file afterwards, which are `current` if it was not written.
    ///
    /// If a lease is outside of `own`, its pod may live. Then the bridge gets the gateways of `own` first, and the earlier
    /// networks are recorded. A file from a template, or with a shared subnet, is not written.
    fn write_file(
        &mut self,
        own: &[IpNetwork],
        current: Vec<IpNetwork>,
        host: &Host,
        earlier: &Earlier,
        report: &mut Report,
    ) -> Vec<IpNetwork> {
        let (conflist, node) = (self.options.conflist.clone(), self.options.node.clone());
        if conflist.takes_new_cidrs_at_once() {
            match self.keep_earlier(earlier, own) {
                Ok(writes) => report.writes += writes,
                Err(why) => {
                    report.failures.push(why);
                    return current;
                }
            }
            if !earlier.living.is_empty() {
                let why = format!(
                    "its podCIDRs have changed to {}, and addresses of {} are still leased: new pods get the new \
                     podCIDRs, and other nodes have no route to pods of the earlier ones",
                    words(own),
                    words(&earlier.living)
                );
                report.conditions.push((node.clone(), why));
            }
        } else if !host.living.is_empty() {
            match conflist.lease_outside(own) {
                Ok(None) => {}
                Ok(Some(ip)) => {
                    let why = format!(
                        "its {} have changed to {}, and {ip} is still leased: the configuration stays as it is \
                         until no pod has an address of {}",
                        if host.shared.is_empty() { "podCIDRs" } else { "networks" },
                        words(own),
                        words(&host.living)
                    );
                    report.conditions.push((node, why));
                    return current;
                }
                Err(why) => {
                    let why = format!("leases can't be read, so the configuration stays as it is: {why}");
                    report.conditions.push((node, why));
                    return current;
                }
            }
        }
        let mtu = match self.options.mtu {
            Some(mtu) => Some(mtu),
            None => uplink::mtu(&mut self.netlink).unwrap_or_else(|err| {
                report.failures.push(err.to_string());
                None
            }),
        };
        let written = conflist.text(own, mtu).and_then(|text| {
            conflist.write(&text).map_err(|err| format!("{}: {err}", conflist.path().display()))
        });
        match written {
            Ok(written) => {
                report.writes += usize::from(written);
                own.to_vec()
            }
            Err(why) => {
                report.failures.push(why);
                current
            }
        }
    }
}

fn words(cidrs: &[IpNetwork]) -> String {
    cidrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Removes the routes, the table and the file of an agent. Returns how many removals were requested. Goes on after
/// failures, and returns them together.
pub fn remove(conflist: &Conflist) -> Result<usize, String> {
    let mut report = Report::default();
    let routes = Netlink::open().and_then(|mut netlink| Ok((netlink.routes_by_protocol()?, netlink)));
    match routes {
        Ok((current, mut netlink)) => routes::apply(&mut netlink, &current, &BTreeMap::new(), &mut report),
        Err(err) => report.failures.push(err.to_string()),
    }
    report.count(masquerade::remove(&mut Nft::new()));
    report.count(conflist.remove());
    if report.failures.is_empty() { Ok(report.writes) } else { Err(report.failures.join("; ")) }
}
