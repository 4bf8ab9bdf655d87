//! `ipam reclaim`: releases what nodes own that an API server has deleted. One process does so for the cluster, so nodes
//! need no right to write the blocks of others.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::time::sleep;

use cnimble_agent::Follower;
use cnimble_api::Server;
use cnimble_cni::{CniArgs, Code, Error, PluginConfig};
use cnimble_leases::cluster::config::Cluster;

use super::etcd;
use super::interrupt::Signals;
use super::report::{Exit, Report};

/// The longest time between two looks.
const SELDOM: Duration = Duration::from_secs(60);

/// What the program prints.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Looked {
    /// What is known of silent boots. The next look is told it again.
    silent: Value,
    /// The nodes that have records in the store and that the API server does not list.
    gone: BTreeSet<String>,
}

/// Looks again and again, until a signal asks the process to end. A look that fails is logged and repeated.
///
/// # Errors
/// Fails if the kubeconfig or the network's configuration can't be used.
pub(super) async fn reclaim(
    program: &Path,
    config: &str,
    kubeconfig: &Path,
    what: &str,
) -> Result<(), Report> {
    let unusable = |why: String| Report::because(Exit::Config, what, why);
    let follower = Follower::new(&Server::kubeconfig(kubeconfig)).map_err(|err| unusable(err.to_string()))?;
    let interval = interval(config).map_err(|err| unusable(err.to_string()))?;
    let (nodes, _) = follower.subscribe();
    let mut signals = Signals::listen()?;
    let work = async move {
        let mut last = Looked::default();
        loop {
            let listed = nodes.names();
            if !listed.is_empty() {
                match look(program, config, &listed, &last.silent).await {
                    Ok(looked) => {
                        log_changes(&last.gone, &looked.gone);
                        last = looked;
                    }
                    Err(err) => log::warn!("{err}"),
                }
            }
            // The API server has listed nothing yet, or does not answer.
            sleep(if listed.is_empty() { Duration::from_secs(1) } else { interval }).await;
        }
    };
    tokio::select! {
        () = follower.run() => Ok(()),
        () = work => Ok(()),
        () = async { while signals.next().await == Exit::HungUp {} } => Ok(()),
    }
}

/// Returns the time between two looks. A silent node is noticed by several of them.
fn interval(config: &str) -> Result<Duration, Error> {
    let cluster = Cluster::read(&PluginConfig::parse(config.as_bytes())?, &CniArgs::default())?;
    Ok(SELDOM.min(Duration::from_millis(cluster.offline_ms() / 6)))
}

/// Runs the program once with the names of the cluster's nodes.
async fn look(program: &Path, config: &str, listed: &[String], silent: &Value) -> Result<Looked, Error> {
    let failed = |why: &dyn std::fmt::Display| {
        Error::new(Code::TRY_AGAIN_LATER, format!("{}: {why}", program.display()))
    };
    let mut config: Map<String, Value> = serde_json::from_str(config).map_err(|err| failed(&err))?;
    config.insert("nodes".to_owned(), json!(listed));
    if silent.is_array() {
        config.insert("silent".to_owned(), silent.clone());
    }
    let config = Value::from(config).to_string();
    let output = etcd::run(program, ["reclaim"], &config).await.map_err(|err| failed(&err))?;
    if !output.status.success() {
        return Err(Error::from_json(&output.stdout).unwrap_or_else(|| failed(&output.status)));
    }
    serde_json::from_slice(&output.stdout).map_err(|err| failed(&err))
}

/// Logs which nodes have left, and of which nothing is left in the store.
fn log_changes(before: &BTreeSet<String>, now: &BTreeSet<String>) {
    for name in now.difference(before) {
        log::info!(
            "the API server has no node {name}: its addresses return when it has confirmed none for too long"
        );
    }
    for name in before.difference(now) {
        log::info!("the addresses of {name} are released, or the API server lists it again");
    }
}
