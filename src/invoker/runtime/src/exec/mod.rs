//! Runs one plugin once, with environment and stdin as input, and stdout and exit status as output.
//!
//! The plugin inherits the environment, and gets the variables of [`Attach`](crate::Attach) and `CNI_*`. It runs in a
//! new process group, so a Ctrl-C on the terminal reaches only the invoker. At its time limit the group gets SIGTERM,
//! and SIGKILL two seconds later if the plugin is still there. If the future is dropped, the group gets SIGKILL at
//! once, and tokio reaps the plugin. What the plugin has changed by then stays, as after a crash. The ADD of a chain
//! keeps this future when its own is dropped, and [`Exec::caller`] then stops the plugin as at a time limit.

mod running;

use std::ffi::OsString;
use std::fmt;
use std::future::pending;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use cnimble_cni::{self as cni, Verb};

use super::abandoned::Caller;
use super::error::PluginError;
use super::observe::{Execution, Observer};
use running::{MAX_OUTPUT, PluginExit, Running, converse};

/// The values of the variables `CNI_*`, and of the caller's own variables.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parameters<'a> {
    pub(crate) verb: Verb,
    pub(crate) container_id: &'a str,
    pub(crate) netns: &'a str,
    pub(crate) ifname: &'a str,
    pub(crate) args: &'a [(String, String)],
    pub(crate) env: &'a [(String, String)],
    pub(crate) path: &'a [PathBuf],
}

impl<'a> Parameters<'a> {
    /// Returns the variables for the plugin. Fails if a directory of CNI_PATH contains a colon.
    fn environment(&self) -> io::Result<Vec<(&'a str, OsString)>> {
        let path = std::env::join_paths(self.path)
            .map_err(|err| io::Error::new(io::ErrorKind::InvalidInput, err))?;
        let args: Vec<String> = self.args.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let mut env: Vec<(&str, OsString)> =
            self.env.iter().map(|(key, value)| (key.as_str(), value.into())).collect();
        env.extend([
            ("CNI_COMMAND", self.verb.as_str().into()),
            ("CNI_CONTAINERID", self.container_id.into()),
            ("CNI_NETNS", self.netns.into()),
            ("CNI_IFNAME", self.ifname.into()),
            ("CNI_ARGS", args.join(";").into()),
            ("CNI_PATH", path),
        ]);
        Ok(env)
    }
}

/// One execution of a plugin.
#[derive(Debug)]
#[non_exhaustive]
pub struct Invocation<'a> {
    /// The file of the plugin.
    pub file: &'a Path,
    /// The caller's variables and `CNI_*`. A plugin gets them besides the inherited environment.
    pub env: Vec<(&'a str, OsString)>,
    /// The configuration, for stdin.
    pub stdin: &'a [u8],
}

/// The outcome of [`Execute::execute`], once it is known.
pub type Executed<'a> = Pin<Box<dyn Future<Output = io::Result<Output>> + Send + 'a>>;

/// Executes plugins in another way than as child processes: in a sandbox, or not at all in a test.
///
/// ```
/// use std::process::Output;
/// use cnimble_runtime::{Execute, Executed, Invocation};
///
/// /// Succeeds without a plugin.
/// #[derive(Debug)]
/// struct Idle;
///
/// impl Execute for Idle {
///     fn execute<'a>(&'a self, invocation: Invocation<'a>) -> Executed<'a> {
///         println!("{} {:?}", invocation.file.display(), invocation.env);
///         Box::pin(async { Ok(Output { status: Default::default(), stdout: b"{}".to_vec(), stderr: Vec::new() }) })
///     }
/// }
/// let invoker = cnimble_runtime::Invoker::new(["/opt/cni/bin"]).with_executor(Idle);
/// ```
pub trait Execute: fmt::Debug + Send + Sync {
    /// Runs the plugin. Returns its exit status and all of its output. Dropping the future must end the plugin: the
    /// caller drops it at a time limit.
    fn execute<'a>(&'a self, invocation: Invocation<'a>) -> Executed<'a>;
}

/// The receiver of a plugin's stderr.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stderr {
    /// Passes it on to our own stderr, line by line as it comes.
    #[default]
    Inherit,
    /// Puts the last 4 KiB into the error if the plugin fails, and discards it otherwise.
    Capture,
}

/// How plugins are executed, and what ends them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Exec {
    /// The time limit of one execution, or `None` for no limit. At the limit the plugin gets SIGTERM, so that it can
    /// undo its changes, and SIGKILL two seconds later. The time counts from the start of the process, so a wait for a
    /// busy file ([`BUSY`]) comes on top.
    pub(crate) limit: Option<Duration>,
    /// At this time the running plugin is stopped as at the limit, and no other one is started.
    pub(crate) deadline: Option<Deadline>,
    pub(crate) stderr: Stderr,
    pub(crate) observer: Option<Observer>,
    pub(crate) executor: Option<Arc<dyn Execute>>,
    /// Once this caller has gone, the running plugin is stopped as at the limit.
    pub(crate) caller: Option<Caller>,
}

/// The end of an operation in which several plugins are run.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    pub(crate) at: Instant,
    limit: Duration,
}

impl Deadline {
    /// Returns the deadline that is `limit` from now.
    pub fn after(limit: Duration) -> Self {
        Deadline { at: Instant::now() + limit, limit }
    }

