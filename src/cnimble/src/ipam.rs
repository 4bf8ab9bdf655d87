//! `ipam`: shows and releases the addresses of a cluster. The program that speaks to etcd does the work.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use cnimble_cni::list::{Injection, ListEntry};
use cnimble_cni::{Error, NetworkList, json};

use super::args::ipam::{Ipam, Task};
use super::network::load;
use super::report::{Exit, Report};
use super::style::table;
use super::{Session, print, print_json};

/// The IPAM plugin of these networks.
const PLUGIN: &str = "cluster-local";
/// The program that speaks to etcd, installed beside the plugins.
pub(super) const PROGRAM: &str = "cluster-local-etcd";

pub(super) fn ipam(session: &Session, given: &Ipam) -> Result<(), Report> {
    match &given.task {
        Task::Init { network } => {
            let what = format!("can't set network {network} up");
            let answer = ask(session, network, &["init"], &what)?;
            session.done(&format!("{network} is set up in etcd"), &answer)
        }
        Task::Blocks { network } => {
            let answer = ask(session, network, &["blocks"], &format!("can't list the blocks of {network}"))?;
            if session.json {
                return print_json(&answer);
            }
            let text = |row: &Value, key: &str| row.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
            let rows = answer.as_array().into_iter().flatten().map(|row| {
                let free = row.get("freeAt").and_then(Value::as_u64).map(when).unwrap_or_default();
                vec![text(row, "first"), text(row, "last"), text(row, "node"), free]
            });
            print(&table(&["FIRST", "LAST", "NODE", "FREE FROM"], &rows.collect::<Vec<_>>(), session.paint))
        }
        Task::Release { network, node } => {
            let what = format!("can't release what {node} owns of {network}");
            let answer = ask(session, network, &["release", node], &what)?;
            let count = answer.get("released").and_then(Value::as_u64).unwrap_or(0);
            let free = answer.get("freeAt").and_then(Value::as_u64).map(when).unwrap_or_default();
            session.done(&format!("blocks and addresses released: {count}; free from {free}"), &answer)
        }
    }
}

/// Formats milliseconds since 1970 as a date and time.
fn when(unix: u64) -> String {
    let time = i64::try_from(unix).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    time.map_or_else(|| unix.to_string(), |time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

/// Returns the plugin of the network that uses the IPAM plugin.
pub(super) fn plugin_of(list: &NetworkList) -> Option<&ListEntry> {
    let is_ours = |document: &Value| {
        json::get(document, "ipam").and_then(|ipam| json::get(ipam, "type")).and_then(Value::as_str)
            == Some(PLUGIN)
    };
    list.plugins.iter().find(|plugin| is_ours(&plugin.document))
}

/// Returns the path of the program that speaks to etcd, if one of these directories has it.
pub(super) fn program(path: &[PathBuf]) -> Option<PathBuf> {
    path.iter().map(|dir| dir.join(PROGRAM)).find(|file| file.is_file())
}

/// Runs the program with the network's configuration and returns its answer.
fn ask(session: &Session, network: &str, task: &[&str], what: &str) -> Result<Value, Report> {
    let list = load(session, network, what)?;
    let plugin = plugin_of(&list).ok_or_else(|| {
        Report::new(Exit::Config, what)
            .row("network", &list.name)
            .row("why", format!("no plugin of it has the IPAM plugin {PLUGIN}"))
    })?;
    let program = program(session.invoker.path()).ok_or_else(|| {
        Report::new(Exit::Execution, what)
            .row("why", format!("there is no program {PROGRAM}"))
            .hint("it is installed beside the plugins; name their directory with --cni-path or CNI_PATH")
    })?;
    let failed = |err: std::io::Error| {
        Report::new(Exit::Execution, what)
            .row("program", program.display().to_string())
            .row("why", err.to_string())
    };
    let config = list.configuration(plugin, &Injection::default()).to_string();
    let mut child = Command::new(&program)
        .args(task)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(config.as_bytes()).map_err(failed)?;
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(serde_json::from_slice(&output.stdout).unwrap_or(Value::Null));
    }
    let report = Report::new(Exit::Plugin, what).row("network", &list.name);
    Err(match Error::from_json(&output.stdout) {
        Some(err) if err.details.is_empty() => report.row("why", err.msg),
        Some(err) => report.row("why", err.msg).row("details", err.details),
        None => report.row("why", format!("{} failed ({})", program.display(), output.status)),
    })
}
