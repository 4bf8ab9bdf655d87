//! Entries of result caches, judged.

use std::net::IpAddr;
use std::path::PathBuf;

use cnimble_cni::{Attachment, CniResult, Code, Error, Owner};
use cnimble_netlink::Netlink;
use cnimble_runtime::{Cache, CacheError, Entry};

use super::world::{self, World};
use super::{Verdict, data_dirs};

/// An entry, judged.
#[derive(Debug, Clone)]
pub struct Known {
    /// What the cache has.
    pub entry: Entry,
    /// What is thought of it.
    pub verdict: Verdict,
    /// Whether it is in the cache whose entries are judged, rather than in one of others.
    pub own: bool,
}

impl Known {
    /// Whose entry it is.
    pub fn owner(&self) -> Owner {
        Owner { network: self.entry.network.clone(), attachment: self.attachment() }
    }

    /// The same without the network.
    pub fn attachment(&self) -> Attachment {
        Attachment { container_id: self.entry.container_id.clone(), ifname: self.entry.ifname.clone() }
    }

    /// The result of ADD, if it makes sense.
    pub fn result(&self) -> Option<CniResult> {
        let version = self.entry.network_list().ok()?.version;
        CniResult::from_value(self.entry.result.as_ref()?, version, "").ok()
    }

    /// The addresses in the result.
    pub fn addrs(&self) -> Vec<IpAddr> {
        self.result().map(|result| result.ips.iter().map(|ip| ip.address.ip()).collect()).unwrap_or_default()
    }

    /// Directories of host-local that the recorded configuration names.
    pub fn data_dirs(&self) -> Vec<PathBuf> {
        self.entry.network_list().map(|list| data_dirs(&list)).unwrap_or_default()
    }

    /// Whether its namespace is there.
    pub fn is_there(&self) -> bool {
        self.entry.namespace().is_some_and(|path| world::namespace(path).is_some())
    }
}

/// The entries of a cache, not yet judged.
pub(super) fn read(cache: &Cache, own: bool) -> Result<Vec<Known>, Error> {
    // Not to know what is others' would mean to clean it away.
    let entries = cache.list().map_err(|err| failed(&err))?;
    Ok(entries.into_iter().map(|entry| Known { entry, verdict: Verdict::Lives, own }).collect())
}

/// The error for a cache that can't be read.
pub fn failed(err: &CacheError) -> Error {
    Error::new(Code::IO, err.to_string())
}

/// Entries whose namespaces are there come first: see [`World::look`].
pub(super) fn judge(known: &Known, world: &World) -> Verdict {
    let path = known.entry.namespace();
    if let Some(ns) = path.and_then(world::namespace) {
        let inside = Netlink::open_in(&ns).and_then(|mut inside| inside.find_link(&known.entry.ifname));
        return match inside {
            Ok(Some(_)) => Verdict::Lives,
            Ok(None) => Verdict::Doubt(format!("its namespace is there, but has no {}", known.entry.ifname)),
            Err(err) => Verdict::Doubt(err.to_string()),
        };
    }
    if world.has_tag(&known.owner().tag()) {
        return Verdict::Lives;
    }
    match path {
        Some(path) => {
            world.by_addresses(&known.addrs(), format!("there is no network namespace {path} any more"))
        }
        None => Verdict::Doubt("it doesn't tell its namespace".to_owned()),
    }
}
