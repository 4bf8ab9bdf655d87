//! Puts back what the host has lost of the pods of `run`.

use std::time::Duration;

use tokio::runtime::Handle;

use cnimble_cni::Error;
use cnimble_doctor::{Doctor, Finding, Reach};
use cnimble_pod::sandbox::Sandboxes;
use cnimble_pod::sync::Repair;

use super::super::{Session, doctor, guard};

/// The wait for the lock of a network, on which other pods may be added.
const PATIENCE: Duration = Duration::from_secs(30);

/// Returns the repair for these sandboxes, whose results are in their own cache.
pub(super) fn repair(session: &Session, sandboxes: &Sandboxes) -> Repair {
    let cache = sandboxes.network().cache().dir();
    let invoker = session.invoker.clone().with_cache_dir(cache).with_operation_limit(PATIENCE);
    let session = session.with_invoker(invoker);
    Repair::new(move |sandbox| {
        let session = session.with_invoker(session.invoker.clone());
        async move {
            // Netlink blocks the thread.
            let runtime = Handle::current();
            let work = move || runtime.block_on(put_back(&session, &sandbox));
            tokio::task::spawn_blocking(work).await.unwrap_or_default()
        }
    })
}

/// Puts back what the host has lost of a sandbox. Returns the parts in words, or `None` if there were none. Logs a
/// failure: CHECK tells what is left.
async fn put_back(session: &Session, sandbox: &str) -> Option<String> {
    // Only the cache of the pods is judged: attachments of other runtimes stay as they are.
    let mut doctor = doctor::new(session, &[], 0);
    doctor.evidence.judge_others = false;
    let repaired = lost_and_repaired(&doctor, sandbox).await.unwrap_or_else(|err| {
        log::warn!("sandbox {sandbox}: what the host has lost can't be read: {err}");
        Vec::new()
    });
    if repaired.is_empty() { None } else { Some(guard::summary(&repaired.iter().collect::<Vec<_>>())) }
}

/// Repairs what the host has lost of a sandbox, and returns what was repaired.
async fn lost_and_repaired(doctor: &Doctor<'_>, sandbox: &str) -> Result<Vec<Finding>, Error> {
    let lost = doctor.lost(Some(sandbox)).await?;
    let outcomes = doctor.repair(&lost, Reach::Host).await;
    let both = lost.into_iter().zip(outcomes);
    let done = both.filter(|(_, outcome)| matches!(outcome, cnimble_doctor::Repair::Done));
    Ok(done.map(|(finding, _)| finding).collect())
}
