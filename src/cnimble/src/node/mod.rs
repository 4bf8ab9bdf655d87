//! `node`: configures the network that a node of a cluster needs.

mod configured;
mod shares;
mod spare;
mod status;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use cnimble_agent::conflist::{Conflist, Plugin};
use cnimble_agent::plan::Plan;
use cnimble_agent::shares::{Added, ClusterLocal};
use cnimble_agent::{Agent, Follower, Options, Shared, disturbances, remove};
use cnimble_api::{Error, Server as Api};

use super::args::node::{Main, Node};
use super::interrupt::Signals;
use super::report::{Exit, Report, fail_with, usage};
use super::run::notify;
use super::run::serve::Server;
use super::run::sources::host_name;
use super::style::count;
use super::{Session, network, print, print_json, services};
use shares::Shares;
use spare::Routed;
use status::{Source, Status};

/// The wait after a change. Others within it are handled together with the first.
const SETTLE: Duration = Duration::from_millis(100);

/// Maintains the node's network until a signal, or does it once with `--once`, `--dry-run` and `--remove`.
///
/// Routes and rules stay at the end, because pods keep running.
pub(super) async fn node(session: &Session, given: &Node) -> Result<(), Report> {
    network::must_be_name(&given.name)?;
    let options = options(session, given)?;
    if given.remove {
        let removed = remove(&options.conflist).map_err(|why| failed(&why))?;
        return session.done(
            &format!("removed of `cnimble node`: {}", count(removed, "thing")),
            &json!({"removed": removed}),
        );
    }
    let path = session.invoker.path().to_vec();
    let mut follower = follower(given, &options, &path)?;
    let (shared, changed) = follower.subscribe();
    let routed = options.conflist.cluster.as_ref().map(|_| Routed {
        name: options.conflist.name.clone(),
        ips: given.node_ip.clone(),
        shared: shared.clone(),
    });
    let cluster_nodes = match &follower {
        Nodes::Etcd(_) if has_server(given) => Some(api_follower(given)?),
        _ => None,
    };
    let mut agent = Agent::new(options).map_err(|err| failed(&err.to_string()))?;
    if given.once || given.dry_run {
        if let (Nodes::Etcd(shares), false) = (&follower, given.dry_run) {
            let told = spare::tend(shares.network(), &path, routed.as_ref(), &[]).await;
            told.map_err(|why| failed(&why.to_string()))?;
        }
        follower.once().await?;
        return once(session, given, agent, &shared);
    }
    let signals = Signals::listen()?;
    let status = Status::new(shared.clone(), follower.source());
    let server = Server::bind(&given.listen).await?;
    let mut tasks = JoinSet::new();
    if let Some(server) = server {
        tasks.spawn(server.run(Arc::new(status.clone())));
    }
    if routed.is_some() {
        // The upkeep of spare blocks reads this file. Pods can be added and removed while etcd is unreachable.
        status.prepared(agent.prepare());
    }
    // The API server's nodes tell whose blocks return, even if routes follow the store's.
    let listed = match (&follower, &cluster_nodes) {
        (Nodes::Api(_), _) => Some(shared.clone()),
        (Nodes::Etcd(_), cluster_nodes) => cluster_nodes.as_ref().map(|nodes| nodes.subscribe().0),
    };
    tasks.spawn(follower.run());
    cluster_nodes.into_iter().for_each(|nodes| drop(tasks.spawn(nodes.run())));
    tasks.spawn(spare::keep(session.conf.clone(), path, routed, listed, status.clone()));
    let (told, timed) = (status.clone(), status.clone());
    tasks.spawn(async move {
        notify::keep_saying(move || told.sentence(), move |limit| timed.hangs(limit)).await;
    });
    let disturbed = disturbances().map_err(|err| failed(&err.to_string()))?;
    services::follow().map_err(|err| failed(&err.to_string()))?;
    let resync = Duration::from_secs(given.resync);
    let work = work(agent, shared, status, [changed, disturbed], resync);
    notify::ready();
    let ended = tokio::select! {
        ended = work => ended,
        () = stopped(signals) => Ok(()),
    };
    notify::stopping();
    // Routes and rules stay, because pods keep running.
    tasks.shutdown().await;
    ended
}

