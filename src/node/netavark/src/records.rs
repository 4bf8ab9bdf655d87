//! The records of attachments, in libcni's cache. A record is written before ADD, and the result of ADD completes it.
//! It is needed because `teardown` does not always follow. netavark before 2.1 does not call it when the namespace is
//! gone. Nobody calls it after a reboot, or when podman is killed.

use std::path::Path;
use std::time::Duration;

use cnimble_cni::NetworkList;
use cnimble_liveness::cache_entries::{JudgedEntry, published_ports};
use cnimble_liveness::node::Node;
use cnimble_liveness::{Evidence, Verdict};
use cnimble_netlink::NetNs;
use cnimble_runtime::{Attach, Cache, CacheError, Entry, Invoker};

use crate::Failure;
use crate::attach::MARK;
use crate::input::Call;
use crate::rootless;

/// How often a dead container is looked for whose address or port the present call needs. The kernel removes a
/// namespace's interfaces some time after the namespace is gone from its path, and until then they show that the
/// container lives.
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

/// Ends the attachments of dead containers, as far as they are this driver's. A failure is a warning, because the
/// container of the present call is another one.
pub(crate) async fn end_dead(invoker: &Invoker) {
    end_proven(invoker, &suspects(invoker.cache())).await;
}

/// Does the same before a container gets its addresses and ports, so that they do not meet the rules of their last
/// owner. An owner that is not yet proven dead is looked at again for a short time. Others are not waited for, because
/// podman starts no other container meanwhile.
pub(crate) async fn end_dead_before(invoker: &Invoker, call: &Call) {
    end_dead(invoker).await;
    for _ in 1..LOOKS {
        let mut needed = suspects(invoker.cache());
        needed.retain(|entry| has_what_is_needed(entry, call));
        if needed.is_empty() {
            return;
        }
        tokio::time::sleep(PAUSE).await;
        end_proven(invoker, &needed).await;
    }
}

/// Returns whether an attachment has an address or a port that the container of this call is to have. An attachment
/// without a result may have any.
fn has_what_is_needed(entry: &Entry, call: &Call) -> bool {
    let Ok(Some(result)) = entry.cni_result() else { return true };
    let wanted = call.network_options.static_ips();
    let has_address = result.ips.iter().any(|ip| wanted.contains(&ip.address.ip()));
    has_address || published_ports(entry).iter().any(|port| call.publishes(port.host_port))
}

/// Returns the records of this driver whose namespace is gone. It returns none, with a warning, if the records can't be
/// listed.
fn suspects(cache: &Cache) -> Vec<Entry> {
    let mut entries = cache.list().unwrap_or_else(|err| {
        log::warn!("{err}; dead containers are not looked for");
        Vec::new()
    });
    entries.retain(is_suspect);
    entries
}

/// Ends those of the suspects that are proven dead. A missing namespace is no proof: its path may be unknown here. So
/// the whole node is looked at.
async fn end_proven(invoker: &Invoker, suspects: &[Entry]) {
    if suspects.is_empty() {
        return;
    }
    let node = match Node::look(&Evidence::new(invoker.cache().clone())) {
        Ok(node) => node,
        Err(err) => return log::warn!("{err}; dead attachments may be left: {}", suspects.len()),
    };
    for known in node.entries.iter().filter(|known| known.own) {
        let is_suspect = suspects.iter().any(|suspect| suspect.key() == known.entry.key());
        if !is_suspect || !is_dead(known, &node) {
            continue;
        }
        let with_result = known.entry.result.is_some() && !node.is_anothers(&known.entry);
        if let Err(err) = invoker.del_entry(&known.entry, with_result).await {
            log::warn!("the dead container {}: {err}; `cnimble gc` tries again", known.entry.container_id);
        }
    }
}

/// Returns whether a suspect is proven dead.
///
/// A user can't look into the namespaces of other users, so there is always a doubt. But none of rootless podman's
/// containers is in these, and each has an interface on this side that ends with its namespace.
fn is_dead(known: &JudgedEntry, node: &Node) -> bool {
    match known.verdict {
        Verdict::Orphan(_) => true,
        Verdict::Lives => false,
        Verdict::Doubt(_) => {
            let is_known_to_live = node.lives_surely(&known.owner().tag());
            let has_address_elsewhere = known.addrs().into_iter().any(|ip| node.place_of(ip).is_some());
            rootless::user().is_some() && !is_known_to_live && !has_address_elsewhere
        }
    }
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
