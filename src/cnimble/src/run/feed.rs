//! From the sources to the loop.

use std::collections::BTreeSet;

use tokio::sync::mpsc;

use cnimble_pod::manifest::Manifest;
use cnimble_pod::sandbox::{DnsOptions, SandboxConfig};
use cnimble_pod::source::{Op, PodConfig, PodUpdate};
use cnimble_pod::sync::Input;

/// Passes updates on until one of both ends.
pub(super) async fn feed(
    config: &PodConfig,
    mut updates: mpsc::Receiver<PodUpdate>,
    inputs: mpsc::Sender<Input<SandboxConfig>>,
    dns: DnsOptions,
) {
    let mut seen = BTreeSet::new();
    let mut ready = false;
    while let Some(update) = updates.recv().await {
        seen.insert(update.source);
        let input = match update.op {
            Op::Set | Op::Add | Op::Update => {
                let of = |pod: &Manifest| SandboxConfig::from_manifest(pod, &dns);
                Some(Input::Want(update.pods.iter().map(of).collect()))
            }
            Op::Remove | Op::Delete => {
                let of = |pod: &Manifest| (pod.id.clone(), pod.uid.clone());
                Some(Input::Unwant(update.pods.iter().map(of).collect()))
            }
            // Only what the API server says about the pod has changed.
            Op::Reconcile => None,
        };
        if let Some(input) = input
            && inputs.send(input).await.is_err()
        {
            return;
        }
        if !ready && config.seen_all_sources(&seen) {
            ready = true;
            if inputs.send(Input::SourcesReady).await.is_err() {
                return;
            }
        }
    }
    // The loop keeps what it was told last.
    std::future::pending::<()>().await;
}
