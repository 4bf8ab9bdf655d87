//! The records of attachments, in libcni's cache. A record is written before ADD, and the result of ADD completes it.
//! It is needed because `teardown` does not always follow. netavark before 2.1 does not call it when the namespace is
//! gone. Nobody calls it after a reboot, or when podman is killed.

use std::path::Path;
use std::time::Duration;

use cnimble_cni::NetworkList;
use cnimble_liveness::node::Node;
use cnimble_liveness::{Evidence, Verdict};
use cnimble_netlink::NetNs;
use cnimble_runtime::{Attach, Cache, CacheError, Entry, Invoker};

use crate::Failure;
use crate::attach::MARK;

/// How often the dead are looked for. The kernel removes a namespace's interfaces some time after the namespace is gone
/// from its path, and until then they show that the container lives.
const LOOKS: usize = 10;
/// The time between two looks.
const PAUSE: Duration = Duration::from_millis(50);

/// Records an attachment before its ADD. Returns the record.
pub(crate) fn begin(cache: &Cache, network: &NetworkList, attach: &Attach) -> Result<Entry, CacheError> {
    let entry = Entry::before_add(network, attach);
    cache.put(&entry)?;
    Ok(entry)
}

/// Returns the records of a container on a network of podman's.
pub(crate) fn list_for(
    cache: &Cache,
    container_id: &str,
    podman_network: &str,
) -> Result<Vec<Entry>, CacheError> {
    let mut entries = cache.list_of(container_id)?;
    entries.retain(|entry| network_of(entry) == Some(podman_network));
    Ok(entries)
}

/// Ends the attachments of these records, as the records say.
pub(crate) async fn end(invoker: &Invoker, entries: &[Entry]) -> Result<(), Failure> {
    for entry in entries {
        invoker.del_entry(entry, entry.result.is_some()).await?;
    }
    Ok(())
}

/// Ends the attachments of dead containers, as far as they are this driver's. So an address that podman gives anew does
/// not meet the rules of its last owner. A failure is a warning, because the container of the present call is another
/// one.
pub(crate) async fn end_dead(invoker: &Invoker) {
    for look in 1..=LOOKS {
        let suspects = match suspects(invoker.cache()) {
            Ok(suspects) => suspects,
            Err(err) => return log::warn!("{err}; dead containers are not looked for"),
        };
        if suspects.is_empty() {
            return;
        }
        if look > 1 {
            tokio::time::sleep(PAUSE).await;
        }
        if let Err(err) = end_proven(invoker, &suspects).await {
            return log::warn!("{err}; dead attachments may be left: {}", suspects.len());
        }
    }
}

/// Returns the records of this driver whose namespace is gone.
fn suspects(cache: &Cache) -> Result<Vec<Entry>, CacheError> {
    let mut entries = cache.list()?;
    entries.retain(is_suspect);
    Ok(entries)
}

/// Ends those of the suspects that are proven dead. A missing namespace is no proof: its path may be unknown here. So
/// the whole node is looked at.
async fn end_proven(invoker: &Invoker, suspects: &[Entry]) -> Result<(), Failure> {
    let node = Node::look(&Evidence::new(invoker.cache().clone()))?;
    for known in node.entries.iter().filter(|known| known.own) {
        let is_suspect = suspects.iter().any(|suspect| suspect.key() == known.entry.key());
        if !is_suspect || !matches!(known.verdict, Verdict::Orphan(_)) {
            continue;
        }
        let with_result = known.entry.result.is_some() && !node.is_anothers(&known.entry);
        if let Err(err) = invoker.del_entry(&known.entry, with_result).await {
            log::warn!("the dead container {}: {err}; `cnimble gc` tries again", known.entry.container_id);
        }
    }
    Ok(())
}

/// Returns whether an entry is of this driver, and its namespace is gone.
fn is_suspect(entry: &Entry) -> bool {
    network_of(entry).is_some()
        && entry.namespace().is_some_and(|path| matches!(NetNs::find(Path::new(path)), Ok(None)))
}

/// Returns podman's network, or `None` for an entry of another program.
fn network_of(entry: &Entry) -> Option<&str> {
    entry.args.iter().find(|(key, _)| key == MARK).map(|(_, name)| name.as_str())
}
