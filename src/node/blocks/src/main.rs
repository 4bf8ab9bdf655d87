//! `cluster-local-store`: one task on etcd or an API server for each start, for the plugin cluster-local. The plugin's
//! configuration is on stdin, CNI_ARGS in the environment, an error is JSON on stdout. `cnimble ipam` starts it for an
//! operator's task, with JSON as the answer. `cnimble node` starts it with `tend`, and with `watch`, which prints a
//! line of JSON for each state.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::process::ExitCode;

use cnimble_blocks::{Asked, Cleared, Setup, Task};
use serde::Deserialize;

use cnimble_cni::{CniArgs, Code, Error, PluginConfig};
use cnimble_leases::cluster::config::Cluster;
use cnimble_leases::cluster::share::Other;
use cnimble_os::privileges::{Caps, Restraint};

/// The largest configuration in bytes.
const LIMIT: u64 = 16 << 20;
fn main() -> ExitCode {
    // The configured files may belong to another user.
    Restraint { keep: Caps::DAC_OVERRIDE, starts_programs: false }.apply();
    let mut stdin = Vec::new();
    let outcome = read(&mut stdin).and_then(|(cluster, task)| run(&cluster, &task));
    match outcome {
        Ok(answer) => {
            let _ = std::io::stdout().write_all(answer.as_bytes());
            ExitCode::SUCCESS
        }
        Err(err) => {
            let _ = std::io::stdout().write_all(err.to_json(PluginConfig::version_of(&stdin)).as_bytes());
            ExitCode::FAILURE
        }
    }
}

/// Reads the task from the arguments, and the configuration from stdin, whose bytes stay in `stdin` for an error.
fn read(stdin: &mut Vec<u8>) -> Result<(Cluster, Task), Error> {
    let mut task = task(&std::env::args().skip(1).collect::<Vec<_>>()).ok_or_else(|| {
        Error::new(Code::INVALID_ENVIRONMENT, "usage: cluster-local-store TASK")
            .details("the plugin cluster-local and `cnimble ipam` start this program")
    })?;
    std::io::stdin()
        .take(LIMIT)
        .read_to_end(stdin)
        .map_err(|err| Error::new(Code::IO, format!("reading the configuration from stdin: {err}")))?;
    let config = PluginConfig::parse_for_del(stdin)?.0;
    let args = CniArgs::parse(&std::env::var("CNI_ARGS").unwrap_or_default())?;
    match &mut task {
        Task::Tend(asked) => asked.listed = config.decode::<Added>()?.nodes,
        Task::Reclaim(asked) => {
            let added: Added = config.decode()?;
            (asked.listed, asked.silent) = (added.nodes, added.silent);
        }
        _ => {}
    }
    Ok((Cluster::read(&config, &args)?, task))
}

/// The keys that are added to the configuration for `tend` and `reclaim`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Added {
    nodes: BTreeSet<String>,
    silent: Vec<Other>,
}

/// Parses the arguments. It returns `None` if they are no task.
fn task(args: &[String]) -> Option<Task> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["more", set, count] => Some(Task::More(set.parse().ok()?, count.parse().ok()?)),
        ["address", ip] => Some(Task::Address(ip.parse().ok()?)),
        ["confirm"] => Some(Task::Confirm),
        ["tidy"] => Some(Task::Tidy),
        ["look"] => Some(Task::Look),
        ["tend", ips @ ..] => {
            let ips = ips.iter().map(|ip| ip.parse().ok()).collect::<Option<_>>()?;
            Some(Task::Tend(Asked { ips, ..Asked::default() }))
        }
        ["watch", epoch, revision] => Some(Task::Watch((epoch.parse().ok()?, revision.parse().ok()?))),
        ["init"] => Some(Task::Init(None)),
        ["init", "new"] => Some(Task::Init(Some(Setup::New))),
        ["init", "recover"] => Some(Task::Init(Some(Setup::Recover))),
        ["blocks"] => Some(Task::Blocks),
        ["reclaim"] => Some(Task::Reclaim(Cleared::default())),
        ["release", node] => Some(Task::Release((*node).to_owned())),
        _ => None,
    }
}

/// Performs the task, and returns the text to print. It connects to the store only if the task needs that.
fn run(cluster: &Cluster, task: &Task) -> Result<String, Error> {
    if let Some(answer) = task.is_done(cluster)? {
        return Ok(answer);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|err| Error::new(Code::IO, format!("starting: {err}")))?;
    let outcome = runtime.block_on(task.perform(cluster, say));
    // This does not wait for a thread that still resolves a name.
    runtime.shutdown_background();
    Ok(outcome?)
}

/// Prints a line for the agent. Fails if the agent has closed the pipe.
fn say(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
