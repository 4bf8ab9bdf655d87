//! A running plugin: its input and output, and how it is stopped.

use std::io;
use std::pin::pin;
use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Child;
use tokio::time::timeout;

/// The limit of stdout in bytes. More than this is no CNI result: one with 10 000 routes has 1 MB.
pub(super) const MAX_OUTPUT: usize = 16 << 20;
/// How many bytes of stderr are kept, from its end.
const MAX_STDERR: usize = 4 << 10;
/// The time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);
/// How long a pipe is read on after the plugin has exited, if another process keeps it open.
const DRAIN: Duration = Duration::from_secs(1);

/// How the exchange with a plugin ended.
pub(super) enum PluginExit {
    Exit(ExitStatus),
    /// The plugin wrote more than [`MAX_OUTPUT`] to stdout, and may still run.
    TooLong,
}

/// Writes stdin, reads stdout and stderr, and waits for the exit, all at once: a plugin may answer before it has read
/// everything, or never read at all. The error names the failed operation. The caller then kills the plugin.
pub(super) async fn converse(
    child: &mut Child,
    input: &[u8],
    output: &mut Vec<u8>,
    noise: &mut Vec<u8>,
) -> Result<PluginExit, (&'static str, io::Error)> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write = async move {
        let Some(mut stdin) = stdin else { return Ok(()) };
        match stdin.write_all(input).await {
            // A plugin need not read its configuration. Its answer counts all the same.
            Err(err) if err.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            outcome => outcome,
        }
    };
    let read = async {
        match stdout {
            Some(stdout) => stdout.take(MAX_OUTPUT as u64 + 1).read_to_end(output).await,
            None => Ok(0),
        }
    };
    let listen = async {
        match stderr {
            Some(stderr) => tail(stderr, noise).await,
            None => Ok(()),
        }
    };
    let talk = async {
        let listen_and_write = async { tokio::join!(listen, write) };
        let mut side = pin!(listen_and_write);
        let mut read = pin!(read);
        let mut written = None;
        // Too much on stdout ends the exchange at once.
        let length = tokio::select! {
            biased;
            length = &mut read => length,
            outcome = &mut side => {
                written = Some(outcome);
                read.await
            }
        };
        let length = length.map_err(|err| ("reading stdout", err))?;
        if length > MAX_OUTPUT {
            return Ok(false);
        }
        let (heard, wrote) = match written {
            Some(outcome) => outcome,
            None => side.await,
        };
        heard.map_err(|err| ("reading stderr", err))?;
        wrote.map_err(|err| ("writing its configuration", err))?;
        Ok(true)
    };
    let mut talk = pin!(talk);
    let status = tokio::select! {
        complete = &mut talk => if complete? { child.wait().await } else { return Ok(PluginExit::TooLong) },
        status = child.wait() => {
            match timeout(DRAIN, &mut talk).await {
                Ok(Ok(false)) => return Ok(PluginExit::TooLong),
                Ok(Err(err)) => return Err(err),
                Ok(Ok(true)) | Err(_) => status,
            }
        }
    };
    status.map(PluginExit::Exit).map_err(|err| ("waiting for it", err))
}

/// Reads to the end, and keeps the last [`MAX_STDERR`] bytes.
async fn tail(mut from: impl AsyncRead + Unpin, kept: &mut Vec<u8>) -> io::Result<()> {
    let mut chunk = [0; 1024];
    loop {
        let length = from.read(&mut chunk).await?;
        if length == 0 {
            return Ok(());
        }
        kept.extend_from_slice(chunk.get(..length).unwrap_or_default());
        let surplus = kept.len().saturating_sub(MAX_STDERR);
        kept.drain(..surplus);
    }
}

/// A child that is killed with its process group on drop, unless it has been reaped.
pub(super) struct Running(pub(super) Child);

impl Running {
    /// Sends SIGTERM to the process group, and SIGKILL if the plugin is still there after [`GRACE`].
    pub(super) async fn stop(&mut self) {
        self.signal(Signal::SIGTERM);
        if timeout(GRACE, self.0.wait()).await.is_err() {
            self.kill().await;
        }
    }

    /// Sends SIGKILL to the process group, and reaps the plugin.
    pub(super) async fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        if let Err(err) = self.0.wait().await {
            log::warn!("can't reap a killed plugin: {err}");
        }
    }

    fn signal(&self, signal: Signal) {
        // tokio returns the ID only until the process is reaped, so it can't be another process's.
        let Some(pid) = self.0.id().and_then(|id| i32::try_from(id).ok()) else {
            return;
        };
        if let Err(err) = killpg(Pid::from_raw(pid), signal) {
            log::debug!("can't send {signal} to process group {pid}: {err}");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
    }
}
