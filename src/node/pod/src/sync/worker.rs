//! One worker for each pod: one thing at a time, in order, and only the latest of what came in while it was busy.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, mpsc, watch};

use super::work::{Cause, Condition, Up, Work};
use crate::PodId;

/// An order for a worker.
pub(super) struct Order<P> {
    /// The pod as it is wanted; `None` is not at all.
    pub(super) want: Option<Arc<P>>,
    pub(super) cause: Cause,
    /// Counts the orders of the pod.
    pub(super) serial: u64,
}

impl<P> Clone for Order<P> {
    fn clone(&self) -> Self {
        Order { want: self.want.clone(), cause: self.cause.clone(), serial: self.serial }
    }
}

/// The result of a worker.
pub(super) struct Finished {
    pub(super) id: PodId,
    pub(super) serial: u64,
    pub(super) cause: Cause,
    pub(super) took: Duration,
    pub(super) outcome: Outcome,
}

pub(super) enum Outcome {
    Up(Result<Up, Condition>),
    Down(Result<(), Condition>),
}

/// The way to a pod's worker. The worker ends when this is dropped.
pub(super) type Orders<P> = watch::Sender<Option<Order<P>>>;

/// The state that workers share.
pub(super) struct Shared<W> {
    pub(super) work: Arc<W>,
    /// How many may be at work at once; closed when no work is to be begun any more.
    pub(super) permits: Semaphore,
    pub(super) finished: mpsc::UnboundedSender<Finished>,
}

impl<W: Work> Shared<W> {
    /// Works on one pod until its orders end.
    pub(super) async fn attend(
        self: Arc<Self>,
        id: PodId,
        mut orders: watch::Receiver<Option<Order<W::Pod>>>,
    ) {
        while orders.changed().await.is_ok() {
            let Ok(permit) = self.permits.acquire().await else { return };
            let Some(order) = orders.borrow_and_update().clone() else { continue };
            let begun = Instant::now();
            // In a box: a worker that waits is small, and there may be thousands.
            let outcome = Box::pin(self.carry_out(&id, &order)).await;
            let finished = Finished {
                id: id.clone(),
                serial: order.serial,
                cause: order.cause,
                took: begun.elapsed(),
                outcome,
            };
            // Before it is told, so that who hears of it sees how many are still at work.
            drop(permit);
            if self.finished.send(finished).is_err() {
                return;
            }
        }
    }

    async fn carry_out(&self, id: &PodId, order: &Order<W::Pod>) -> Outcome {
        match &order.want {
            Some(pod) => Outcome::Up(self.work.up(pod, &order.cause).await),
            None => Outcome::Down(self.work.down(id).await),
        }
    }
}
