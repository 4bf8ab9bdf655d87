//! Pause processes, and plugins that still run after a crash.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Command;
use tokio::time::sleep;

use cnimble_netlink::NetNs;

use super::config::PauseProcess;
use super::error::Cause;

/// The time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);

/// The variable with the sandbox's ID in the environment of a pause process.
const MARK: &str = "CNIMBLE_SANDBOX";

/// The program that idles in each sandbox's namespace until SIGTERM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PauseCommand {
    pub program: PathBuf,
    pub args: Vec<String>,
}

/// Starts a pause process in the namespace `netns`. It outlives this process, and is ended by [`end`].
pub(super) async fn start(command: &PauseCommand, netns: PathBuf, id: &str) -> Result<PauseProcess, Cause> {
    let program = command.program.display().to_string();
    let mut command = {
        let mut process = Command::new(&command.program);
        process.args(&command.args).env(MARK, id).process_group(0);
        process.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        process
    };
    // A thread that may block enters the namespace. tokio reaps the child if it ends before this process.
    let spawned = tokio::task::spawn_blocking(move || {
        let netns = NetNs::open(&netns)?;
        netns.enter(|| command.spawn())
    });
    let spawned = match spawned.await {
        Ok(spawned) => spawned?,
        Err(err) => Err(io::Error::other(err)),
    };
    let started = spawned.and_then(|child| {
        let pid = child.id().unwrap_or_default();
        let start_time = start_time(pid).ok_or_else(|| io::Error::other("it ended at once"))?;
        Ok(PauseProcess { pid, start_time })
    });
    started.map_err(|source| Cause::Process { program, source })
}

/// Returns whether this very process exists. A zombie does not count.
pub(super) fn is_alive(process: PauseProcess) -> bool {
    start_time(process.pid) == Some(process.start_time)
}

/// Ends the process by SIGTERM, and by SIGKILL after [`GRACE`].
pub(super) async fn end(process: PauseProcess) {
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        if !is_alive(process) {
            return;
        }
        send(process.pid, signal);
        gone(|| !is_alive(process)).await;
    }
}

/// Ends plugins and pause processes of a sandbox that still run after a crash. They would set up what is being torn
/// down.
pub(super) async fn end_orphans(id: &str) {
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let left = orphans(id);
        if left.is_empty() {
            return;
        }
        for process in left {
            log::warn!("ending process {} of sandbox {id}, left by a crash", process.pid);
            if is_alive(process) {
                send(process.pid, signal);
            }
        }
        gone(|| orphans(id).is_empty()).await;
    }
}

/// Returns the processes with the sandbox's ID in their environment. The ID is random, so no others have it.
fn orphans(id: &str) -> Vec<PauseProcess> {
    let marks = [format!("CNI_CONTAINERID={id}"), format!("{MARK}={id}")];
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != std::process::id())
        .filter_map(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
            let ours = environment
                .split(|byte| *byte == 0)
                .any(|variable| marks.iter().any(|mark| mark.as_bytes() == variable));
            ours.then(|| Some(PauseProcess { pid, start_time: start_time(pid)? }))?
        })
        .collect()
}

/// Waits until `done`, for at most [`GRACE`].
async fn gone(mut done: impl FnMut() -> bool) {
    let mut waited = Duration::ZERO;
    let mut pause = Duration::from_millis(1);
    while !done() && waited < GRACE {
        sleep(pause).await;
        waited += pause;
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

fn send(pid: u32, signal: Signal) {
    let Ok(pid) = i32::try_from(pid) else { return };
    if let Err(errno) = kill(Pid::from_raw(pid), signal) {
        log::debug!("can't send {signal} to process {pid}: {errno}");
    }
}

/// Returns the start time in clock ticks since boot, or `None` for an ended process, also a zombie (proc_pid_stat(5)).
fn start_time(pid: u32) -> Option<u64> {
    started(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads the start time from the content of /proc/PID/stat. It returns `None` for a zombie.
pub(super) fn started(stat: &[u8]) -> Option<u64> {
    let stat = String::from_utf8_lossy(stat);
    // The second field is the name in parentheses, with any bytes.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let start = fields.nth(18)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn an_orphan_is_found_by_its_environment_and_ended() {
        let id = format!("{:064x}", std::process::id());
        let spawn = |key: &str, value: &str| {
            Command::new("sleep").arg("1000").env(key, value).kill_on_drop(true).spawn().unwrap()
        };
        let mut ours = spawn("CNI_CONTAINERID", &id);
        let mut other = spawn("CNI_CONTAINERID", &format!("{id}0"));
        // Before its exec of sleep it has our environment.
        gone(|| !orphans(&id).is_empty()).await;
        end_orphans(&id).await;
        assert!(!ours.wait().await.unwrap().success());
        assert!(other.try_wait().unwrap().is_none());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn an_id_that_was_given_out_again_is_not_ours() {
        let child = Command::new("sleep").arg("1000").kill_on_drop(true).spawn().unwrap();
        let pid = child.id().unwrap();
        let process = PauseProcess { pid, start_time: start_time(pid).unwrap() };
        assert!(is_alive(process));
        let other = PauseProcess { start_time: process.start_time + 1, ..process };
        assert!(!is_alive(other));
        end(other).await;
        assert!(is_alive(process));
        end(process).await;
        assert!(!is_alive(process));
    }
}
