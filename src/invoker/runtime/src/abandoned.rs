//! ADDs whose future is dropped. They go on in a task of their own, which undoes them.

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
    /// Returns true once the future of the ADD has been dropped.
    pub(super) fn has_gone(&self) -> bool {
        self.0.has_changed().is_err()
    }

    /// Waits until the future of the ADD is dropped.
    pub(super) async fn gone(&self) {
        // No value is ever sent, so an error is the only end: the sender is gone.
        while self.0.clone().changed().await.is_ok() {}
    }
}

/// The ADDs of an invoker and its clones that are being undone.
#[derive(Debug, Clone, Default)]
pub(super) struct Abandoned(Arc<Mutex<Vec<Undo>>>);

/// A dropped ADD that is being undone. The channel closes when the undo has ended.
#[derive(Debug)]
struct Undo {
    network: String,
    attach: Attach,
    end: watch::Receiver<()>,
}

impl Abandoned {
    /// Waits until no dropped ADD of this attachment is being undone. Returns at once if there is none.
    pub(super) async fn wait(&self, network: &str, attach: &Attach) {
        while let Some(undo) = self.find_undo(network, attach) {
            undo.gone().await;
        }
    }

    /// Returns an undo of this attachment that has not ended, or `None` if there is none. It forgets those that have
    /// ended.
    fn find_undo(&self, network: &str, attach: &Attach) -> Option<Caller> {
        let mut undos = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        undos.retain(|undo| undo.end.has_changed().is_ok());
        let of = undos.iter().find(|of| of.attach.key(&of.network) == attach.key(network))?;
        Some(Caller(of.end.clone()))
    }

    /// Runs `work`, an ADD, and returns its outcome. If this future is dropped, `work` learns it from its [`Caller`]
    /// and goes on as a task of the tokio runtime. Outside a runtime it is dropped, too.
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

/// The future of an ADD whose caller waits.
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
        // The work is taken out while it is polled. After a panic in it, `drop` finds nothing to go on with.
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
        // At the end of the tokio runtime the task is dropped, which kills the plugin.
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
