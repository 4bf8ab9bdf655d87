use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::entry::Entry;
use super::report::{Board, Phase};
use super::work::{Cause, Work};
use super::worker::{Finished, OrderOutcome, WorkerContext};
use super::{Command, Event, Handle, Input, Pods, SyncOptions};
use crate::PodId;
use crate::sandbox::SandboxConfig;

/// How often due orders are sent.
const TICK: Duration = Duration::from_secs(1);
/// How often broken sandboxes are looked for.
const RELIST: Duration = Duration::from_secs(1);
/// How often unwanted pods are looked for.
const HOUSEKEEPING: Duration = Duration::from_secs(2);

/// The sync loop. The module's text describes it.
pub struct SyncLoop<W: Work> {
    pub(super) options: SyncOptions,
    pub(super) shared: Arc<WorkerContext<W>>,
    pub(super) board: Board,
    pub(super) pods: BTreeMap<PodId, Entry>,
    pub(super) commands: mpsc::UnboundedReceiver<Command>,
    pub(super) finished: mpsc::UnboundedReceiver<Finished>,
    pub(super) tasks: JoinSet<()>,
    busy: Arc<AtomicUsize>,
    pub(super) sources_ready: bool,
    sources_tried: bool,
    /// Whether unwanted pods have been looked for since all sources were read.
    pub(super) housekept: bool,
    /// The time of the last clean-up.
    pub(super) cleaned: Option<Instant>,
}

/// How the loop ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ended {
    /// The pods that are still being worked on, or could not be taken down.
    pub unfinished: Vec<PodId>,
}

impl<W: Work> SyncLoop<W> {
    /// Returns a loop and its handle. [`SyncLoop::run`] needs a tokio runtime.
    pub fn new(work: W, options: SyncOptions) -> (Self, Handle) {
        let (commands, received) = mpsc::unbounded_channel();
        let (done, finished) = mpsc::unbounded_channel();
        let shared = WorkerContext {
            work: Arc::new(work),
            permits: Semaphore::new(options.parallel.max(1)),
            finished: done,
        };
        let this = SyncLoop {
            options,
            shared: Arc::new(shared),
            board: Board::default(),
            pods: BTreeMap::new(),
            commands: received,
            finished,
            tasks: JoinSet::new(),
            busy: Arc::default(),
            sources_ready: false,
            sources_tried: false,
            housekept: false,
            cleaned: None,
        };
        (this, Handle { commands })
    }

    /// Returns the board with the state of all pods.
    pub fn board(&self) -> Board {
        self.board.clone()
    }

    /// Works until it is stopped by [`Handle::stop`], or all handles are dropped. When the inputs end, the last wanted
    /// pods stay wanted.
    pub async fn run(mut self, mut inputs: mpsc::Receiver<Input>) -> Ended {
        let (lost, mut losses) = mpsc::channel(16);
        self.tasks.spawn(watch_for_losses(Arc::clone(&self.shared.work), RELIST, lost));
        let mut tick = ticking(TICK);
        let mut housekeeping = ticking(HOUSEKEEPING);
        let mut more = true;
        loop {
            let command = tokio::select! {
                command = self.commands.recv() => command.or(Some(Command::Stop(Pods::Leave))),
                input = inputs.recv(), if more => {
                    more = input.is_some();
                    let ready = self.sources_ready;
                    input.into_iter().for_each(|input| self.take_input(input));
                    if self.sources_ready && !ready {
                        // All wanted pods are known now, so unwanted ones can be taken down.
                        housekeeping.reset_immediately();
                    }
                    None
                }
                Some(finished) = self.finished.recv() => {
                    self.record(finished);
                    None
                }
                Some((id, cause)) = losses.recv() => {
                    self.repair(&id, cause);
                    None
                }
                now = tick.tick() => {
                    self.pods.values_mut().for_each(|entry| entry.order_due(now));
                    None
                }
                _ = housekeeping.tick() => self.keep_house().await,
            };
            self.judge();
            match command {
                None => {}
                Some(Command::RetryNow) => {
                    let now = Instant::now();
                    for entry in self.pods.values_mut() {
                        entry.hurry();
                        entry.order_due(now);
                    }
                }
                Some(Command::CleanNow) => {
                    self.cleaned = None;
                    housekeeping.reset_immediately();
                }
                Some(Command::Stop(pods)) => return self.stop(pods).await,
            }
        }
    }

    fn take_input(&mut self, input: Input) {
        match input {
            Input::Want(pods) => pods.into_iter().for_each(|pod| self.want(Arc::new(pod))),
            Input::Unwant(pods) => pods.iter().for_each(|(id, uid)| self.unwant(id, uid)),
            Input::Keep(pods) => pods.into_iter().for_each(|pod| self.keep_network(Arc::new(pod))),
            Input::Release(pods) => pods.iter().for_each(|id| self.remove(id)),
            Input::SourcesReady => (self.sources_ready, self.sources_tried) = (true, true),
            Input::SourcesTried => self.sources_tried = true,
        }
    }

    /// Orders a pod to be brought up.
    fn want(&mut self, pod: Arc<SandboxConfig>) {
        let (id, uid) = (pod.pod.clone(), pod.uid.clone());
        let entry = self.entry(&id);
        let same = entry.want.as_ref().is_some_and(|old| old.uid == uid);
        entry.ending = false;
        entry.order(Some(pod), Cause::Config);
        self.report(&id, &uid, |report| {
            // A pod that is up stays ready during a change.
            if !same || report.phase != Phase::Ready {
                report.phase = Phase::Pending;
            }
        });
    }

