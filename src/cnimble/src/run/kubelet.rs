//! A kubelet on this node gives networks to the pods that are bound to it: then only those are ours
//! that are marked so.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cnimble_pod::source::PodConfig;

/// What kubelets are called, and what has one within.
const NAMES: [&str; 4] = ["kubelet", "kubelite", "k3s-server", "k3s-agent"];
/// Between two looks.
const PERIOD: Duration = Duration::from_secs(30);

/// The process ID of one, if there is one among the processes that we see.
fn running() -> Option<u32> {
    let processes = fs::read_dir("/proc").ok()?.filter_map(Result::ok);
    let mut ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.find(|id: &u32| {
        fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|name| NAMES.contains(&name.trim()))
    })
}

/// Looks once. One that was seen counts for ever: while it is restarted its pods are still its own.
/// Returns true if it has been found now.
pub(super) fn look(only_managed: &AtomicBool) -> bool {
    if only_managed.load(Ordering::Relaxed) {
        return false;
    }
    let Some(id) = running() else { return false };
    only_managed.store(true, Ordering::Relaxed);
    log::warn!(
        "a kubelet runs on this node (process {id}): of the API server's pods only those with the annotation \
         cnimble/managed: \"true\" are taken"
    );
    true
}

/// Goes on looking.
pub(super) async fn watch(only_managed: Arc<AtomicBool>, config: Arc<PodConfig>) {
    loop {
        tokio::time::sleep(PERIOD).await;
        let flag = Arc::clone(&only_managed);
        if tokio::task::spawn_blocking(move || look(&flag)).await.unwrap_or(false) {
            config.reread();
        }
    }
}
