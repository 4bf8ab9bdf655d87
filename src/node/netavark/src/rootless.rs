//! Rootless podman. netavark then calls the driver as uid 0 of podman's user namespace, in a network namespace of the
//! user's, with `/run` private and `/var/lib` read-only. So records and leases are below `/run`.

use std::path::PathBuf;

use serde_json::{Map, Value};

use cnimble_cni::json;

/// The directory of records, above `results`.
const RECORDS: &str = "/run/cnimble/cni";
/// The directory of host-local's leases.
const LEASES: &str = "/run/cnimble/networks";

/// Returns the ID of the user whose podman runs rootless. It returns `None` for podman of root, also in a system
/// container.
pub fn user() -> Option<u32> {
    user_of(&std::fs::read_to_string("/proc/self/uid_map").ok()?)
}

/// Does this for the text of a uid_map (user_namespaces(7)). Rootless podman maps the user alone to uid 0.
fn user_of(map: &str) -> Option<u32> {
    let numbers: Vec<u32> =
        map.lines().next()?.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    match numbers.as_slice() {
        [0, user, 1] if *user != 0 => Some(*user),
        _ => None,
    }
}

/// Returns the directory of records, or `None` for libcni's.
pub(crate) fn records() -> Option<PathBuf> {
    user().map(|_| PathBuf::from(RECORDS))
}

/// Moves the leases of host-local to a directory that the user may write to, unless the configuration names one. It does
/// not look whether podman is rootless, so call it only then ([`user`]).
pub(crate) fn place_leases(network: &mut Value) {
    let plugins = network.get_mut("plugins").and_then(Value::as_array_mut);
    for plugin in plugins.into_iter().flatten() {
        let ipam = plugin.get_mut("ipam").and_then(Value::as_object_mut);
        if let Some(ipam) = ipam.filter(|ipam| needs_place(ipam)) {
            ipam.insert("dataDir".to_owned(), LEASES.into());
        }
    }
}

fn needs_place(ipam: &Map<String, Value>) -> bool {
    let ipam = Value::Object(ipam.clone());
    let is_host_local = json::get(&ipam, "type").and_then(Value::as_str) == Some("host-local");
    is_host_local && json::get(&ipam, "dataDir").is_none()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_rootless_podman_maps_one_user_to_root() {
        for (map, user) in [
            ("         0       1000          1\n         1     100000      65536\n", Some(1000)),
            ("         0          0 4294967295\n", None),
            ("         0     100000      65536\n", None),
            ("", None),
        ] {
            assert_eq!(user_of(map), user, "{map}");
        }
    }

    #[test]
    fn leases_go_where_the_user_may_write() {
        let mut network = json!({"plugins": [
            {"type": "bridge", "ipam": {"type": "host-local"}},
            {"type": "ptp", "ipam": {"type": "host-local", "dataDir": "/home/u/leases"}},
            {"type": "macvlan", "ipam": {"type": "dhcp"}},
            {"type": "portmap"},
        ]});
        place_leases(&mut network);
        let dirs: Vec<&Value> =
            network["plugins"].as_array().unwrap().iter().map(|of| &of["ipam"]["dataDir"]).collect();
        assert_eq!(dirs, [&json!(LEASES), &json!("/home/u/leases"), &Value::Null, &Value::Null]);
    }
}
