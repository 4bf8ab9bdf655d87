//! Detects a kubelet on the node. It gives networks to the pods bound to the node, so cnimble then takes only the
//! marked ones.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cnimble_pod::source::PodConfig;

/// The names of processes that are a kubelet or contain one.
const NAMES: [&str; 4] = ["kubelet", "kubelite", "k3s-server", "k3s-agent"];
/// The interval between two looks.
const PERIOD: Duration = Duration::from_secs(30);

/// Returns the process ID of a kubelet, or `None` if none is visible.
fn running() -> Option<u32> {
    let processes = fs::read_dir("/proc").ok()?.filter_map(Result::ok);
    let mut ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.find(|id: &u32| {
        fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|name| NAMES.contains(&name.trim()))
    })
}

/// Looks for a kubelet, and sets the flag if there is one. Returns true only if this look has set it. The flag stays
/// set, because a kubelet's pods remain its own while it restarts.
pub(super) fn detect_kubelet(only_managed: &AtomicBool) -> bool {
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

/// Looks for a kubelet again and again, and reads the sources again once there is one.
pub(super) async fn watch(only_managed: Arc<AtomicBool>, config: Arc<PodConfig>) {
    loop {
        tokio::time::sleep(PERIOD).await;
        let flag = Arc::clone(&only_managed);
        if tokio::task::spawn_blocking(move || detect_kubelet(&flag)).await.unwrap_or(false) {
            config.reread();
        }
    }
}
