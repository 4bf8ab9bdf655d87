//! Runs the program that speaks to the store for networks with the IPAM plugin cluster-local.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use cnimble_cni::list::ListEntry;
use cnimble_cni::{Code, Error, NetworkList, json};
use cnimble_leases::cluster::{self, PROGRAM};

/// The IPAM plugin whose networks need the program.
pub(super) const PLUGIN: &str = "cluster-local";

/// Returns the first plugin of the list that has the IPAM plugin cluster-local, or `None` if the network needs no
/// program.
pub(super) fn plugin_of(list: &NetworkList) -> Option<&ListEntry> {
    list.plugins.iter().find(|plugin| {
        let kind = json::get(&plugin.document, "ipam").and_then(|ipam| json::get(ipam, "type"));
        kind.and_then(Value::as_str) == Some(PLUGIN)
    })
}

/// Returns the path of the program in one of these directories.
///
/// # Errors
/// Fails with [`Code::DELEGATE`] if none has it.
pub(super) fn must_have(path: &[PathBuf]) -> Result<PathBuf, Error> {
    cluster::program(path).ok_or_else(|| {
        Error::new(Code::DELEGATE, format!("there is no program {PROGRAM} beside the plugins"))
    })
}

/// Runs a task of the program to its end, and returns what it has printed. `config` is the network's configuration.
///
/// # Errors
/// Fails with the error that the program has printed. It fails with [`Code::DELEGATE`] if no directory has the program,
/// and with [`Code::TRY_AGAIN_LATER`] if it can't be run or has failed without an error.
pub(super) async fn answer<A: AsRef<std::ffi::OsStr>>(
    path: &[PathBuf],
    task: impl IntoIterator<Item = A>,
    config: &str,
) -> Result<Vec<u8>, Error> {
    let program = must_have(path)?;
    let output = run(&program, task, config)
        .await
        .map_err(|err| Error::new(Code::TRY_AGAIN_LATER, format!("{}: {err}", program.display())))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(Error::from_json(&output.stdout).unwrap_or_else(|| {
        let why = format!("{} failed ({})", program.display(), output.status);
        Error::new(Code::TRY_AGAIN_LATER, why)
    }))
}

/// Asks the store whether an ADD that needs it would succeed now.
///
/// # Errors
/// Fails with the error of that ADD, and as [`answer`] does.
pub(super) async fn check_store(path: &[PathBuf], config: &str) -> Result<(), Error> {
    answer(path, ["look"], config).await.map(drop)
}

/// Starts the program, and writes the network's configuration to its stdin. The program is killed if the child is
/// dropped.
pub(super) async fn start<A: AsRef<std::ffi::OsStr>>(
    program: &Path,
    args: impl IntoIterator<Item = A>,
    config: &str,
) -> io::Result<Child> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(config.as_bytes()).await?;
    }
    Ok(child)
}

/// Runs the program to its end, and returns its output whether or not it has succeeded. This can take some seconds.
pub(super) async fn run<A: AsRef<std::ffi::OsStr>>(
    program: &Path,
    args: impl IntoIterator<Item = A>,
    config: &str,
) -> io::Result<Output> {
    start(program, args, config).await?.wait_with_output().await
}
