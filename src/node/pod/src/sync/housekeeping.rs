use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::backoff::Backoff;
use super::sync_loop::{Ended, SyncLoop};
use super::work::Work;
use super::{Command, Event, Pods};

/// How long a stop waits for running work.
const STOP_LIMIT: Duration = Duration::from_secs(30);

impl<W: Work> SyncLoop<W> {
    /// Takes unwanted pods down once all sources have been read, and cleans up if that is due and no pod is busy. While
    /// the existing pods can't be listed it does nothing but try again. It then returns a command that arrives.
    pub(super) async fn keep_house(&mut self) -> Option<Command> {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        let existing = loop {
            match self.shared.work.existing().await {
                Ok(existing) => break existing,
                Err(why) => {
                    if backoff.failures() == 0 {
                        self.notify(&Event::Trouble(Some(why.clone())));
                    }
                    self.board.set_overall(|overall| overall.trouble = Some(why));
                    self.board.beat();
                    tokio::select! {
                        () = sleep(backoff.fail()) => {}
                        command = self.commands.recv() => return command,
                    }
                }
            }
        };
        if backoff.failures() > 0 {
            self.board.set_overall(|overall| overall.trouble = None);
            self.notify(&Event::Trouble(None));
        }
        if !self.sources_ready {
            return None;
        }
        for id in existing.iter().filter(|id| !self.pods.contains_key(*id)).cloned().collect::<Vec<_>>() {
            self.remove(&id);
        }
        self.housekept = true;
        let idle = self.pods.values().all(|entry| !entry.busy);
        if idle
            && let Some(every) = self.options.clean
            && self.cleaned.is_none_or(|last| last.elapsed() >= every)
        {
            self.cleaned = Some(Instant::now());
            let (work, listener) = (Arc::clone(&self.shared.work), self.options.listener.clone());
            self.tasks.spawn(async move {
                if let Err(why) = work.clean().await {
                    listener.notify(&Event::Warning(why));
                }
            });
        }
        None
    }

    /// Waits for running work, or takes all pods down, for at most [`STOP_LIMIT`]. Returns the pods that are unfinished
    /// then.
    pub(super) async fn stop(mut self, pods: Pods) -> Ended {
        let tear_down = pods == Pods::TearDown;
        let limit = Instant::now() + STOP_LIMIT;
        if tear_down {
            for id in self.pods.keys().cloned().collect::<Vec<_>>() {
                self.remove(&id);
            }
        } else {
            self.shared.permits.close();
        }
        while self.pods.values().any(|entry| entry.busy) {
            // Only holders of a permit can work.
            if !tear_down && self.shared.permits.available_permits() >= self.options.parallel.max(1) {
                break;
            }
            let left = limit.saturating_duration_since(Instant::now());
            match timeout(left.min(Duration::from_secs(1)), self.finished.recv()).await {
                Ok(Some(finished)) => self.record(finished),
                Ok(None) => break,
                Err(_) if Instant::now() < limit => {}
                Err(_) => {
                    let unfinished = self.pods.iter().filter(|(_, entry)| entry.busy);
                    return Ended { unfinished: unfinished.map(|(id, _)| id.clone()).collect() };
                }
            }
        }
        let unfinished = if tear_down { self.pods.keys().cloned().collect() } else { Vec::new() };
        Ended { unfinished }
    }
}
