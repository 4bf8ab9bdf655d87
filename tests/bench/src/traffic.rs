//! Measures the packets of pods: new connections and a stream to a published port, new connections to a pod and out of
//! it, and datagrams out.
//!
//! Each contender has a node whose bridge masquerades, and pods with a published port each. An outer namespace is behind
//! the node's uplink, and has a route to the pods. The measured pod was added after half of the others, because some
//! packet rules are read one after the other. The Go plugins take part with iptables, their default, and with nftables.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::args::Args;
use crate::chain::{self, Node, Pod};
use crate::load::{self, Outcome, Servers};
use crate::report::{Report, Row};
use crate::sandbox::{Namespace, Sandbox};
use crate::services;
use crate::{Contender, Result, announce, progress};

/// The addresses of the node's uplink, and of the outer namespace.
const NODE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const OUTSIDE_PORT: u16 = 8080;
/// The limit of the time for which pods are added. A contender that exceeds it has no figures for so many.
const FILL: Duration = Duration::from_secs(900);

/// The figures of a round, with their units.
const FIGURES: [(&str, &str); 5] = [
    ("TCP to a published port", "connections/s"),
    ("TCP to a pod", "connections/s"),
    ("TCP out, masqueraded", "connections/s"),
    ("UDP out, masqueraded", "round trips/s"),
    ("TCP stream to a published port", "Gbit/s"),
];

/// A contender's node, and the namespace outside.
struct Site<'a> {
    node: Node<'a>,
    outside: Namespace,
    pods: Vec<Pod>,
}

/// The figures of a site with a number of pods.
struct Results {
    rows: [Row; 5],
    tried: u64,
    failed: u64,
    /// The segments that had been sent again before.
    sent_before: u64,
}

pub(crate) fn measure(args: &Args, sandbox: &Sandbox, report: &mut Report) -> Result<()> {
    // The ports of the clients suffice for ten rounds.
    let rounds = (args.samples / 3).clamp(5, 10);
    let contenders = contenders(args);
    let mut sites =
        contenders.iter().map(|one| Site::new(sandbox, one)).collect::<Result<Vec<Site<'_>>>>()?;
    if args.services > 0 {
        for site in &sites {
            services::add(site.node.namespace(), args.services)?;
        }
    }
    for pods in args.pods.iter().copied().filter(|pods| *pods > 0) {
        announce(&format!("traffic, {pods} pods"));
        sites.retain_mut(|site| match site.fill(pods) {
            Ok(()) => true,
            Err(err) => {
                announce(&format!("{} is left out from {pods} pods on: {err}", site.node.name()));
                false
            }
        });
        let mut servers = Vec::new();
        for site in &sites {
            servers.push(Servers::start(&site.measured()?.netns, chain::CONTAINER_PORT)?);
            servers.push(Servers::start(site.outside.path(), OUTSIDE_PORT)?);
        }
        let mut results =
            sites.iter().map(|site| Results::new(site, pods)).collect::<Result<Vec<Results>>>()?;
        for round in 0..=rounds {
            progress(&format!("traffic, {pods} pods: round {round} of {rounds}"));
            let mut turns: Vec<_> = sites.iter().zip(&mut results).collect();
            if round % 2 == 1 {
                turns.reverse();
            }
            for (site, results) in turns {
                results.push(round, site.round()?);
            }
        }
        for (results, site) in results.into_iter().zip(&sites) {
            report.rows.extend(results.end(site, pods)?);
        }
    }
    drop(sites);
    sandbox.settle()
}

/// Returns the sets of plugins, and all but ours, which are the last, once more with nftables.
fn contenders(args: &Args) -> Vec<Contender> {
    let all: Vec<&Contender> = args.plugins().collect();
    let (ours, others) =
        all.split_last().map_or((None, all.as_slice()), |(ours, others)| (Some(ours), others));
    let nftables = |one: &&Contender| Contender {
        name: format!("{}-nftables", one.name),
        backend: Some("nftables"),
        ..(*one).clone()
    };
    let both = others.iter().flat_map(|one| [(*one).clone(), nftables(one)]);
    both.chain(ours.map(|ours| (*ours).clone())).collect()
}

