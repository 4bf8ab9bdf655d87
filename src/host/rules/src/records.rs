//! Reads libcni's cached results, as evidence about the owners of rules. libcni writes a record after the ADD and
//! removes it with the DEL, so an ADD that is still running has none.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use ipnetwork::IpNetwork;
use serde::Deserialize;
use serde_json::Value;

use cnimble_cni::{Attachment, Owner, json};
use cnimble_os::files::{self, IfPresent as _, Links};

/// The directories of caches. containerd, CRI-O, nerdctl and `cnimble` use the first; `cnimble pod` and `run` the
/// second; Multus the third.
const CACHES: [&str; 3] =
    ["/var/lib/cni/results", "/var/lib/cnimble/cni/results", "/var/lib/cni/multus/results"];
/// The maximum size of a record, in bytes.
const LIMIT: usize = 1 << 20;

/// The record of an ADD.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    container_id: String,
    if_name: String,
    network_name: String,
    /// The path of the pod's namespace, or empty.
    #[serde(default)]
    pub netns: String,
    /// The result of the ADD, or null.
    #[serde(default)]
    pub result: Value,
}

impl Record {
    pub fn owner(&self) -> Owner {
        let attachment = Attachment { container_id: self.container_id.clone(), ifname: self.if_name.clone() };
        Owner { network: self.network_name.clone(), attachment }
    }

    /// Returns the addresses in the result. Those that can't be read are skipped.
    fn addrs(&self) -> Vec<IpAddr> {
        let ips = json::get(&self.result, "ips").and_then(Value::as_array);
        ips.into_iter()
            .flatten()
            .filter_map(|ip| json::get(ip, "address")?.as_str()?.parse::<IpNetwork>().ok())
            .map(|address| address.ip())
            .collect()
    }
}

/// Returns the records of all caches for whose file's name `choose` returns true. The name is
/// NETWORK-CONTAINER-INTERFACE. A missing cache has no records.
///
/// # Errors
/// Fails if a cache can't be listed. A record that can't be read is an error in the list.
pub fn read(choose: impl Fn(&str) -> bool) -> io::Result<Vec<io::Result<Record>>> {
    let mut records = Vec::new();
    for dir in CACHES.map(Path::new) {
        for name in files::names(dir)?.into_iter().filter(|name| choose(&name.to_string_lossy())) {
            // A concurrent DEL may have removed it.
            let bytes = files::read(&dir.join(name), LIMIT, Links::Refuse).unless_absent();
            if let Some(bytes) = bytes.transpose() {
                records.push(bytes.and_then(|bytes| Ok(serde_json::from_slice(&bytes)?)));
            }
        }
    }
    Ok(records)
}

/// Returns the addresses of all containers but this one, by their records. What can't be read is left out; if a cache
/// can't be listed, the list is empty and a warning is logged.
pub fn addresses_of_others(container_id: &str) -> Vec<IpAddr> {
    let records = read(|_| true).unwrap_or_else(|err| {
        log::warn!("the cached results were not looked at: {err}");
        Vec::new()
    });
    let others = records.into_iter().flatten().filter(|record| record.container_id != container_id);
    others.flat_map(|record| record.addrs()).collect()
}
