//! Reads and validates the configuration of addresses. The README of host-local lists its keys.
//!
//! | key | meaning |
//! |---|---|
//! | `ipam.subnet`, `rangeStart`, `rangeEnd`, `gateway`, `exclude` | one range, the oldest form |
//! | `ipam.ranges` | range sets; an attachment gets one address of each |
//! | `runtimeConfig.ipRanges` | range sets of the runtime (capability `ipRanges`) |
//! | CNI_ARGS `IP`, `args.cni.ips`, `runtimeConfig.ips` | addresses that are asked for |
//! | `ipam.routes` | copied to the result |
//! | `ipam.resolvConf` | a file that becomes the result's `dns` |
//! | `ipam.keepFor` | for how many seconds a pod's address is remembered |
//! | `ipam.dataDir` | where the networks' directories are |
//! | `ipam.notReadyWhenFull` | whether STATUS fails when a range set has no address left |
//!
//! Range sets are numbered from 0 in this order: the runtime's, the oldest form, `ranges`. The number is part of a
//! file's name in the store.

pub(crate) mod ranges;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnetwork::IpNetwork;
use serde::Deserialize;
use serde_json::Value;

use cnimble_cni::fields::{self, RequestedIp};
use cnimble_cni::list::{Injection, ListEntry};
use cnimble_cni::{CniArgs, Code, Error, NetworkList, PluginConfig, Route, cidr, json};

use crate::range::{Range, RangeSet};
use ranges::{RangeFields, range_sets};

/// The IPAM plugin that gives addresses from ranges.
const PLUGIN: &str = "host-local";

/// The default of `ipam.dataDir`: the networks' directories are below it.
pub const DATA_DIR: &str = "/var/lib/cni/networks";

