//! A kubelet gives networks to the pods bound to the node, so cnimble takes only the marked ones.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cnimble_pod::source::PodConfig;

/// The names of processes that are a kubelet or contain one.
const NAMES: [&str; 4] = ["kubelet", "kubelite", "k3s-server", "k3s-agent"];
const PERIOD: Duration = Duration::from_secs(30);

/// Returns the process ID of a kubelet, if one is visible.
fn running() -> Option<u32> {
    let processes = fs::read_dir("/proc").ok()?.filter_map(Result::ok);
    let mut ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.find(|id: &u32| {
        fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|name| NAMES.contains(&name.trim()))
    })
}

/// Returns true if this look found a kubelet first. It counts forever: its pods stay its own during a restart.
pub(super) fn look(only_managed: &AtomicBool) -> bool {
    if only_managed.load(Ordering::Relaxed) {
        return false;
    }
    let Some(id) = running() else { return false };
    only_managed.store(true, Ordering::Relaxed);
    log::warn!(
        "a kubelet runs on this node (process {id}): of the API server's pods cnimble takes \
         only those with the annotation cnimble/managed: \"true\""
    );
    true
}

pub(super) async fn watch(only_managed: Arc<AtomicBool>, config: Arc<PodConfig>) {
    loop {
        tokio::time::sleep(PERIOD).await;
        let flag = Arc::clone(&only_managed);
        if tokio::task::spawn_blocking(move || look(&flag)).await.unwrap_or(false) {
            config.reread();
        }
    }
}