/// Returns the report for a failure on this node.
fn failed(why: &str) -> Report {
    Report::because(Exit::Files, "can't maintain the node's network", why)
}

/// What fails if the source of nodes can't be read.
const NOT_TOLD: &str = "can't read the cluster's nodes";

/// Returns the exit status for a failure of the API server: that of a configuration if the access to it is wrong.
fn exit_of(err: &Error) -> Exit {
    match err {
        Error::Access(_) | Error::Read { .. } => Exit::Config,
        _ => Exit::Execution,
    }
}

/// The source of the cluster's nodes.
enum Nodes {
    Api(Box<Follower>),
    Etcd(Box<Shares>),
}

impl Nodes {
    fn source(&self) -> Source {
        match self {
            Nodes::Api(_) => Source::Api,
            Nodes::Etcd(_) => Source::Etcd,
        }
    }

    /// Returns the known nodes, and a signal of their changes.
    fn subscribe(&self) -> (Shared, watch::Receiver<()>) {
        match self {
            Nodes::Api(follower) => follower.subscribe(),
            Nodes::Etcd(shares) => shares.subscribe(),
        }
    }

    /// Reads the nodes once.
    async fn once(&mut self) -> Result<(), Report> {
        let told = match self {
            Nodes::Api(follower) => follower.once().await.map_err(|err| (exit_of(&err), err.to_string())),
            Nodes::Etcd(shares) => shares.once().await.map_err(|why| (Exit::Execution, why)),
        };
        told.map_err(|(exit, why)| Report::because(exit, NOT_TOLD, why))
    }

    /// Follows the nodes until the future is dropped.
    async fn run(self) {
        match self {
            Nodes::Api(follower) => follower.run().await,
            Nodes::Etcd(shares) => shares.run().await,
        }
    }
}

/// Creates the source that the user has chosen. It fails without one.
fn follower(given: &Node, options: &Options, path: &[PathBuf]) -> Result<Nodes, Report> {
    if options.conflist.cluster.is_some() {
        let shares = Shares::new(&options.conflist, path).map_err(|why| failed(&why))?;
        return Ok(Nodes::Etcd(Box::new(shares)));
    }
    if !has_server(given) {
        return Err(usage("no source of nodes is given").hint(
            "give an API server (--kubeconfig, or --in-cluster in a pod) or a store (--cluster-local)",
        ));
    }
    Ok(Nodes::Api(Box::new(api_follower(given)?)))
}

/// Returns whether the user has named an API server.
fn has_server(given: &Node) -> bool {
    given.kubeconfig.is_some() || given.in_cluster
}

/// Creates the follower of the API server's nodes. It fails if the server's kubeconfig can't be used.
fn api_follower(given: &Node) -> Result<Follower, Report> {
    let kubeconfig = given.kubeconfig.clone().unwrap_or_default();
    let server = Api { kubeconfig, in_cluster: given.in_cluster };
    Follower::new(&server).map_err(|err| Report::because(Exit::Config, NOT_TOLD, err))
}

/// Converts the command line into options of the agent.
fn options(session: &Session, given: &Node) -> Result<Options, Report> {
    let named = given.node_name.clone().filter(|name| !name.is_empty());
    let read = |path: &PathBuf| {
        let routed = given.plugin == Some(Main::Bridge);
        let added = Added { node: named.as_deref(), data_dir: given.data_dir.as_deref(), routed };
        ClusterLocal::read(path, &given.name, &added)
            .map_err(|why| Report::because(Exit::Config, "--cluster-local can't be used", why))
    };
    let cluster = given.cluster_local.as_ref().map(read).transpose()?;
    let plugin = match (given.plugin, &cluster) {
        (Some(Main::Bridge), _) | (None, None) => Plugin::Bridge,
        (Some(Main::Ptp), _) | (None, Some(_)) => Plugin::Ptp,
    };
    let node = cluster.as_ref().map(|cluster| cluster.node.clone()).or(named);
    Ok(Options {
        node: node.unwrap_or_else(host_name),
        conflist: Conflist {
            dir: session.conf.dir().to_owned(),
            name: given.name.clone(),
            plugin,
            template: given.template.clone(),
            data_dir: given.data_dir.clone(),
            cluster,
        },
        mtu: given.mtu,
        masquerade: !given.no_masquerade,
        non_masquerade: given
            .non_masquerade_cidr
            .iter()
            .map(|cidr| cnimble_cni::cidr::network_of(*cidr))
            .collect(),
        remove_on_delete: given.remove_on_delete,
    })
}

