//! Which containers are gone for certain, so that their ports are free.
//!
//! A plugin can't judge as `cnimble doctor` does, which looks into every namespace. It can tell from what the
//! runtime has recorded of an attachment (libcni's cache of results), and only if all of it says the same:
//!
//! - The record is there. libcni writes it when the ADD is done and removes it with the DEL; so nothing is said of
//!   an ADD that goes on meanwhile, nor of a runtime that keeps no records.
//! - The path of its namespace leads to no namespace any more. That alone could be because we see other mounts than
//!   the runtime.
//! - An interface of the host that the result tells of is gone. The end of a pair of interfaces goes with the
//!   other end, that of the pod.
//!
//! An attachment without an interface on the host (macvlan and its like) is never said to be gone. This is only asked
//! when a port is taken.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use cnimble_cni::{Attachment, Owner, json};
use cnimble_files::Links;
use cnimble_netlink::{NetNs, Netlink};
use cnimble_rules::portmap::Holder;

/// Where runtimes have libcni keep results: containerd, CRI-O, nerdctl and `cnimble`; `cnimble pod` and `run`.
const CACHES: [&str; 2] = ["/var/lib/cni/results", "/var/lib/cnimble/cni/results"];
/// The largest record, in bytes.
const LIMIT: usize = 1 << 20;

/// The needed keys of a record.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    container_id: String,
    if_name: String,
    network_name: String,
    #[serde(default)]
    netns: String,
    #[serde(default)]
    result: Value,
}

/// Whether the container that has a port is gone for certain.
pub(crate) fn is_gone(holder: &Holder) -> bool {
    let mut known = false;
    for dir in CACHES {
        let Ok(records) = of_container(Path::new(dir), &holder.container) else { return false };
        for record in records.into_iter().filter(|record| holder.is(&record.owner())) {
            if !record.is_gone().unwrap_or(false) {
                return false;
            }
            known = true;
        }
    }
    known
}

/// The records of a container with an ID that begins like this.
fn of_container(dir: &Path, id: &str) -> std::io::Result<Vec<Record>> {
    let listed = match std::fs::read_dir(dir) {
        Err(err) if cnimble_files::is_absent(&err) => return Ok(Vec::new()),
        listed => listed?,
    };
    let mut records = Vec::new();
    for file in listed {
        let file = file?;
        // NETWORK-CONTAINER-INTERFACE
        if !file.file_name().to_string_lossy().contains(&format!("-{id}")) {
            continue;
        }
        let bytes = match cnimble_files::read(&file.path(), LIMIT, Links::Refuse) {
            // Its DEL is done in this moment.
            Err(err) if cnimble_files::is_absent(&err) => continue,
            bytes => bytes?,
        };
        records.push(serde_json::from_slice(&bytes)?);
    }
    Ok(records)
}

impl Record {
    fn owner(&self) -> Owner {
        let attachment = Attachment { container_id: self.container_id.clone(), ifname: self.if_name.clone() };
        Owner { network: self.network_name.clone(), attachment }
    }

    fn is_gone(&self) -> cnimble_netlink::Result<bool> {
        let interfaces = json::get(&self.result, "interfaces").and_then(Value::as_array);
        let (mut namespaces, mut ends) = (vec![self.netns.as_str()], Vec::new());
        for interface in interfaces.into_iter().flatten() {
            let text = |key| json::get(interface, key).and_then(Value::as_str).unwrap_or_default();
            match text("sandbox") {
                "" => ends.push(text("name")),
                path => namespaces.push(path),
            }
        }
        namespaces.retain(|path| !path.is_empty());
        for path in &namespaces {
            if NetNs::find(Path::new(path))?.is_some() {
                return Ok(false);
            }
        }
        let mut host = Netlink::open()?;
        let mut lost = false;
        for name in ends {
            lost |= host.find_link(name)?.is_none();
        }
        Ok(lost && !namespaces.is_empty())
    }
}
