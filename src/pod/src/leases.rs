//! How full the address ranges of a network are.
//!
//! Read from host-local's files (`<dataDir>/<network>/<address>`), whichever set of plugins
//! writes them, and its configuration. Nothing is locked: the numbers may be a moment old.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use ipnetwork::IpNetwork;
use serde::Deserialize;

use cnimble_cni::{NetworkList, json};

const DATA_DIR: &str = "/var/lib/cni/networks";

/// A range and its leases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeUsage {
    /// `FIRST-LAST`
    pub range: String,
    /// Leases in it.
    pub used: u128,
    /// Addresses that could still be given out.
    pub free: u128,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Ipam {
    #[serde(rename = "type")]
    plugin: String,
    data_dir: String,
    ranges: Vec<Vec<Range>>,
    subnet: String,
    range_start: String,
    range_end: String,
    gateway: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Range {
    subnet: String,
    range_start: String,
    range_end: String,
    gateway: String,
}

/// The ranges of all plugins of the network that use host-local; none if no plugin does, or
/// if the ranges come from elsewhere (the capability `ipRanges`).
///
/// # Errors
/// The leases are there and can't be listed.
pub fn usage(list: &NetworkList) -> io::Result<Vec<RangeUsage>> {
    let mut found = Vec::new();
    for plugin in &list.plugins {
        let Some(ipam) = json::get(&plugin.document, "ipam") else { continue };
        // What host-local refuses has no leases either.
        let Ok(ipam) = json::from_value::<Ipam>(ipam, "ipam") else { continue };
        if ipam.plugin != "host-local" {
            continue;
        }
        let dir = match ipam.data_dir.as_str() {
            "" => PathBuf::from(DATA_DIR),
            dir => PathBuf::from(dir),
        };
        let leases = leases(dir.join(&list.name))?;
        let single = Range {
            subnet: ipam.subnet,
            range_start: ipam.range_start,
            range_end: ipam.range_end,
            gateway: ipam.gateway,
        };
        for range in std::iter::once(&single).chain(ipam.ranges.iter().flatten()) {
            if let Some((first, last, reserved)) = bounds(range) {
                let inside = |ip: &&IpAddr| {
                    let number = number(**ip);
                    ip.is_ipv4() == first.is_ipv4()
                        && (self::number(first)..=self::number(last)).contains(&number)
                };
                let used = leases.iter().filter(inside).count() as u128;
                let reserved = reserved.iter().filter(inside).count() as u128;
                let size = (number(last) - number(first)).saturating_add(1);
                found.push(RangeUsage {
                    range: format!("{first}-{last}"),
                    used,
                    free: size.saturating_sub(reserved).saturating_sub(used),
                });
            }
        }
    }
    Ok(found)
}

/// The addresses that have a file.
fn leases(dir: PathBuf) -> io::Result<Vec<IpAddr>> {
    let entries = match fs::read_dir(dir) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let names = entries.map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()));
    let names: Vec<String> = names.collect::<io::Result<_>>()?;
    Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
}

/// First and last address, and those between that are never given out. `None` for what is no
/// range.
fn bounds(range: &Range) -> Option<(IpAddr, IpAddr, Vec<IpAddr>)> {
    let subnet: IpNetwork = range.subnet.parse().ok()?;
    let given = |text: &str| match text {
        "" => Some(None),
        text => text.parse::<IpAddr>().ok().map(Some),
    };
    let network = subnet.network();
    let next = |ip: IpAddr, step: i128| address(number(ip).checked_add_signed(step)?, ip);
    let last = match subnet.is_ipv4() {
        true => next(subnet.broadcast(), -1)?,
        false => subnet.broadcast(),
    };
    let first = next(network, 1)?;
    let gateway = given(&range.gateway)?.unwrap_or(first);
    let (start, end) =
        (given(&range.range_start)?.unwrap_or(first), given(&range.range_end)?.unwrap_or(last));
    if !subnet.contains(start) || !subnet.contains(end) || number(end) < number(start) {
        return None;
    }
    let mut reserved = vec![network, gateway];
    if subnet.is_ipv4() {
        reserved.push(subnet.broadcast());
    }
    reserved.dedup();
    Some((start, end, reserved))
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}

fn address(number: u128, like: IpAddr) -> Option<IpAddr> {
    match like {
        IpAddr::V4(_) => Some(IpAddr::V4(u32::try_from(number).ok()?.into())),
        IpAddr::V6(_) => Some(IpAddr::V6(number.into())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

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