/// Returns a plan as JSON.
fn planned(plan: &Plan) -> Value {
    let routes = plan
        .routes
        .iter()
        .map(|(cidr, hop)| json!({"dst": cidr.to_string(), "via": hop.via, "node": hop.node}));
    json!({
        "podCIDRs": plan.own.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "routes": routes.collect::<Value>(),
        "conditions": conditions(&plan.conditions),
    })
}

/// Returns faults of nodes as JSON.
fn conditions(all: &[(String, String)]) -> Value {
    all.iter().map(|(node, why)| json!({"node": node, "message": why})).collect()
}

/// Reconciles once, or prints the plan with `--dry-run`. It fails with [`Exit::Found`] if this node itself has a fault.
/// One of another node has to be fixed there.
fn once(session: &Session, given: &Node, mut agent: Agent, shared: &Shared) -> Result<(), Report> {
    agent.reserve(&shared.known().servers);
    let nodes = std::mem::take(&mut shared.known().nodes);
    if given.dry_run {
        let plan = agent.plan(&nodes).map_err(|why| failed(&why))?;
        if session.json {
            return print_json(&planned(&plan));
        }
        let own = plan.own.iter().map(|cidr| format!("pods here: {cidr}\n"));
        let routes = plan
            .routes
            .iter()
            .filter_map(|(cidr, hop)| Some(format!("{cidr} via {} (node {})\n", hop.via?, hop.node)));
        let wrong = plan.conditions.iter().map(|(node, why)| format!("node {node}: {why}\n"));
        return print(&own.chain(routes).chain(wrong).collect::<String>());
    }
    let own_name = agent.node().to_owned();
    let report = agent.reconcile(&nodes).map_err(|why| failed(&why))?;
    for (node, why) in &report.conditions {
        log::warn!("node {node}: {why}");
    }
    if !report.failures.is_empty() {
        return Err(failed(&report.failures.join("; ")));
    }
    let own: Vec<String> = report.own.iter().map(ToString::to_string).collect();
    session.done(
        &format!("{} to other nodes' pods, {}", count(report.routes, "route"), count(report.writes, "write")),
        &json!({"podCIDRs": own, "routes": report.routes, "writes": report.writes,
            "conditions": conditions(&report.conditions)}),
    )?;
    // A fault of another node has to be fixed there.
    fail_with(report.conditions.iter().any(|(node, _)| *node == own_name).then_some(Exit::Found))
}

/// Reconciles when the nodes change, when another program changes routes, and every `resync`. Nothing is done until the
/// source has listed all nodes.
async fn work(
    mut agent: Agent,
    shared: Shared,
    status: Status,
    [mut changed, mut disturbed]: [watch::Receiver<()>; 2],
    resync: Duration,
) -> Result<(), Report> {
    loop {
        // Before the server has listed all nodes, a missing node may only be unlisted yet.
        let nodes = Some(shared.known()).filter(|known| known.listed).map(|known| known.nodes.clone());
        if let Some(nodes) = nodes {
            status.begin();
            agent.reserve(&shared.known().servers);
            let looked = tokio::task::spawn_blocking(move || {
                let outcome = agent.reconcile(&nodes);
                (agent, outcome)
            });
            let (back, outcome) = looked.await.map_err(|err| failed(&err.to_string()))?;
            agent = back;
            status.looked(outcome);
        }
        tokio::select! {
            Ok(()) = changed.changed() => {}
            Ok(()) = disturbed.changed() => {}
            () = sleep(resync) => {}
        }
        sleep(SETTLE).await;
    }
}

/// Waits for SIGINT or SIGTERM. SIGHUP is ignored, because changed files are read again anyway.
async fn stopped(mut signals: Signals) {
    while signals.next().await == Exit::HungUp {}
}