    /// Orders an ending pod to keep its network.
    fn keep_network(&mut self, pod: Arc<SandboxConfig>) {
        let (id, uid) = (pod.pod.clone(), pod.uid.clone());
        let entry = self.entry(&id);
        entry.ending = true;
        entry.order(Some(pod), Cause::Ending);
        self.report(&id, &uid, |_| ());
    }

    /// Orders a pod to be taken down if it still has this UID.
    fn unwant(&mut self, id: &PodId, uid: &str) {
        let Some(entry) = self.pods.get_mut(id) else { return };
        // A late message must not remove a successor of the same name.
        if entry.want.as_ref().is_some_and(|pod| pod.uid == uid) {
            self.remove(id);
        }
    }

    /// Orders a pod to be taken down.
    pub(super) fn remove(&mut self, id: &PodId) {
        let entry = self.entry(id);
        entry.ending = false;
        entry.order(None, Cause::Config);
        self.report(id, "", |report| {
            report.phase = Phase::Terminating;
            report.condition(None);
        });
    }

    /// Orders a pod with a broken sandbox to be repaired.
    fn repair(&mut self, id: &PodId, cause: Cause) {
        let Some(entry) = self.pods.get_mut(id) else { return };
        let Some(pod) = entry.want.clone() else { return };
        if entry.ending {
            // An ending pod is not repaired.
            return self.remove(id);
        }
        let uid = pod.uid.clone();
        let message = match &cause {
            Cause::Lost { what, .. } => what.clone(),
            _ => String::new(),
        };
        entry.order(Some(pod), cause);
        self.report(id, &uid, |report| {
            report.phase = Phase::Failed;
            report.condition(Some(super::Condition { reason: "SandboxChanged", message }));
        });
    }

    /// Returns the entry of a pod, and starts its worker if it has none.
    fn entry(&mut self, id: &PodId) -> &mut Entry {
        let SyncLoop { pods, tasks, shared, busy, .. } = self;
        pods.entry(id.clone()).or_insert_with(|| {
            let (orders, received) = watch::channel(None);
            tasks.spawn(Arc::clone(shared).attend(id.clone(), received));
            Entry::new(orders, Arc::clone(busy))
        })
    }

    /// Records finished work, and reports it.
    pub(super) fn record(&mut self, finished: Finished) {
        let Finished { id, serial, cause, took, outcome } = finished;
        let (operation, failure) = match (&outcome, &cause) {
            (OrderOutcome::Down(outcome), _) => ("down", outcome.as_ref().err()),
            (OrderOutcome::Up(outcome), Cause::Check(_)) => ("check", outcome.as_ref().err()),
            (OrderOutcome::Up(outcome), Cause::Lost { .. }) => ("repair", outcome.as_ref().err()),
            (OrderOutcome::Up(outcome), _) => ("up", outcome.as_ref().err()),
        };
        let failure = failure.map(|condition| condition.reason);
        self.notify(&Event::Worked { id: id.clone(), operation, took, failure });
        let Some(entry) = self.pods.get_mut(&id) else { return };
        if !entry.is_latest(serial) {
            // A newer order is being carried out.
            return;
        }
        match &outcome {
            OrderOutcome::Up(Ok(_)) => entry.succeeded(self.options.check),
            OrderOutcome::Down(Ok(())) => {
                // The pod's worker ends with the entry.
                self.pods.remove(&id);
                self.board.remove(&id);
                return self.notify(&Event::Gone(id));
            }
            // An ending pod without a network gets none, so it is taken down.
            OrderOutcome::Up(Err(_)) if entry.ending => return self.remove(&id),
            OrderOutcome::Up(Err(_)) | OrderOutcome::Down(Err(_)) => entry.failed(&cause),
        }
        let failures = entry.failures();
        let uid = entry.want.as_ref().map(|pod| pod.uid.clone()).unwrap_or_default();
        self.report(&id, &uid, |report| {
            (report.failures, report.took) = (failures, took);
            match outcome {
                OrderOutcome::Up(Ok(up)) => {
                    report.phase = Phase::Ready;
                    report.condition(None);
                    (report.sandbox, report.ips) = (Some(up.sandbox), up.ips);
                }
                OrderOutcome::Up(Err(condition)) => {
                    report.phase = Phase::Failed;
                    report.condition(Some(condition));
                }
                OrderOutcome::Down(outcome) => {
                    report.phase = Phase::Terminating;
                    report.condition(outcome.err());
                }
            }
        });
    }

    /// Updates the state of the loop on the board.
    fn judge(&self) {
        self.board.beat();
        let idle = self.busy.load(Ordering::Relaxed) == 0;
        let settled = self.sources_ready && self.housekept && idle;
        let tried = self.sources_tried && !self.sources_ready && idle;
        self.board.set_overall(|overall| {
            (overall.sources_ready, overall.settled, overall.tried) = (self.sources_ready, settled, tried);
        });
    }

    fn report(&self, id: &PodId, uid: &str, change: impl FnOnce(&mut super::PodReport)) {
        if let Some(report) = self.board.update(id, uid, change) {
            self.notify(&Event::Pod(report));
        }
    }

    pub(super) fn notify(&self, event: &Event) {
        self.options.listener.notify(event);
    }
}

/// Sends the pods with broken sandboxes until the receiver is dropped.
async fn watch_for_losses<W: Work>(work: Arc<W>, every: Duration, tell: mpsc::Sender<(PodId, Cause)>) {
    let mut ticks = ticking(every);
    loop {
        ticks.tick().await;
        for loss in work.lost().await {
            if tell.send(loss).await.is_err() {
                return;
            }
        }
    }
}

/// Returns an interval. After a late tick the next one comes a whole period later.
fn ticking(every: Duration) -> tokio::time::Interval {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
