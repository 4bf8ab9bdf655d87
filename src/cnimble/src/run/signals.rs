//! Converts signals into requests.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::report::{Exit, Report};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    Reload,
    /// The exit status is for an early stop.
    Stop(Exit),
}

pub(crate) struct Signals {
    hangup: Signal,
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Afterwards no signal ends the process directly.
    pub(crate) fn listen() -> Result<Self, Report> {
        let listen =
            |kind| signal(kind).map_err(|err| Report::because(Exit::Files, "can't listen for signals", err));
        Ok(Signals {
            hangup: listen(SignalKind::hangup())?,
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    pub(crate) async fn next(&mut self) -> Word {
        tokio::select! {
            _ = self.hangup.recv() => Word::Reload,
            _ = self.interrupt.recv() => Word::Stop(Exit::Interrupted),
            _ = self.terminate.recv() => Word::Stop(Exit::Terminated),
        }
    }
}
