//! Finds the pod that a user names. Every verb that takes a pod takes these names: a namespace of `ip netns`, the path
//! of a namespace, a container ID or its beginning, `NAMESPACE/NAME`, `NAME` in the namespace `default`, and an
//! address.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cnimble_cni::Error;
use cnimble_netlink::{NetNs, Netlink};
use cnimble_runtime::{Cache, Entry};

use super::cache_entries::{failed, kubernetes_name};
use super::inside;
use super::runtime::Runtime;

/// The directories of `ip netns`. They are the same one on systems where `/var/run` is a link.
const NETNS_DIRS: [&str; 2] = ["/run/netns", "/var/run/netns"];

/// A pod that was found by a name, with its recorded attachments.
#[derive(Debug, Clone)]
pub struct NamedPod {
    /// `NAMESPACE/NAME` if it is known, or else the container ID or the namespace.
    pub name: String,
    /// The path of its network namespace.
    pub netns: PathBuf,
    /// The pod's entries in the result caches, without loopback. The list is empty for a namespace without any.
    pub entries: Vec<Entry>,
}

impl NamedPod {
    /// Returns the addresses in the recorded results of ADD.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.entries.iter().flat_map(addresses).collect()
    }
}

/// Why no pod was found.
#[derive(Debug, Clone)]
pub enum Unnamed {
    /// No record, namespace or sandbox has the name.
    Nothing,
    /// The names of the pods that match.
    Several(Vec<String>),
    /// A pod matches, but its namespace is unknown or gone, or has none of its interfaces. The text says which.
    Gone(String),
    /// The records can't be read.
    Unreadable(Error),
}

impl From<Error> for Unnamed {
    fn from(err: Error) -> Self {
        Unnamed::Unreadable(err)
    }
}

/// The records by which pods are found.
#[derive(Debug)]
pub struct Records<'a> {
    entries: Vec<Entry>,
    runtime: Option<&'a dyn Runtime>,
}

impl<'a> Records<'a> {
    /// Reads the caches, without loopback. Of two entries for one attachment the first counts. `runtime` is asked only
    /// about names that no entry has.
    pub fn read(caches: &[Cache], runtime: Option<&'a dyn Runtime>) -> Result<Self, Error> {
        let mut entries: Vec<Entry> = Vec::new();
        for cache in caches {
            for entry in cache.list().map_err(|err| failed(&err))? {
                let is_known = entries.iter().any(|other| other.key() == entry.key());
                if entry.ifname != "lo" && !is_known {
                    entries.push(entry);
                }
            }
        }
        Ok(Records { entries, runtime })
    }

    /// Uses these entries alone, and asks no runtime.
    pub fn new(entries: Vec<Entry>) -> Self {
        Records { entries, runtime: None }
    }

    /// Returns all entries that were read.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the pod that `word` names. An existing namespace or a sandbox of the runtime needs no record.
    pub fn find(&self, word: &str) -> Result<NamedPod, Unnamed> {
        match self.container(word)? {
            Some(id) => self.living(id),
            None => self.find_unrecorded(word),
        }
    }

    /// Returns the ID of the container that `word` names, also if its namespace is gone. Returns `None` if no entry
    /// matches.
    ///
    /// # Errors
    /// Fails with [`Unnamed::Several`] if several containers match equally well.
    pub fn container(&self, word: &str) -> Result<Option<&str>, Unnamed> {
        let mut pods: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
        for entry in self.entries.iter().filter(|entry| is_named(entry, word)) {
            pods.entry(&entry.container_id).or_default().push(entry);
        }
        // A complete name wins over a container ID that only begins with it.
        if pods.iter().any(|(id, entries)| is_whole_name(word, id, entries)) {
            pods.retain(|id, entries| is_whole_name(word, id, entries));
        }
        let mut found = pods.into_iter();
        match (found.next(), found.next()) {
            (None, _) => Ok(None),
            (Some((id, _)), None) => Ok(Some(id)),
            (Some((first, _)), Some((second, _))) => {
                let rest = found.map(|(id, _)| id);
                let names = [first, second].into_iter().chain(rest).map(|id| self.title(id));
                Err(Unnamed::Several(names.collect()))
            }
        }
    }

