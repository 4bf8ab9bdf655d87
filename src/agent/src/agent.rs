//! Makes what is planned.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use cnimble_netlink as netlink;
use cnimble_netlink::Netlink;
use cnimble_netlink::link::Filter;
use cnimble_netlink::nft::Nft;

use crate::conflist::{Conflist, Plugin};
use crate::masquerade::{self, Masquerade};
use crate::node::is_host;
use crate::plan::{Host, Plan, plan};
use crate::{Nodes, bridge, routes, uplink};

/// What is to be done.
#[derive(Debug, Clone)]
pub struct Options {
    /// The name of this node.
    pub node: String,
    /// The runtime's configuration.
    pub conflist: Conflist,
    /// The pods' MTU, if it isn't the uplink's.
    pub mtu: Option<u32>,
    /// Whether what leaves the cluster gets the node's address.
    pub masquerade: bool,
    /// Destinations besides pods that see pods' own addresses.
    pub non_masquerade: Vec<IpNetwork>,
    /// Whether the configuration goes with the node.
    pub remove_on_delete: bool,
}

/// What came of a look.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The networks of the pods here.
    pub own: Vec<IpNetwork>,
    /// Routes to other nodes' pods that are there.
    pub routes: usize,
    /// What was written: routes, the table, the file.
    pub writes: usize,
    /// What is wrong, in sentences, each with the node it is about.
    pub conditions: Vec<(String, String)>,
    /// Why something could not be done that may be done later.
    pub failures: Vec<String>,
}

/// Works on this host.
#[derive(Debug)]
pub struct Agent {
    options: Options,
    netlink: Netlink,
    nft: Nft,
    /// The table as it was after the last look.
    masquerade: masquerade::Known,
    /// The addresses of the API server.
    servers: BTreeSet<IpAddr>,
}

impl Agent {
    /// One for the current namespace.
    ///
    /// # Errors
    /// Fails if the kernel refuses the request.
    pub fn new(options: Options) -> netlink::Result<Self> {
        Ok(Agent {
            options,
            netlink: Netlink::open()?,
            nft: Nft::new(),
            masquerade: masquerade::Known::default(),
            servers: BTreeSet::new(),
        })
    }

    /// Takes the addresses of the API server, which no pod may have.
    pub fn reserve(&mut self, servers: &BTreeSet<IpAddr>) {
        self.servers.clone_from(servers);
    }

    /// The name of this node.
    pub fn node(&self) -> &str {
        &self.options.node
    }

    /// What would be there.
    ///
    /// # Errors
    /// The host can't be looked at.
    pub fn plan(&mut self, nodes: &Nodes) -> Result<Plan, String> {
        let host = self.look(nodes)?;
        Ok(plan(nodes, &self.options.node, &host))
    }

    fn look(&mut self, nodes: &Nodes) -> Result<Host, String> {
        let routes = self.netlink.routes_by_protocol().map_err(|err| err.to_string())?;
        let addresses = self.netlink.all_addrs().map_err(|err| err.to_string())?;
        let addresses = addresses.iter().map(|address| address.net.ip()).collect();
        let shared = self.options.conflist.shared().to_vec();
        let podcidrs = || nodes.get(&self.options.node).map(|node| node.cidrs.clone()).unwrap_or_default();
        let now = if shared.is_empty() { podcidrs() } else { shared.clone() };
        let mut living = self.options.conflist.ranges();
        living.retain(|cidr| !now.contains(cidr));
        let mut reserved: BTreeMap<IpAddr, &str> =
            self.servers.iter().map(|ip| (*ip, "the API server")).collect();
        reserved.extend(
            self.own_addresses().map_err(|err| err.to_string())?.into_iter().map(|ip| (ip, "this host")),
        );
        Ok(Host { routes, living, addresses, reserved, shared, bridge: None })
    }

    /// The addresses by which others reach this host: those of the default route's link and of hardware. Bridges,
    /// pairs and tunnels may have addresses of the pods' network.
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

    /// Looks at the host and makes what is to be there. Only what differs is written.
    ///
    /// # Errors
    /// The host can't be looked at; nothing is changed then.
    pub fn reconcile(&mut self, nodes: &Nodes) -> Result<Report, String> {
        let mut host = self.look(nodes)?;
        if !host.shared.is_empty() && self.options.conflist.plugin == Plugin::Bridge {
            // Before the first pod, which finds its ways there.
            host.bridge = Some(bridge::ensure(&mut self.netlink).map_err(|err| err.to_string())?);
        }
        let plan = plan(nodes, &self.options.node, &host);
        let mut report = Report { conditions: plan.conditions.clone(), ..Report::default() };
        let ranges = self.file(nodes, &plan, &host, &mut report);
        report.own = if host.shared.is_empty() { ranges.clone() } else { plan.own.clone() };
        let ways = plan.routes.clone().into_iter().chain(plan.local).collect();
        match routes::apply(&mut self.netlink, &host.routes, &ways) {
            Ok(written) => {
                report.writes += written.writes;
                report.failures.extend(written.failures);
            }
            Err(err) => report.failures.push(err.to_string()),
        }
        report.routes = plan.routes.len();
        if self.options.masquerade {
            // While pods of an earlier network live, they leave as before.
            let own: BTreeSet<IpNetwork> =
                ranges.iter().copied().chain(host.living.iter().copied()).collect();
            let pods = plan.pods.iter().copied().chain(own.iter().copied()).collect();
            let others = self.options.non_masquerade.iter().copied().collect();
            let wanted = Masquerade { own, pods, others };
            match masquerade::apply(&mut self.nft, &mut self.masquerade, &wanted) {
                Ok(written) => report.writes += usize::from(written),
                Err(err) => report.failures.push(err.to_string()),
            }
        }
        Ok(report)
    }

