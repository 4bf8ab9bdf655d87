//! Reads range sets from the keys of the configuration. Each range, each set, and the sets together are validated.
//!
//! The texts of errors are the Go plugin's. The `details` add the key, which these don't name.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::Deserialize;

use cnimble_cni::fields::{self, RequestedIp};
use cnimble_cni::{Error, PluginConfig, Version};

use crate::range::{Range, RangeSet};

/// The keys of one range.
#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct RangeFields {
    #[serde(deserialize_with = "fields::cidr_opt")]
    pub(super) subnet: Option<IpNetwork>,
    #[serde(deserialize_with = "fields::ip_opt")]
    pub(super) range_start: Option<IpAddr>,
    #[serde(deserialize_with = "fields::ip_opt")]
    pub(super) range_end: Option<IpAddr>,
    #[serde(deserialize_with = "fields::ip_opt")]
    pub(super) gateway: Option<IpAddr>,
    pub(super) exclude: Vec<RequestedIp>,
}

impl RangeFields {
    /// Returns the ranges that `exclude` leaves of this range.
    fn ranges(&self) -> Result<Vec<Range>, String> {
        let subnet = self.subnet.ok_or("subnet is missing")?;
        let excluded: Vec<IpNetwork> = self
            .exclude
            .iter()
            .filter_map(|of| of.prefix.map_or(Some(of.ip.into()), |len| IpNetwork::new(of.ip, len).ok()))
            .collect();
        Range::new(subnet, self.range_start, self.range_end, self.gateway)?.without(&excluded)
    }
}

/// Returns the error that a range set is invalid. `key` is where it is in the configuration.
fn invalid_set(n: usize, err: &str, key: &str) -> Error {
    Error::config(format!("invalid range set {n}: {err}")).details(format!("see {key}"))
}

/// Returns the range sets in the given order. Each is given with its key, for errors. Fails with code 7.
pub(crate) fn range_sets(
    given: impl Iterator<Item = (Vec<RangeFields>, String)>,
    config: &PluginConfig,
) -> Result<Vec<RangeSet>, Error> {
    let mut sets: Vec<RangeSet> = Vec::new();
    let mut keys: Vec<String> = Vec::new();
    for (fields, key) in given {
        let n = sets.len();
        let mut ranges = Vec::with_capacity(fields.len());
        for (at, fields) in fields.iter().enumerate() {
            ranges.extend(fields.ranges().map_err(|err| match key.as_str() {
                "ipam.subnet" => invalid_set(n, &err, &key),
                _ => invalid_set(n, &err, &format!("{key}[{at}]")),
            })?);
        }
        sets.push(RangeSet::new(ranges).map_err(|err| invalid_set(n, &err, &key))?);
        keys.push(key);
    }
    if sets.is_empty() {
        return Err(Error::config("no IP ranges specified")
            .details("give ipam.ranges or ipam.subnet, or let the runtime pass the capability ipRanges"));
    }
    let version = config.version;
    let ipv4 = sets.iter().filter(|set| set.is_ipv4()).count();
    if version < Version::V0_3_0 && (ipv4 > 1 || sets.len() - ipv4 > 1) {
        return Err(Error::config(format!(
            "CNI version {version} does not support more than 1 address per family"
        )));
    }
    for (n, set) in sets.iter().enumerate() {
        if let Some(other) =
            (n + 1..sets.len()).find(|other| sets.get(*other).is_some_and(|other| set.overlaps(other)))
        {
            let [one, two] = [n, other].map(|n| keys.get(n).map_or("", String::as_str));
            return Err(Error::config(format!("range set {n} overlaps with {other}"))
                .details(format!("see {one} and {two}")));
        }
    }
    if config.plugin_type == "bridge" {
        sets = sets.into_iter().map(RangeSet::on_shared_link).collect();
    }
    Ok(sets)
}