impl<'a> Site<'a> {
    fn new(sandbox: &Sandbox, contender: &'a Contender) -> Result<Self> {
        let config = contender.backend.map_or(Value::Null, |backend| json!({"backend": backend}));
        let node = Node::new(sandbox, contender, "traffic", &[("portmap", config)])?;
        let outside = Namespace::new(&format!("{}-outside", contender.name))?;
        node.namespace().enter()?;
        ip("link set lo up")?;
        ip(&format!("link add uplink type veth peer name uplink netns {}", outside.path().display()))?;
        ip(&format!("address add {NODE}/24 dev uplink"))?;
        ip("link set uplink up")?;
        outside.enter()?;
        ip(&format!("address add {OUTSIDE}/24 dev uplink"))?;
        ip("link set uplink up")?;
        ip(&format!("route add {} via {NODE}", chain::SUBNET))?;
        Ok(Site { node, outside, pods: Vec::new() })
    }

    /// Adds pods until there are so many.
    fn fill(&mut self, pods: usize) -> Result<()> {
        let begun = Instant::now();
        while self.pods.len() < pods {
            if begun.elapsed() > FILL {
                return Err(format!("after {FILL:?} there are {}", self.pods.len()).into());
            }
            progress(&format!("traffic: {} has {} of {pods} pods", self.node.name(), self.pods.len()));
            self.pods.push(self.node.populate()?);
        }
        announce(&format!("{}: {pods} pods after {:.1} s", self.node.name(), begun.elapsed().as_secs_f64()));
        Ok(())
    }

    fn measured(&self) -> Result<&Pod> {
        self.pods.get(self.pods.len() / 2).ok_or_else(|| "no pod".into())
    }

    fn round(&self) -> Result<[Outcome; 5]> {
        let pod = self.measured()?;
        let [port] = chain::ports(pod)?;
        let published = SocketAddr::from((NODE, port));
        let direct = SocketAddr::from((address(&pod.result)?, chain::CONTAINER_PORT));
        let out = SocketAddr::from((OUTSIDE, OUTSIDE_PORT));
        Ok([
            load::connections(self.outside.path(), published)?,
            load::connections(self.outside.path(), direct)?,
            load::connections(&pod.netns, out)?,
            load::round_trips(&pod.netns, out)?,
            load::stream(self.outside.path(), published)?,
        ])
    }

    fn sent_again(&self) -> Result<u64> {
        Ok(load::sent_again(self.outside.path())? + load::sent_again(&self.measured()?.netns)?)
    }
}

impl Results {
    fn new(site: &Site<'_>, pods: usize) -> Result<Self> {
        let rows = FIGURES.map(|(what, unit)| {
            let mut row = Row::new("traffic", format!("{what}, {pods} pods"), site.node.name());
            row.unit = unit;
            row.at(what, "pods", pods)
        });
        Ok(Results { rows, tried: 0, failed: 0, sent_before: site.sent_again()? })
    }

    /// Keeps the outcomes of a round. The first one, in which neighbours are found, counts for failures only.
    fn push(&mut self, round: usize, outcomes: [Outcome; 5]) {
        for (row, outcome) in self.rows.iter_mut().zip(outcomes) {
            self.tried += outcome.tried;
            self.failed += outcome.failed;
            row.errors += usize::try_from(outcome.failed).unwrap_or(usize::MAX);
            if round > 0 {
                row.samples.push(outcome.rate);
            }
        }
    }

    fn end(self, site: &Site<'_>, pods: usize) -> Result<impl Iterator<Item = Row>> {
        let count = |what: String, count: u64| {
            let mut row = Row::new("traffic", format!("{what}, {pods} pods"), site.node.name());
            row.unit = "";
            row.samples.push(count as f64);
            row
        };
        let failed = count(format!("failed or lost of {}", self.tried), self.failed);
        let sent_again = count("TCP segments sent again".to_owned(), site.sent_again()? - self.sent_before);
        Ok(self.rows.into_iter().chain([failed, sent_again]))
    }
}

/// Returns the pod's address.
fn address(result: &Value) -> Result<Ipv4Addr> {
    let address = result.pointer("/ips/0/address").and_then(Value::as_str).unwrap_or_default();
    Ok(address.split('/').next().unwrap_or_default().parse()?)
}

/// Runs ip(8) in the namespace of this thread.
fn ip(arguments: &str) -> Result<()> {
    if Command::new("ip").args(arguments.split(' ')).status()?.success() {
        Ok(())
    } else {
        Err(format!("ip {arguments} failed").into())
    }
}