/// The configuration, as ADD, CHECK and STATUS use it.
#[derive(Debug, Clone)]
pub struct Config {
    /// The range sets by their numbers. An attachment gets one address of each.
    pub sets: Vec<RangeSet>,
    /// The addresses that are asked for without repetitions, the most important first.
    pub requested: Vec<IpAddr>,
    pub routes: Vec<Route>,
    /// The file that becomes the result's `dns`.
    pub resolv_conf: Option<PathBuf>,
    /// The network's directory.
    pub store: PathBuf,
    /// The time after its release in which a pod gets its address again, in seconds. 0 is never.
    pub keep_for: u64,
    /// Whether STATUS fails when a set has no address left.
    pub not_ready_when_full: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Document {
    ipam: Option<Ipam>,
    runtime_config: RuntimeConfig,
    args: Args,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Ipam {
    #[serde(deserialize_with = "fields::cidr_opt")]
    subnet: Option<IpNetwork>,
    #[serde(deserialize_with = "fields::ip_opt")]
    range_start: Option<IpAddr>,
    #[serde(deserialize_with = "fields::ip_opt")]
    range_end: Option<IpAddr>,
    #[serde(deserialize_with = "fields::ip_opt")]
    gateway: Option<IpAddr>,
    exclude: Vec<RequestedIp>,
    ranges: Vec<Vec<RangeFields>>,
    routes: Vec<Route>,
    #[serde(deserialize_with = "fields::text_opt")]
    data_dir: Option<String>,
    #[serde(deserialize_with = "fields::text_opt")]
    resolv_conf: Option<String>,
    not_ready_when_full: bool,
    keep_for: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RuntimeConfig {
    #[serde(rename = "ipRanges")]
    ip_ranges: Vec<Vec<RangeFields>>,
    ips: Vec<RequestedIp>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Args {
    cni: CniArguments,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CniArguments {
    ips: Vec<RequestedIp>,
}

/// The keys that DEL and GC need. These verbs must work even if the rest of the configuration is invalid by now.
#[derive(Default, Deserialize)]
#[serde(default)]
struct StoreOnly {
    ipam: Option<StoreOnlyIpam>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct StoreOnlyIpam {
    #[serde(deserialize_with = "fields::text_opt")]
    data_dir: Option<String>,
    keep_for: Value,
}

fn no_ipam() -> Error {
    Error::config("IPAM config missing 'ipam' key")
}

/// Returns the network's directory. Fails with code 7 if there is no `ipam`, or `dataDir` can't be a path.
pub fn store_path(config: &PluginConfig) -> Result<PathBuf, Error> {
    store_path_and_keep_for(config).map(|(path, _)| path)
}

/// Returns the network's directory with the seconds of `keepFor`, which are 0 if the key is invalid. Fails as
/// [`store_path`] does.
pub fn store_path_and_keep_for(config: &PluginConfig) -> Result<(PathBuf, u64), Error> {
    let ipam = config.decode::<StoreOnly>()?.ipam.ok_or_else(no_ipam)?;
    Ok((join(ipam.data_dir.as_deref(), &config.name)?, ipam.keep_for.as_u64().unwrap_or(0)))
}

/// Returns whether the runtime will give the ranges (capability `ipRanges`) and the configuration has none itself. The
/// runtime passes them with an attachment, so STATUS can't know them. Fails with code 7 if the configuration can't be
/// read.
pub fn awaits_ranges(config: &PluginConfig) -> Result<bool, Error> {
    let document: Value = config.decode()?;
    Ok(find_value(&document, "capabilities", "ipRanges") == Some(&Value::Bool(true))
        && find_value(&document, "runtimeConfig", "ipRanges").is_none()
        && find_value(&document, "ipam", "ranges").is_none()
        && find_value(&document, "ipam", "subnet").is_none())
}

/// Returns the value of a key in an object of the document, or `None` if it is missing or null.
fn find_value<'a>(document: &'a Value, object: &str, key: &str) -> Option<&'a Value> {
    json::get(json::get(document, object)?, key).filter(|value| !value.is_null())
}

/// Returns the directory of a network. The plugin's frame has checked that `network` is a plain file name.
fn join(data_dir: Option<&str>, network: &str) -> Result<PathBuf, Error> {
    let data_dir = data_dir.unwrap_or(DATA_DIR);
    if data_dir.contains('\0') {
        return Err(Error::config("ipam.dataDir: a path can't hold a NUL character"));
    }
    Ok(Path::new(data_dir).join(network))
}

/// Returns whether a plugin of a network gets its addresses from host-local.
pub fn is_used_by(plugin: &ListEntry) -> bool {
    let ipam = json::get(&plugin.document, "ipam").and_then(|ipam| json::get(ipam, "type"));
    ipam.and_then(Value::as_str) == Some(PLUGIN)
}

/// Returns each range set of a list with its own key, as in `ipam.ranges[0]`.
fn with_keys(
    sets: Vec<Vec<RangeFields>>,
    key: &'static str,
) -> impl Iterator<Item = (Vec<RangeFields>, String)> {
    sets.into_iter().enumerate().map(move |(n, set)| (set, format!("{key}[{n}]")))
}

/// Returns the directories that a network's configuration names (`dataDir`). The default is not among them.
pub fn data_dirs(list: &NetworkList) -> Vec<PathBuf> {
    let ipam = list.plugins.iter().filter_map(|plugin| json::get(&plugin.document, "ipam"));
    let dirs = ipam.filter_map(|ipam| json::get(ipam, "dataDir")?.as_str());
    dirs.filter(|dir| !dir.is_empty()).map(PathBuf::from).collect()
}

impl Config {
    /// Reads the configuration of a plugin of a network, without anything that a runtime adds. Fails as
    /// [`read`](Self::read) does.
    pub fn read_entry(list: &NetworkList, plugin: &ListEntry) -> Result<Self, Error> {
        let document = list.configuration(plugin, &Injection::default()).to_string();
        Self::read(&PluginConfig::parse(document.as_bytes())?, &CniArgs::default())
    }

    /// Returns the number of addresses of a range that pods may get, without gateways and addresses that are given on
    /// request only.
    pub fn capacity(&self, range: &Range) -> u128 {
        let edges = [range.subnet.network(), range.subnet.broadcast()];
        let reserved =
            RangeSet::gateways(&self.sets).chain(edges.into_iter().filter(|ip| range.leaves_out(*ip)));
        let reserved: BTreeSet<IpAddr> = reserved.filter(|ip| range.contains(*ip)).collect();
        range.size().saturating_sub(reserved.len() as u128)
    }

    /// Reads the configuration. Fails with code 7 and the path of a wrong key, and with code 4 for a bad `IP` in
    /// CNI_ARGS.
    pub fn read(config: &PluginConfig, args: &CniArgs) -> Result<Self, Error> {
        let document: Document = config.decode()?;
        let ipam = document.ipam.ok_or_else(no_ipam)?;
        let mut requested = Vec::new();
        if let Some(text) = args.get("IP").filter(|text| !text.is_empty()) {
            let (ip, _) = cidr::parse_ip_or_cidr(text).ok_or_else(|| {
                Error::new(
                    Code::INVALID_ENVIRONMENT,
                    format!("CNI_ARGS: IP: cannot understand ip: {}", text.escape_debug()),
                )
            })?;
            requested.push(ip);
        }
        for wanted in document.args.cni.ips.iter().chain(&document.runtime_config.ips) {
            if !requested.contains(&wanted.ip) {
                requested.push(wanted.ip);
            }
        }

        if ipam.subnet.is_none() && !ipam.exclude.is_empty() {
            return Err(Error::config("ipam.exclude: ipam.subnet is missing")
                .details("hint: each range of ipam.ranges has an exclude of its own"));
        }
        let legacy = ipam.subnet.map(|subnet| RangeFields {
            subnet: Some(subnet),
            range_start: ipam.range_start,
            range_end: ipam.range_end,
            gateway: ipam.gateway,
            exclude: ipam.exclude,
        });
        let all = with_keys(document.runtime_config.ip_ranges, "runtimeConfig.ipRanges")
            .chain(legacy.map(|range| (vec![range], "ipam.subnet".to_owned())))
            .chain(with_keys(ipam.ranges, "ipam.ranges"));
        let sets = range_sets(all, config)?;

        let path = ipam.resolv_conf.map(PathBuf::from);
        Ok(Config {
            sets,
            requested,
            routes: ipam.routes,
            resolv_conf: path,
            store: join(ipam.data_dir.as_deref(), &config.name)?,
            not_ready_when_full: ipam.not_ready_when_full,
            keep_for: ipam.keep_for,
        })
    }
}

#[cfg(test)]
mod tests;
