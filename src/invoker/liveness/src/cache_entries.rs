//! Entries of result caches, and what they say about their attachments. `judge` decides which of them live.

use std::net::IpAddr;
use std::path::PathBuf;

use cnimble_cni::capability::PortMapping;
use cnimble_cni::{Attachment, CniResult, Code, Error, Owner, json};
use cnimble_netlink::NetNs;
use cnimble_runtime::{Cache, CacheError, Entry, Lookup};
use serde_json::Value;

use super::namespaces;
use super::{Verdict, data_dirs};

/// An entry of a result cache with its verdict.
#[derive(Debug, Clone)]
pub struct JudgedEntry {
    pub entry: Entry,
    pub verdict: Verdict,
    /// Whether the entry's cache is judged, so that its dead entries may be removed. Entries of other caches are only
    /// evidence.
    pub own: bool,
    /// The directory of the cache, above `results`.
    pub cache: PathBuf,
}

impl JudgedEntry {
    /// Returns the attachment with its network, by the names in the entry.
    pub fn owner(&self) -> Owner {
        owner_of(&self.entry)
    }

    /// Returns the attachment.
    pub fn attachment(&self) -> Attachment {
        self.owner().attachment
    }

    /// Returns the result of ADD, or `None` if the configuration or the result can't be parsed.
    pub fn result(&self) -> Option<CniResult> {
        let version = self.entry.network_list().ok()?.version;
        CniResult::from_value(self.entry.result.as_ref()?, version, "").ok()
    }

    /// Returns the addresses in the result of ADD. The list is empty if [`JudgedEntry::result`] is `None`.
    pub fn addrs(&self) -> Vec<IpAddr> {
        self.result().map(|result| result.ips.iter().map(|ip| ip.address.ip()).collect()).unwrap_or_default()
    }

    /// Returns the lease directories of host-local in the recorded configuration. The list is empty if the
    /// configuration can't be parsed.
    pub fn data_dirs(&self) -> Vec<PathBuf> {
        self.entry.network_list().map(|list| data_dirs(&list)).unwrap_or_default()
    }

    /// Returns the entry's namespace. Returns `None` if the entry names none, or one that does not exist or is the
    /// caller's own.
    ///
    /// # Errors
    /// Fails if the kernel can't tell.
    pub fn namespace(&self) -> Result<Option<NetNs>, Error> {
        Ok(self.entry.namespace().map(namespaces::namespace).transpose()?.flatten())
    }

    /// Returns whether the cache still has this very entry. It returns false after a DEL or another ADD, and if the file
    /// can't be read.
    pub fn is_still_recorded(&self) -> bool {
        let now = Cache::new(&self.cache).get(self.entry.key()).ok().and_then(Lookup::entry);
        now.as_ref() == Some(&self.entry)
    }

    /// Returns whether [`JudgedEntry::namespace`] finds one. If the kernel can't tell, this returns true.
    pub fn has_namespace(&self) -> bool {
        !matches!(self.namespace(), Ok(None))
    }
}

/// Returns the owner that the plugins write into aliases and comments for this entry's attachment.
pub fn owner_of(entry: &Entry) -> Owner {
    let attachment = Attachment { container_id: entry.container_id.clone(), ifname: entry.ifname.clone() };
    Owner { network: entry.network.clone(), attachment }
}

/// Returns the names of the result's interfaces that have no `sandbox`, so they are on the host.
pub fn host_links(entry: &Entry) -> Vec<&str> {
    let interfaces = entry.result.as_ref().and_then(|result| json::get(result, "interfaces")?.as_array());
    let on_host = interfaces.into_iter().flatten().filter(|interface| {
        json::get(interface, "sandbox").and_then(Value::as_str).is_none_or(str::is_empty)
    });
    on_host.filter_map(|interface| json::get(interface, "name")?.as_str()).collect()
}

/// Returns the ports that the runtime published for an attachment. The list is empty if no plugin of the network
/// declares the capability `portMappings`, or if the recorded ports can't be parsed.
pub fn published_ports(entry: &Entry) -> Vec<PortMapping> {
    if entry.network_list().is_ok_and(|list| !list.takes("portMappings")) {
        return Vec::new();
    }
    let ports = entry.capability_args.get("portMappings");
    ports.and_then(|ports| json::from_value(ports, "portMappings").ok()).unwrap_or_default()
}

/// Returns `NAMESPACE/NAME` from the CNI_ARGS that a kubelet's runtime passes. Returns `None` without a name, and a
/// name with control characters counts as none. A missing namespace is `default`.
pub fn kubernetes_name(args: &[(String, String)]) -> Option<String> {
    let namespace = find_name(args, "K8S_POD_NAMESPACE").unwrap_or("default");
    Some(format!("{namespace}/{}", find_name(args, "K8S_POD_NAME")?))
}

/// Returns the value of a key, or `None` if it is missing, empty or has control characters.
fn find_name<'a>(args: &'a [(String, String)], wanted: &str) -> Option<&'a str> {
    let (_, value) = args.iter().find(|(key, _)| key == wanted)?;
    (!value.is_empty() && !value.contains(char::is_control)).then_some(value)
}

/// Reads the entries of a cache. Every verdict is [`Verdict::Lives`] until `judge` replaces it. Reasons why single
/// files could not be read are added to `unread`, because the attachments in them may live.
pub(super) fn read(cache: &Cache, own: bool, unread: &mut Vec<String>) -> Result<Vec<JudgedEntry>, Error> {
    // An unreadable cache is an error, because attachments without their entries would look dead.
    let (entries, skipped) = cache.list_with_unread().map_err(|err| failed(&err))?;
    unread.extend(skipped.iter().map(ToString::to_string));
    Ok(not_yet_judged(entries, cache, own))
}

/// Reads the entries of a judged cache, or those of one container. The verdicts are as [`read`] has them. A file that
/// can't be read is left out, with a warning.
pub(super) fn read_own(cache: &Cache, container_id: Option<&str>) -> Result<Vec<JudgedEntry>, Error> {
    let entries = match container_id {
        Some(id) => cache.list_of(id),
        None => cache.list(),
    };
    Ok(not_yet_judged(entries.map_err(|err| failed(&err))?, cache, true))
}

fn not_yet_judged(entries: Vec<Entry>, cache: &Cache, own: bool) -> Vec<JudgedEntry> {
    let known = entries.into_iter().map(|entry| JudgedEntry {
        entry,
        verdict: Verdict::Lives,
        own,
        cache: cache.dir().to_owned(),
    });
    known.collect()
}

/// Converts the error of a cache that can't be read.
pub fn failed(err: &CacheError) -> Error {
    Error::new(Code::IO, err.to_string())
}
