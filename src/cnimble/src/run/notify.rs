//! Notifies systemd (sd_notify(3)) and its watchdog. It does nothing without systemd.

use std::time::Duration;

use sd_notify::NotifyState;

use cnimble_pod::sync::{Board, Phase};

use super::progress::count_pods;
use crate::style::count;

/// Sends states. A failure is no fault of the service, and is only logged.
fn send(states: &[NotifyState<'_>]) {
    if let Err(err) = sd_notify::notify(states) {
        log::debug!("can't tell systemd: {err}");
    }
}

/// Says that the service works, at the start and after a reload.
pub(crate) fn ready() {
    send(&[NotifyState::Ready]);
}

/// Says that a reload begins. Call [`ready`] at its end.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(_) => send(&[NotifyState::Reloading]),
    }
}

/// Says that the service ends.
pub(crate) fn stopping() {
    send(&[NotifyState::Stopping]);
}

/// Reports the numbers of pods, and notifies the watchdog while the loop makes progress.
pub(super) async fn keep_telling(board: Board) {
    let text = || {
        let counts = board.counts();
        let ready = count(count_pods(&counts, Phase::Ready), "pod");
        let others = count_pods(&counts, Phase::Pending) + count_pods(&counts, Phase::Failed);
        format!("{ready} ready, {others} not")
    };
    keep_saying(text, |limit| board.age() >= limit).await;
}

/// Reports `text` when it changes, and notifies the watchdog unless `hangs` says that the work takes longer than the
/// limit. It never ends.
pub(crate) async fn keep_saying(text: impl Fn() -> String, hangs: impl Fn(Duration) -> bool) {
    let watchdog = sd_notify::watchdog_enabled();
    let every = watchdog.map_or(Duration::from_secs(5), |limit| limit / 3);
    let mut last = String::new();
    loop {
        let now = text();
        if now != last {
            send(&[NotifyState::Status(&now)]);
            last = now;
        }
        if watchdog.is_some_and(|limit| !hangs(limit)) {
            send(&[NotifyState::Watchdog]);
        }
        tokio::time::sleep(every).await;
    }
}