    /// Returns the pod with this address on record.
    pub fn find_address(&self, ip: IpAddr) -> Result<NamedPod, Unnamed> {
        self.find(&ip.to_string())
    }

    /// Returns the container's name for messages: `NAMESPACE/NAME` if it is recorded, otherwise [`short_name`].
    fn title(&self, container_id: &str) -> String {
        let entries = self.entries.iter().filter(|entry| entry.container_id == container_id);
        let name = entries.clone().find_map(|entry| kubernetes_name(&entry.args));
        let netns = entries.clone().find_map(Entry::namespace);
        name.unwrap_or_else(|| short_name(container_id, netns).to_owned())
    }

    /// Returns the pod of a recorded container. Fails with [`Unnamed::Gone`] if its namespace is gone, or if it is
    /// doubtful for every entry that the interface in it is the entry's.
    fn living(&self, container_id: &str) -> Result<NamedPod, Unnamed> {
        let of_it = self.entries.iter().filter(|entry| entry.container_id == container_id);
        let entries: Vec<Entry> = of_it.cloned().collect();
        let name = self.title(container_id);
        let Some(netns) = entries.iter().find_map(Entry::namespace) else {
            return Err(Unnamed::Gone(format!("the record of {name} names no namespace")));
        };
        let netns = PathBuf::from(netns);
        let Some(ns) = NetNs::find(&netns).map_err(Error::from)? else {
            return Err(Unnamed::Gone(format!("the namespace {} of {name} is not there", netns.display())));
        };
        // One interface that is surely the pod's is enough. If all are lost or another's, the namespace is not the
        // pod's.
        let mut host = Netlink::open().map_err(Error::from)?;
        let mut doubts = Vec::new();
        for entry in &entries {
            doubts.push(inside::doubt(entry, &ns, &mut host)?);
        }
        match doubts.into_iter().collect::<Option<Vec<String>>>().and_then(|all| all.into_iter().next()) {
            Some(doubt) => Err(Unnamed::Gone(format!("{name}: {doubt}"))),
            None => Ok(NamedPod { name, netns, entries }),
        }
    }

    /// Finds a namespace without a record, or a ready sandbox that only the runtime knows.
    fn find_unrecorded(&self, word: &str) -> Result<NamedPod, Unnamed> {
        if let Some(path) = namespace_path(word)
            && NetNs::find(&path).map_err(Error::from)?.is_some()
        {
            return Ok(NamedPod { name: word.to_owned(), netns: path, entries: Vec::new() });
        }
        let Some(runtime) = self.runtime else { return Err(Unnamed::Nothing) };
        let mut sandboxes = runtime.sandboxes()?;
        sandboxes.retain(|sandbox| {
            sandbox.ready
                && (sandbox.pod == word
                    || sandbox.pod.strip_prefix("default/") == Some(word)
                    || sandbox.id.starts_with(word))
        });
        match sandboxes.as_slice() {
            [] => Err(Unnamed::Nothing),
            [sandbox] => {
                let Some(detail) = runtime.sandbox(&sandbox.id)? else {
                    return Err(Unnamed::Gone(format!("the runtime lists {} no more", sandbox.pod)));
                };
                match detail.netns {
                    Some(netns) => Ok(NamedPod { name: sandbox.pod.clone(), netns, entries: Vec::new() }),
                    None => Err(Unnamed::Gone(format!("the runtime tells no namespace of {}", sandbox.pod))),
                }
            }
            several => Err(Unnamed::Several(several.iter().map(|sandbox| sandbox.pod.clone()).collect())),
        }
    }
}

/// Returns the name for messages of a pod without a Kubernetes name. That is the container ID, unless cnitool or
/// `cnimble add` made the ID as a hash of the namespace's path. Then it is the name in `ip netns`, or the path.
pub fn short_name<'a>(container_id: &'a str, netns: Option<&'a str>) -> &'a str {
    match netns {
        Some(path) if container_id.starts_with("cnitool-") => named_namespace(path).unwrap_or(path),
        _ => container_id,
    }
}

