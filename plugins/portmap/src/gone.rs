//! Finds containers that are certainly gone, so that their ports are unused, by libcni's cached results. A container is
//! gone only if all of these hold:
//! - A record exists. libcni writes it after the ADD and removes it with the DEL, so a running ADD has none.
//! - The path of its namespace leads to no namespace. The runtime may have other mounts, so that isn't enough.
//! - An interface on the host in the result is missing: the kernel removes it with the pod's end of the veth pair.
//!
//! Without an interface on the host (macvlan, for example) a container never counts as gone.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use cnimble_cni::{Attachment, Owner, json};
use cnimble_netlink::{NetNs, Netlink};
use cnimble_os::files::Links;
use cnimble_rules::portmap::Holder;

/// containerd, CRI-O, nerdctl and `cnimble` use the first; `cnimble pod` and `run` the second; Multus the third.
const CACHES: [&str; 3] =
    ["/var/lib/cni/results", "/var/lib/cnimble/cni/results", "/var/lib/cni/multus/results"];
/// The maximum size in bytes.
const LIMIT: usize = 1 << 20;

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

/// Whether a port's owner is certainly gone.
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

/// The ID may be a part.
fn of_container(dir: &Path, id: &str) -> std::io::Result<Vec<Record>> {
    let listed = match std::fs::read_dir(dir) {
        Err(err) if cnimble_os::files::is_absent(&err) => return Ok(Vec::new()),
        listed => listed?,
    };
    let mut records = Vec::new();
    for file in listed {
        let file = file?;
        // The name is NETWORK-CONTAINER-INTERFACE.
        if !file.file_name().to_string_lossy().contains(&format!("-{id}")) {
            continue;
        }
        let bytes = match cnimble_os::files::read(&file.path(), LIMIT, Links::Refuse) {
            // A concurrent DEL removed it.
            Err(err) if cnimble_os::files::is_absent(&err) => continue,
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