    /// Writes the runtime's file before any node is known: with addresses of a shared subnet it doesn't depend on nodes.
    ///
    /// # Errors
    /// The host can't be looked at.
    pub fn prepare(&mut self) -> Result<Report, String> {
        let host = self.look(&Nodes::new())?;
        let mut report = Report::default();
        self.file(&Nodes::new(), &Plan::default(), &host, &mut report);
        Ok(report)
    }

    /// Brings the runtime's file up to date; the networks that it has then.
    fn file(&mut self, nodes: &Nodes, plan: &Plan, host: &Host, report: &mut Report) -> Vec<IpNetwork> {
        let (conflist, node) = (&self.options.conflist, &self.options.node);
        let there = conflist.ranges();
        let mut wrong = |why: String| report.conditions.push((node.clone(), why));
        if !host.shared.is_empty() {
            return self.write_file(&host.shared, there, host, report);
        }
        let Some(known) = nodes.get(node) else {
            if self.options.remove_on_delete {
                match conflist.remove() {
                    Ok(removed) => report.writes += usize::from(removed),
                    Err(err) => report.failures.push(format!("{}: {err}", conflist.path().display())),
                }
                return Vec::new();
            }
            wrong(format!(
                "the API server has no node {node}: the configuration stays as it is (--node-name, --remove-on-delete)"
            ));
            return there;
        };
        if plan.own.is_empty() || plan.own.len() < known.cidrs.len() {
            if known.cidrs.is_empty() {
                wrong(
                    "it has no podCIDR yet: the controller manager gives one with --allocate-node-cidrs"
                        .to_owned(),
                );
            }
            return there;
        }
        self.write_file(&plan.own, there, host, report)
    }

    /// Writes the file for pods of these networks, if no pod lives that has another.
    fn write_file(
        &mut self,
        own: &[IpNetwork],
        there: Vec<IpNetwork>,
        host: &Host,
        report: &mut Report,
    ) -> Vec<IpNetwork> {
        let (conflist, node) = (&self.options.conflist, &self.options.node);
        let mut wrong = |why: String| report.conditions.push((node.clone(), why));
        if !host.living.is_empty() {
            match conflist.lease_outside(own) {
                Ok(None) => {}
                Ok(Some(ip)) => {
                    wrong(format!(
                        "its {} have changed to {}, and {ip} is still leased: the configuration stays as it is \
                         until no pod has an address of {}",
                        if host.shared.is_empty() { "podCIDRs" } else { "networks" },
                        words(own),
                        words(&host.living)
                    ));
                    return there;
                }
                Err(why) => {
                    wrong(format!("leases can't be read, so the configuration stays as it is: {why}"));
                    return there;
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
                there
            }
        }
    }
}

fn words(cidrs: &[IpNetwork]) -> String {
    cidrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Takes away all that an agent has made here: routes, the table, and the file. Returns how many things there were.
///
/// # Errors
/// What could not be taken away, in a sentence. The rest is.
pub fn remove(conflist: &Conflist) -> Result<usize, String> {
    let mut failures = Vec::new();
    let mut count = 0;
    let away = || -> netlink::Result<(usize, Vec<String>)> {
        let mut netlink = Netlink::open()?;
        let there = netlink.routes_by_protocol()?;
        let written = routes::apply(&mut netlink, &there, &std::collections::BTreeMap::new())?;
        Ok((written.writes, written.failures))
    };
    match away() {
        Ok((writes, failed)) => {
            count += writes;
            failures.extend(failed);
        }
        Err(err) => failures.push(err.to_string()),
    }
    match masquerade::remove(&mut Nft::new()) {
        Ok(removed) => count += usize::from(removed),
        Err(err) => failures.push(err.to_string()),
    }
    match conflist.remove() {
        Ok(removed) => count += usize::from(removed),
        Err(err) => failures.push(format!("{}: {err}", conflist.path().display())),
    }
    if failures.is_empty() { Ok(count) } else { Err(failures.join("; ")) }
}
