//! Counts used and free addresses of a network, by host-local's configuration and files
//! (`<dataDir>/<network>/<address>`), also of the Go plugin. Nothing is locked, so the numbers may be a moment old.

use cnimble_cni::NetworkList;
use cnimble_leases::config::{self, Config};
use cnimble_leases::range::RangeSet;
use cnimble_leases::store::{Directory, StoreError};

/// The use of one range of addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeUsage {
    /// The format is `FIRST-LAST`.
    pub range: String,
    pub used: u128,
    pub free: u128,
}

/// Returns the use of each range of host-local in this network. The list is empty without host-local, and if the ranges
/// come from the capability `ipRanges`.
pub fn usage(list: &NetworkList) -> Result<Vec<RangeUsage>, StoreError> {
    let mut found = Vec::new();
    for plugin in list.plugins.iter().filter(|plugin| config::is_used_by(plugin)) {
        // host-local refuses such a configuration, so it has made no leases.
        let Ok(config) = Config::read_entry(list, plugin) else { continue };
        let leases = match Directory::open(&config.store)? {
            Some(dir) => dir.addresses()?,
            None => Vec::new(),
        };
        for range in config.sets.iter().flat_map(RangeSet::ranges) {
            let used = leases.iter().filter(|ip| range.contains(**ip)).count() as u128;
            let free = config.capacity(range).saturating_sub(used);
            found.push(RangeUsage { range: range.to_string(), used, free });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;

    use serde_json::json;

    use super::*;

    #[test]
    fn leases_are_counted_in_their_ranges() {
        let dir = tempfile::tempdir().unwrap();
        let list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
            {"type": "bridge", "ipam": {"type": "host-local", "dataDir": dir.path(), "ranges": [
                [{"subnet": "10.1.0.0/24"}, {"subnet": "10.2.0.0/24", "rangeStart": "10.2.0.10", "rangeEnd": "10.2.0.19"}],
                [{"subnet": "fd00::/64"}],
            ]}},
            {"type": "portmap"},
        ]});
        let list = NetworkList::from_value(list).unwrap();
        let text = |list: &NetworkList| -> Vec<String> {
            let all = usage(list).unwrap();
            all.iter().map(|of| format!("{} {} {}", of.range, of.used, of.free)).collect()
        };
        let empty = text(&list);
        assert_eq!(
            empty,
            [
                "10.1.0.1-10.1.0.254 0 253",
                "10.2.0.10-10.2.0.19 0 10",
                "fd00::1-fd00::ffff:ffff:ffff:ffff 0 18446744073709551614",
            ]
        );
        fs::create_dir(dir.path().join("net")).unwrap();
        for name in ["10.1.0.2", "10.1.0.3", "10.2.0.12", "10.3.0.1", "lock", "last_reserved_ip.0", "fd00::2"]
        {
            fs::write(dir.path().join("net").join(name), "").unwrap();
        }
        assert_eq!(
            text(&list),
            [
                "10.1.0.1-10.1.0.254 2 251",
                "10.2.0.10-10.2.0.19 1 9",
                "fd00::1-fd00::ffff:ffff:ffff:ffff 1 18446744073709551613",
            ]
        );
    }
}
