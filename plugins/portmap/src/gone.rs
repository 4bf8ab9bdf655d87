//! Finds containers that are certainly gone, so that their ports are unused. The evidence are the results in libcni's
//! cache. A container is gone only if all of these hold:
//! - A record exists. A running ADD has none.
//! - The paths of its namespaces in the record lead to no namespace. The runtime may have other mounts, so that is not
//!   enough.
//! - An interface on the host in the result is missing. The kernel removes it with the pod's end of the veth pair.
//!
//! Without an interface on the host (macvlan, for example) a container never counts as gone.

use std::path::Path;

use serde_json::Value;

use cnimble_cni::json;
use cnimble_netlink::{NetNs, Netlink};
use cnimble_rules::portmap::Holder;
use cnimble_rules::records::{self, Record};

/// Returns true if a port's owner is certainly gone. False whenever a record cannot be read, or if any of its records
/// shows it alive.
pub(crate) fn is_gone(holder: &Holder) -> bool {
    // The holder may have only a part of the container ID, which the names of the records contain.
    let part = format!("-{}", holder.container);
    let Ok(records) = records::read(|name| name.contains(&part)) else { return false };
    let Ok(records) = records.into_iter().collect::<Result<Vec<Record>, _>>() else { return false };
    let mut records = records.iter().filter(|record| holder.is(&record.owner())).peekable();
    records.peek().is_some() && records.all(|record| has_gone(record).unwrap_or(false))
}

/// Returns true if all namespaces of the record are gone and at least one of its interfaces on the host is missing.
fn has_gone(record: &Record) -> cnimble_netlink::Result<bool> {
    let interfaces = json::get(&record.result, "interfaces").and_then(Value::as_array);
    let (mut namespaces, mut ends) = (vec![record.netns.as_str()], Vec::new());
    for interface in interfaces.into_iter().flatten() {
        match text_of(interface, "sandbox") {
            "" => ends.push(text_of(interface, "name")),
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

/// Returns the text of a key of an interface in a result. It is empty if the key is missing.
fn text_of<'a>(interface: &'a Value, key: &str) -> &'a str {
    json::get(interface, key).and_then(Value::as_str).unwrap_or_default()
}