    /// Returns the time that is left, which is zero once the deadline has passed.
    pub fn remaining(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// Returns how long the operation was allowed to take.
    pub fn limit(&self) -> Duration {
        self.limit
    }
}

/// How long to wait, to within a second, while the plugin's file is open for writing (ETXTBSY). This wait is outside of
/// [`Exec::limit`] and the deadline, and a caller that has gone does not end it.
const BUSY: Duration = Duration::from_secs(5);

impl Exec {
    /// Runs `file`, reports to the observer and returns the plugin's stdout. A CNI error of the plugin is
    /// [`PluginError::Refused`]. With no time left it starts nothing and fails with [`PluginError::TimeLimit`].
    pub(crate) async fn run(
        &self,
        file: &Path,
        parameters: &Parameters<'_>,
        stdin: &[u8],
    ) -> Result<Vec<u8>, PluginError> {
        let begun = Instant::now();
        let outcome = self.run_unobserved(file, parameters, stdin).await;
        if let Some(observer) = &self.observer {
            observer.report(&Execution {
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
        let limit = limit.unwrap_or_default();
        if time.is_some_and(|time| time.is_zero()) {
            return Err(PluginError::TimeLimit { path: file.to_owned(), limit, stderr: String::new() });
        }
        log::debug!("{} of {}", parameters.verb, file.display());
        let env = parameters.environment().map_err(|source| PluginError::start(file, source))?;
        let invocation = Invocation { file, env, stdin };
        let Output { status, stdout, stderr } = match &self.executor {
            None => self.run_file(&invocation, time, limit).await?,
            Some(executor) => self
                .within(time, executor.execute(invocation))
                .await
                .ok_or_else(|| self.stopped(file, limit, String::new()))?
                .map_err(|source| PluginError::start(file, source))?,
        };
        if status.success() {
            return Ok(stdout);
        }
        let (path, stderr) = (file.to_owned(), text(&stderr));
        match cni::Error::from_json(&stdout) {
            Some(error) => Err(PluginError::Refused { path, error, stderr }),
            None => Err(PluginError::NoError { path, status, output: first_line(&stdout), stderr }),
        }
    }

    /// Runs the plugin as a child process, and stops it at the end of `time` or once the caller has gone.
    async fn run_file(
        &self,
        invocation: &Invocation<'_>,
        time: Option<Duration>,
        limit: Duration,
    ) -> Result<Output, PluginError> {
        let file = invocation.file;
        let mut running = Running(self.spawn(invocation).await?);
        let mut output = Vec::new();
        let mut noise = Vec::new();
        let work = converse(&mut running.0, invocation.stdin, &mut output, &mut noise);
        let end = self.within(time, work).await;
        let status = match end {
            Some(Ok(PluginExit::Exit(status))) => status,
            Some(Ok(PluginExit::TooLong)) => {
                running.kill().await;
                let (path, stderr) = (file.to_owned(), text(&noise));
                return Err(PluginError::TooLong { path, limit: MAX_OUTPUT, stderr });
            }
            Some(Err((doing, source))) => {
                running.kill().await;
                return Err(PluginError::Io { path: file.to_owned(), doing, source });
            }
            None => {
                running.stop().await;
                return Err(self.stopped(file, limit, text(&noise)));
            }
        };
        Ok(Output { status, stdout: output, stderr: noise })
    }

    /// Returns the outcome of `work`, or `None` at the end of `time` or once the caller has gone.
    async fn within<T>(&self, time: Option<Duration>, work: impl Future<Output = T>) -> Option<T> {
        let gone = async {
            match &self.caller {
                Some(caller) => caller.gone().await,
                None => pending().await,
            }
        };
        tokio::select! {
            // The caller's end is asked first. The chain relies on it that no plugin succeeds once the caller has gone.
            biased;
            () = gone => None,
            outcome = within(time, work) => outcome,
        }
    }

    /// Returns the error of a plugin that was stopped: by its caller's end, or else by its time limit.
    fn stopped(&self, file: &Path, limit: Duration, stderr: String) -> PluginError {
        let path = file.to_owned();
        match &self.caller {
            Some(caller) if caller.has_gone() => PluginError::Dropped { path, stderr },
            _ => PluginError::TimeLimit { path, limit, stderr },
        }
    }

    /// Returns whether the deadline has passed. Without a deadline it never has.
    pub(super) fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline.at <= Instant::now())
    }

    /// Returns how long an execution that begins now may take, and the configured limit from which that follows, for
    /// the error. `None` is no limit.
    fn time(&self) -> Option<(Duration, Duration)> {
        let own = self.limit.map(|limit| (limit, limit));
        let whole = self.deadline.map(|deadline| (deadline.remaining(), deadline.limit));
        own.into_iter().chain(whole).min_by_key(|(time, _)| *time)
    }

    /// Starts the plugin. Retries while the file is open for writing (ETXTBSY), up to [`BUSY`].
    async fn spawn(&self, invocation: &Invocation<'_>) -> Result<Child, PluginError> {
        let mut command = Command::new(invocation.file);
        command
            .envs(invocation.env.iter().map(|(key, value)| (key, value)))
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
                outcome => return outcome.map_err(|source| PluginError::start(invocation.file, source)),
            }
        }
    }
}

/// Returns `None` if `work` isn't done at the end of `time`.
async fn within<T>(time: Option<Duration>, work: impl Future<Output = T>) -> Option<T> {
    match time {
        None => Some(work.await),
        Some(time) => timeout(time, work).await.ok(),
    }
}

fn text(noise: &[u8]) -> String {
    String::from_utf8_lossy(noise).trim().to_owned()
}

/// Returns the first line that isn't blank, escaped and cut to 200 characters for an error message.
pub(super) fn first_line(bytes: &[u8]) -> String {
    // Huge output must not be converted as a whole.
    let text = String::from_utf8_lossy(bytes.get(..1024).unwrap_or(bytes));
    let line = text.lines().map(str::trim).find(|line| !line.is_empty());
    line.unwrap_or_default().chars().take(200).flat_map(char::escape_debug).collect()
}