/// Returns the name in `ip netns` of the namespace with this path, or `None` if it is elsewhere.
fn named_namespace(path: &str) -> Option<&str> {
    NETNS_DIRS.iter().find_map(|dir| path.strip_prefix(dir)?.strip_prefix('/'))
}

/// Returns whether `word` names the entry's pod, in any of the forms of this module's text.
fn is_named(entry: &Entry, word: &str) -> bool {
    let pod = kubernetes_name(&entry.args);
    let is_pod = pod.is_some_and(|pod| pod == word || pod.strip_prefix("default/") == Some(word));
    let has_address = word.parse().is_ok_and(|ip| addresses(entry).contains(&ip));
    let in_namespace = entry.namespace().is_some_and(|path| is_namespace(path, word));
    is_pod || has_address || in_namespace || id_begins(entry, word)
}

/// Returns whether `word`, which names the pod of these entries, is more than the beginning of its container ID.
fn is_whole_name(word: &str, id: &str, entries: &[&Entry]) -> bool {
    id == word || entries.iter().any(|entry| !id_begins(entry, word))
}

fn id_begins(entry: &Entry, word: &str) -> bool {
    !word.is_empty() && entry.container_id.starts_with(word)
}

fn is_namespace(path: &str, word: &str) -> bool {
    if word.contains('/') {
        return path == word;
    }
    named_namespace(path) == Some(word)
}

/// Returns the path that `word` has as an absolute path or as a name in `ip netns`. It returns `None` if it can be
/// neither. The path may not exist.
fn namespace_path(word: &str) -> Option<PathBuf> {
    if word.starts_with('/') {
        return Some(PathBuf::from(word));
    }
    let is_name = !word.is_empty() && !word.contains('/') && word != "." && word != "..";
    is_name.then(|| Path::new("/run/netns").join(word))
}

fn addresses(entry: &Entry) -> Vec<IpAddr> {
    let result = entry.cni_result().ok().flatten().unwrap_or_default();
    result.ips.iter().map(|ip| ip.address.ip()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: &str, netns: &str, pod: &str) -> Entry {
        let mut entry = Entry::default();
        (entry.container_id, entry.netns) = (id.to_owned(), netns.to_owned());
        entry.args = vec![("K8S_POD_NAMESPACE".into(), "shop".into()), ("K8S_POD_NAME".into(), pod.into())];
        entry.result = Some(serde_json::json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}]}));
        entry
    }

    #[test]
    fn a_pod_has_many_names() {
        let entry = entry("abcdef", "/var/run/netns/blue", "web");
        for name in ["abc", "abcdef", "shop/web", "10.0.0.2", "blue", "/var/run/netns/blue"] {
            assert!(is_named(&entry, name), "{name}");
        }
        for name in ["", "b", "web", "shop", "10.0.0.3", "netns/blue", "blu", "/run/netns/blue"] {
            assert!(!is_named(&entry, name), "{name}");
        }
    }

    #[test]
    fn a_hash_is_no_name() {
        for path in ["/run/netns/blue", "/var/run/netns/blue"] {
            assert_eq!(short_name("cnitool-df26705e2e4ffd095eb1", Some(path)), "blue");
            assert_eq!(short_name("abcdef", Some(path)), "abcdef");
        }
        assert_eq!(short_name("cnitool-df26", Some("/proc/7/ns/net")), "/proc/7/ns/net");
        assert_eq!(short_name("cnitool-df26", None), "cnitool-df26");
    }

    #[test]
    fn names_that_fit_several_pods_are_refused() {
        let entries = vec![entry("abc1", "", "a"), entry("abc2", "", "b")];
        let records = Records { entries, runtime: None };
        let several = records.find("abc").unwrap_err();
        assert!(matches!(&several, Unnamed::Several(names) if *names == ["shop/a", "shop/b"]), "{several:?}");
        let whole = records.find("abc1").unwrap_err();
        assert!(matches!(&whole, Unnamed::Gone(why) if why.contains("shop/a")), "{whole:?}");
        assert!(matches!(records.find("nothing-of-this-name"), Err(Unnamed::Nothing)));
        assert!(matches!(records.find("shop/a"), Err(Unnamed::Gone(_))), "it has no namespace");
    }
}
