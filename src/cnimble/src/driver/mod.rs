//! The netavark driver `cni`, which this command is if its file has that name. podman 5 puts containers on CNI networks by
//! it. The calls are those of netavark's `plugin-API.md`, with JSON on stdin and stdout: `create`, `setup NETNS`,
//! `teardown NETNS` and `info`. It reads no variable of the environment, because that is the user's.

mod create;
mod described;
mod named;
mod subnets;

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use cnimble_netavark::{Failure, said, setup, teardown};

use crate::args::service::LogFormat;
use crate::interrupt::Signals;
use crate::logging;

/// The name of the driver.
const NAME: &str = "cni";

/// The version of netavark's interface for drivers. There is only this one.
const API_VERSION: &str = "1.0.0";

/// The largest input in bytes. A plugin takes no larger configuration.
const LIMIT: u64 = 16 << 20;

const USAGE: &str = "usage: cni create | setup NETNS | teardown NETNS | info

podman and netavark call this program, with JSON on stdin. To use it:
`podman network create --driver cni --opt network=NAME NAME`
";

/// Returns whether this process is the driver.
pub(super) fn is_called() -> bool {
    std::env::args_os().next().is_some_and(|name| Path::new(&name).file_name() == Some(OsStr::new(NAME)))
}

/// Makes the call of the command line, and prints its answer.
pub(super) fn main() -> ExitCode {
    // Without a log the call works all the same.
    let _ = logging::init(LogFormat::Text, log::LevelFilter::Warn);
    let args: Vec<String> =
        std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    if matches!(args.as_slice(), ["-h" | "--help" | "help"]) {
        return print(USAGE, ExitCode::SUCCESS);
    }
    match answer_to(&args) {
        Ok(Value::Null) => ExitCode::SUCCESS,
        Ok(answer) => print(&answer.to_string(), ExitCode::SUCCESS),
        Err(failure) => print(&json!({"error": failure.to_string()}).to_string(), ExitCode::FAILURE),
    }
}

/// Makes the call that the arguments name. `null` is a success without an answer.
fn answer_to(args: &[&str]) -> Result<Value, Failure> {
    match args {
        ["info"] => Ok(json!({"version": env!("CARGO_PKG_VERSION"), "api_version": API_VERSION})),
        ["create"] => {
            let network: Value = read()?;
            block_on(create::create(network))
        }
        ["setup", netns] => {
            let call = read()?;
            block_on(setup(netns, &call, signal()))
        }
        ["teardown", netns] => {
            let call = read()?;
            block_on(teardown(netns, &call)).map(|()| Value::Null)
        }
        _ => said(USAGE.lines().next().unwrap_or_default()),
    }
}

/// Reads the JSON on stdin.
fn read<T: DeserializeOwned>() -> Result<T, Failure> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().take(LIMIT).read_to_end(&mut bytes);
    read.map_err(|err| Failure::Said(format!("reading stdin: {err}")))?;
    serde_json::from_slice(&bytes).map_err(|err| Failure::Said(format!("the JSON on stdin: {err}")))
}

/// Waits for SIGINT, SIGTERM or SIGHUP. Ctrl-C reaches podman, netavark and the driver, but no running plugin. So the
/// driver stops the plugin, and undoes what it did. A `teardown` is not interrupted: netavark goes on with it, too.
async fn signal() {
    match Signals::listen() {
        Ok(mut signals) => _ = signals.next().await,
        Err(_) => std::future::pending().await,
    }
}

/// Runs a call to its end, on this thread alone.
fn block_on<T>(call: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|err| Failure::Said(format!("can't start: {err}")))?.block_on(call)
}

/// Prints the answer. If that fails, the call has failed for netavark.
fn print(text: &str, status: ExitCode) -> ExitCode {
    match writeln!(std::io::stdout(), "{}", text.trim_end()) {
        Ok(()) => status,
        Err(_) => ExitCode::FAILURE,
    }
}
