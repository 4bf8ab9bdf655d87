//! ADDs that lose their caller: they go on in a task of their own, which undoes them.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;

use super::locks::LIMIT;
use super::{Added, Attach, Error};

/// Tells an ADD whether its caller still waits.
#[derive(Debug, Clone)]
pub(super) struct Caller(watch::Receiver<()>);

impl Caller {
    pub(super) fn has_gone(&self) -> bool {
        self.0.has_changed().is_err()
    }

    /// Returns when the caller has gone.
    pub(super) async fn gone(&self) {
        // No value is ever sent.
        while self.0.clone().changed().await.is_ok() {}
    }
}

/// The ADDs of an invoker and its clones that are being undone.
#[derive(Debug, Clone, Default)]
pub(super) struct Abandoned(Arc<Mutex<Vec<Undo>>>);

/// One of them. The channel closes at its end.
#[derive(Debug)]
struct Undo {
    network: String,
    attach: Attach,
    end: watch::Receiver<()>,
}

impl Abandoned {
    /// Waits until no ADD of this attachment is being undone.
    pub(super) async fn wait(&self, network: &str, attach: &Attach) {
        let running = || {
            let mut undos = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            undos.retain(|undo| undo.end.has_changed().is_ok());
            let of = undos.iter().find(|of| of.attach.key(&of.network) == attach.key(network))?;
            Some(Caller(of.end.clone()))
        };
        while let Some(undo) = running() {
            undo.gone().await;
        }
    }

    /// Runs `work`, an ADD. If this future is dropped, `work` is told so and goes on as a task.
    pub(super) async fn run<W>(
        &self,
        network: &str,
        attach: &Attach,
        work: impl FnOnce(Caller) -> W,
    ) -> Result<Added, Error>
    where
        W: Future<Output = Result<Added, Error>> + Send + 'static,
    {
        let (waits, caller) = watch::channel(());
        let attempt = Attempt {
            work: Some(Box::pin(work(Caller(caller)))),
            waits: Some(waits),
            name: (network.to_owned(), attach.clone()),
            undos: self.clone(),
            runtime: Handle::try_current().ok(),
        };
        attempt.await
    }
}

type Work = Pin<Box<dyn Future<Output = Result<Added, Error>> + Send>>;

/// An ADD whose caller waits.
struct Attempt {
    work: Option<Work>,
    waits: Option<watch::Sender<()>>,
    name: (String, Attach),
    undos: Abandoned,
    runtime: Option<Handle>,
}

impl Future for Attempt {
    type Output = Result<Added, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Taken out, so that nothing goes on after a panic.
        let Some(mut work) = self.work.take() else { return Poll::Pending };
        let outcome = work.as_mut().poll(context);
        if outcome.is_pending() {
            self.work = Some(work);
        }
        outcome
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let (Some(work), Some(runtime)) = (self.work.take(), self.runtime.take()) else { return };
        drop(self.waits.take());
        let (network, attach) = std::mem::take(&mut self.name);
        let what = format!("the dropped ADD of {} of {} to {network}", attach.ifname, attach.container_id);
        let (running, end) = watch::channel(());
        self.undos.0.lock().unwrap_or_else(PoisonError::into_inner).push(Undo { network, attach, end });
        // After the end of the runtime this drops the task, which kills the plugin.
        runtime.spawn(async move {
            match timeout(LIMIT, work).await {
                Ok(Err(Error::Plugins(of))) if of.others.is_empty() && of.note.is_none() => {
                    log::debug!("{what}: undone");
                }
                Ok(Ok(_)) => log::debug!("{what}: undone"),
                Ok(Err(err)) => log::warn!("{what}: {err}"),
                Err(_) => log::warn!("{what}: could not be undone within {LIMIT:?}"),
            }
            drop(running);
        });
    }
}
