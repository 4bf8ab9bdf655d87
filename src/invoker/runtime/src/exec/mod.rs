//! Running one plugin once: environment and stdin in, stdout and exit status out.
//!
//! The plugin inherits the environment, such as TRACEPARENT and PATH, and gets the `CNI_*` variables. It runs in a new
//! process group. At its time limit, or when the future is dropped, the whole group is killed. A Ctrl-C on the terminal
//! reaches only the invoker, which can then clean up in order.
//!
//! **Cancellation.** Dropping the future kills the plugin with SIGKILL; tokio reaps it.
//! Changes of the plugin stay, as after a crash. Call DEL.

mod running;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use cnimble_cni::{self as cni, Verb};

use super::error::PluginError;
use super::observe::{Execution, Observer};
use running::{End, MAX_OUTPUT, Running, converse};

/// The parameters that a plugin gets in its environment.
#[derive(Debug, Clone, Copy)]
pub struct Parameters<'a> {
    /// The verb, in CNI_COMMAND.
    pub verb: Verb,
    /// The container, in CNI_CONTAINERID.
    pub container_id: &'a str,
    /// The namespace's path, in CNI_NETNS. May be empty for DEL.
    pub netns: &'a str,
    /// The interface, in CNI_IFNAME.
    pub ifname: &'a str,
    /// Pairs for CNI_ARGS.
    pub args: &'a [(String, String)],
    /// Directories for CNI_PATH.
    pub path: &'a [PathBuf],
}

/// Where a plugin's stderr goes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Stderr {
    /// To our own, line by line as it comes.
    #[default]
    Inherit,
    /// Into the error if the plugin fails (the last 4 KiB), nowhere otherwise.
    Capture,
}

/// How plugins are run.
#[derive(Debug, Clone, Default)]
pub struct Exec {
    /// How long one execution may take; `None` is as long as it likes. At the limit the
    /// plugin gets SIGTERM, so that it can undo what it did, and SIGKILL two seconds later.
    pub limit: Option<Duration>,
    /// When every execution must have ended; the same happens then as at the limit, and no
    /// other plugin is started.
    pub deadline: Option<Deadline>,
    /// Where its stderr goes.
    pub stderr: Stderr,
    /// Gets a call after every execution.
    pub observer: Option<Observer>,
}

/// The end of an operation in which several plugins are run.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    /// The point in time.
    pub at: Instant,
    /// How long the operation was allowed to take, for the error.
    pub limit: Duration,
}

impl Deadline {
    /// So much time from now on.
    pub fn after(limit: Duration) -> Self {
        Deadline { at: Instant::now() + limit, limit }
    }
}

/// How long to wait while the plugin's file is open for writing.
const BUSY: Duration = Duration::from_secs(5);

impl Exec {
    /// Runs `file` and returns its stdout.
    ///
    /// # Errors
    /// See [`PluginError`]; an orderly CNI error is [`PluginError::Refused`].
    pub async fn run(
        &self,
        file: &Path,
        parameters: &Parameters<'_>,
        stdin: &[u8],
    ) -> Result<Vec<u8>, PluginError> {
        let begun = Instant::now();
        let outcome = self.run_unobserved(file, parameters, stdin).await;
        if let Some(observer) = &self.observer {
            observer.tell(&Execution {
                file,
                verb: parameters.verb,
                container_id: parameters.container_id,
                took: begun.elapsed(),
                error: outcome.as_ref().err(),
            });
        }
        outcome
    }

    async fn run_unobserved(
        &self,
        file: &Path,
        parameters: &Parameters<'_>,
        stdin: &[u8],
    ) -> Result<Vec<u8>, PluginError> {
        let (time, limit) = self.time().unzip();
        let too_late = |stderr| PluginError::TimeLimit {
            path: file.to_owned(),
            limit: limit.unwrap_or_default(),
            stderr,
        };
        if time.is_some_and(|time| time.is_zero()) {
            return Err(too_late(String::new()));
        }
        log::debug!("{} of {}", parameters.verb, file.display());
        let mut running = Running(self.spawn(file, parameters).await?);
        let mut output = Vec::new();
        let mut noise = Vec::new();
        let work = converse(&mut running.0, stdin, &mut output, &mut noise);
        let end = match time {
            None => Some(work.await),
            Some(time) => timeout(time, work).await.ok(),
        };
        let stderr = || String::from_utf8_lossy(&noise).trim().to_owned();
        let path = || file.to_owned();
        let status = match end {
            Some(Ok(End::Exit(status))) => status,
            Some(Ok(End::TooLong)) => {
                running.kill().await;
                return Err(PluginError::TooLong { path: path(), limit: MAX_OUTPUT, stderr: stderr() });
            }
            Some(Err((doing, source))) => {
                running.kill().await;
                return Err(PluginError::Io { path: path(), doing, source });
            }
            None => {
                running.stop().await;
                return Err(too_late(stderr()));
            }
        };
        if status.success() {
            return Ok(output);
        }
        match cni::Error::from_json(&output) {
            Some(error) => Err(PluginError::Refused { path: path(), error, stderr: stderr() }),
            None => Err(PluginError::NoError {
                path: path(),
                status,
                output: first_line(&output),
                stderr: stderr(),
            }),
        }
    }

    /// Whether the deadline has passed.
    pub(super) fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline.at <= Instant::now())
    }

    /// How long an execution that begins now may take, and the limit that says so.
    fn time(&self) -> Option<(Duration, Duration)> {
        let own = self.limit.map(|limit| (limit, limit));
        let whole = self.deadline.map(|Deadline { at, limit }| {
            let left = at.saturating_duration_since(Instant::now());
            (left, limit)
        });
        own.into_iter().chain(whole).min_by_key(|(time, _)| *time)
    }

    /// Spawns the plugin. Retries while the file is open for writing (ETXTBSY).
    async fn spawn(&self, file: &Path, parameters: &Parameters<'_>) -> Result<Child, PluginError> {
        let failed = |source| PluginError::Start { path: file.to_owned(), source };
        let path = std::env::join_paths(parameters.path)
            .map_err(|err| failed(io::Error::new(io::ErrorKind::InvalidInput, err)))?;
        let args: Vec<String> = parameters.args.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let mut command = Command::new(file);
        command
            .env("CNI_COMMAND", parameters.verb.as_str())
            .env("CNI_CONTAINERID", parameters.container_id)
            .env("CNI_NETNS", parameters.netns)
            .env("CNI_IFNAME", parameters.ifname)
            .env("CNI_ARGS", args.join(";"))
            .env("CNI_PATH", path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(match self.stderr {
                Stderr::Inherit => Stdio::inherit(),
                Stderr::Capture => Stdio::piped(),
            })
            .process_group(0)
            .kill_on_drop(true);
        let mut waited = Duration::ZERO;
        let mut pause = Duration::from_millis(5);
        loop {
            match command.spawn() {
                Err(err) if err.raw_os_error() == Some(libc::ETXTBSY) && waited < BUSY => {
                    sleep(pause).await;
                    waited += pause;
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
                outcome => return outcome.map_err(failed),
            }
        }
    }
}

/// The first line with something on it, short enough for an error message.
pub(super) fn first_line(bytes: &[u8]) -> String {
    // Huge output must not be converted as a whole.
    let text = String::from_utf8_lossy(bytes.get(..1024).unwrap_or(bytes));
    let line = text.lines().map(str::trim).find(|line| !line.is_empty());
    line.unwrap_or_default().chars().take(200).flat_map(char::escape_debug).collect()
}
