//! The workers. Each pod has one, which carries out one order at a time. Of the orders that come meanwhile only the
//! latest counts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, mpsc, watch};

use super::work::{Cause, Condition, Up, Work};
use crate::PodId;
use crate::sandbox::SandboxConfig;

/// An order to the worker of a pod.
#[derive(Clone)]
pub(super) struct Order {
    /// The wanted configuration. `None` takes the pod down.
    pub(super) want: Option<Arc<SandboxConfig>>,
    pub(super) cause: Cause,
    pub(super) serial: u64,
}

/// The end of the work on an order.
pub(super) struct Finished {
    pub(super) id: PodId,
    /// The number of the order.
    pub(super) serial: u64,
    pub(super) cause: Cause,
    pub(super) took: Duration,
    pub(super) outcome: OrderOutcome,
}

/// The outcome of an order to set a pod up, or to take it down.
pub(super) enum OrderOutcome {
    Up(Result<Up, Condition>),
    Down(Result<(), Condition>),
}

/// The orders to a worker, which ends when this is dropped.
pub(super) type Orders = watch::Sender<Option<Order>>;

/// The state that all workers share.
pub(super) struct WorkerContext<W> {
    pub(super) work: Arc<W>,
    /// The permits for parallel work. They are closed when no work may begin any more.
    pub(super) permits: Semaphore,
    pub(super) finished: mpsc::UnboundedSender<Finished>,
}

impl<W: Work> WorkerContext<W> {
    /// Carries out the orders of one pod, until their sender is dropped.
    pub(super) async fn attend(self: Arc<Self>, id: PodId, mut orders: watch::Receiver<Option<Order>>) {
        while orders.changed().await.is_ok() {
            let Ok(permit) = self.permits.acquire().await else { return };
            let Some(order) = orders.borrow_and_update().clone() else { continue };
            let begun = Instant::now();
            // The future is boxed, because there may be thousands of idle workers.
            let outcome = Box::pin(self.carry_out(&id, &order)).await;
            let finished = Finished {
                id: id.clone(),
                serial: order.serial,
                cause: order.cause,
                took: begun.elapsed(),
                outcome,
            };
            // The permit is released before the report, so that a listener sees the right number.
            drop(permit);
            if self.finished.send(finished).is_err() {
                return;
            }
        }
    }

    async fn carry_out(&self, id: &PodId, order: &Order) -> OrderOutcome {
        match &order.want {
            Some(pod) => OrderOutcome::Up(self.work.up(pod, &order.cause).await),
            None => OrderOutcome::Down(self.work.down(id).await),
        }
    }
}
