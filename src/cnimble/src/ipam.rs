//! `ipam`: runs the program that speaks to the store, for networks with the IPAM plugin cluster-local.

use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;

use cnimble_cni::Error;
use cnimble_cni::list::Injection;
use cnimble_leases::cluster::{self, PROGRAM};

use super::Session;
use super::args::ipam::{Ipam, Network, Task};
use super::etcd::{self, PLUGIN};
use super::network::load;
use super::output::View;
use super::reclaim;
use super::report::{Exit, Report};
use super::style::{Paint, table};

/// Sets up a network in etcd, lists its blocks, or releases the addresses of a node.
pub(super) async fn ipam(session: &Session, given: &Ipam) -> Result<(), Report> {
    match &given.task {
        Task::Init { network: Network { network }, new, recover } => {
            let setup = if *new {
                Some("new")
            } else if *recover {
                Some("recover")
            } else {
                None
            };
            let task = std::iter::once("init").chain(setup);
            let answer =
                run_program(session, network, task, &format!("can't set up network {network}")).await?;
            let rest = if *recover { "; nodes claim again what they own, then others" } else { "" };
            session.done(&format!("{network} is set up{rest}"), &answer)
        }
        Task::Blocks(Network { network }) => {
            let answer =
                run_program(session, network, ["blocks"], &format!("can't list the blocks of {network}"))
                    .await?;
            session.show(&Blocks(answer))
        }
        Task::Release { network: Network { network }, node } => {
            let what = format!("can't release the addresses of {node} in {network}");
            let answer = run_program(session, network, ["release", node.as_str()], &what).await?;
            let count = answer.get("released").and_then(Value::as_u64).unwrap_or(0);
            session.done(
                &format!("blocks and addresses released: {count}; free from {}", free(&answer)),
                &answer,
            )
        }
        Task::Reclaim { network: Network { network }, kubeconfig } => {
            let what = format!("can't reclaim addresses of {network}");
            let (program, _, config) = program_of(session, network, &what)?;
            reclaim::reclaim(&program, &config, kubeconfig, &what).await
        }
    }
}

/// The blocks of a network, as the program prints them.
#[derive(Serialize)]
struct Blocks(Value);

impl View for Blocks {
    fn text(&self, paint: Paint) -> String {
        let rows = self.0.as_array().into_iter().flatten();
        let rows = rows.map(|row| vec![text(row, "first"), text(row, "last"), text(row, "node"), free(row)]);
        table(&["FIRST", "LAST", "NODE", "FREE FROM"], &rows.collect::<Vec<_>>(), paint)
    }
}

/// Returns the text of a key. It is empty without one.
fn text(row: &Value, key: &str) -> String {
    row.get(key).and_then(Value::as_str).unwrap_or("").to_owned()
}

/// Returns the time at which addresses become free, in RFC 3339. It is empty without one. The program prints
/// milliseconds since 1970.
fn free(answer: &Value) -> String {
    let Some(unix) = answer.get("freeAt").and_then(Value::as_u64) else { return String::new() };
    let time = i64::try_from(unix).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    time.map_or_else(|| unix.to_string(), |time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

/// Returns the program, the network's name, and its configuration for the program.
///
/// # Errors
/// Fails if the network doesn't use cluster-local, and if there is no program. `what` begins the error.
fn program_of(session: &Session, network: &str, what: &str) -> Result<(PathBuf, String, String), Report> {
    let list = load(session, network, what)?;
    let plugin = etcd::plugin_of(&list).ok_or_else(|| {
        Report::new(Exit::Config, what)
            .row("network", &list.name)
            .row("why", format!("none of its plugins has the IPAM plugin {PLUGIN}"))
    })?;
    let program = cluster::program(session.invoker.path()).ok_or_else(|| {
        Report::because(Exit::Execution, what, format!("there is no program {PROGRAM}"))
            .hint("it is installed beside the plugins; name their directory with --cni-path or CNI_PATH")
    })?;
    let config = list.configuration(plugin, &Injection::default()).to_string();
    Ok((program, list.name, config))
}

/// Runs the program with the network's configuration, and returns the JSON that it prints. An answer that is no JSON
/// becomes null.
///
/// # Errors
/// Fails as [`program_of`] does, and with the program's own error.
async fn run_program(
    session: &Session,
    network: &str,
    task: impl IntoIterator<Item = &str>,
    what: &str,
) -> Result<Value, Report> {
    let (program, name, config) = program_of(session, network, what)?;
    let output = etcd::run(&program, task, &config).await.map_err(|err| {
        Report::new(Exit::Execution, what)
            .row("program", program.display().to_string())
            .row("why", err.to_string())
    })?;
    if output.status.success() {
        return Ok(serde_json::from_slice(&output.stdout).unwrap_or(Value::Null));
    }
    let report = Report::new(Exit::Plugin, what).row("network", name);
    Err(match Error::from_json(&output.stdout) {
        Some(err) if err.details.is_empty() => report.row("why", err.msg),
        Some(err) => report.row("why", err.msg).row("details", err.details),
        None => report.row("why", format!("{} failed ({})", program.display(), output.status)),
    })
}
