//! The configuration: what of it concerns host-local, validated.
//!
//! | key | meaning |
//! |---|---|
//! | `ipam.subnet`, `rangeStart`, `rangeEnd`, `gateway` | one range, the oldest form |
//! | `ipam.ranges` | range sets; an attachment gets one address of each |
//! | `runtimeConfig.ipRanges` | range sets of the runtime (capability `ipRanges`) |
//! | CNI_ARGS `IP`, `args.cni.ips`, `runtimeConfig.ips` | addresses that are asked for |
//! | `ipam.routes` | copied to the result |
//! | `ipam.resolvConf` | a file that becomes the result's `dns` |
//! | `ipam.dataDir` | where the networks' directories are |
//!
//! Range sets count from 0 in the order runtime's, oldest form, `ranges`: the number is
//! part of a file's name in the store.

mod ranges;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnetwork::IpNetwork;
use serde::Deserialize;

use cnimble_cni::fields::{self, RequestedIp};
use cnimble_cni::{CniArgs, Code, Error, PluginConfig, Route, cidr};

use crate::range::RangeSet;
use ranges::{RangeFields, range_sets};

const DATA_DIR: &str = "/var/lib/cni/networks";

/// What ADD, CHECK and STATUS need to know.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) sets: Vec<RangeSet>,
    /// Without repetitions, the most important first.
    pub(crate) requested: Vec<IpAddr>,
    pub(crate) routes: Vec<Route>,
    pub(crate) resolv_conf: Option<PathBuf>,
    /// The network's directory.
    pub(crate) store: PathBuf,
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
    ranges: Vec<Vec<RangeFields>>,
    routes: Vec<Route>,
    #[serde(deserialize_with = "fields::text_opt")]
    data_dir: Option<String>,
    #[serde(deserialize_with = "fields::text_opt")]
    resolv_conf: Option<String>,
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

/// All that DEL and GC need. They must work when the rest of the configuration has gone bad.
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
}

fn no_ipam() -> Error {
    Error::config("IPAM config missing 'ipam' key")
}

/// The directory of the network in `config`.
///
/// # Errors
/// Code 7 if there is no `ipam`, or `dataDir` can't be a path.
pub(crate) fn store_path(config: &PluginConfig) -> Result<PathBuf, Error> {
    let ipam = config.decode::<StoreOnly>()?.ipam.ok_or_else(no_ipam)?;
    join(ipam.data_dir.as_deref(), &config.name)
}

/// The skeleton has made sure that `network` is a plain file name.
fn join(data_dir: Option<&str>, network: &str) -> Result<PathBuf, Error> {
    let data_dir = data_dir.unwrap_or(DATA_DIR);
    if data_dir.contains('\0') {
        return Err(Error::config("ipam.dataDir: a path can't hold a NUL character"));
    }
    Ok(Path::new(data_dir).join(network))
}

impl Config {
    /// Reads and validates the configuration.
    ///
    /// # Errors
    /// Code 7 with the path of what is wrong, 4 for a bad `IP` in CNI_ARGS.
    pub(crate) fn read(config: &PluginConfig, args: &CniArgs) -> Result<Self, Error> {
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

        let legacy = ipam.subnet.map(|subnet| RangeFields {
            subnet: Some(subnet),
            range_start: ipam.range_start,
            range_end: ipam.range_end,
            gateway: ipam.gateway,
        });
        let named = |sets: Vec<Vec<RangeFields>>, key: &'static str| {
            let sets = sets.into_iter().enumerate();
            sets.map(move |(n, set)| (set, format!("{key}[{n}]")))
        };
        let all = named(document.runtime_config.ip_ranges, "runtimeConfig.ipRanges")
            .chain(legacy.map(|range| (vec![range], "ipam.subnet".to_owned())))
            .chain(named(ipam.ranges, "ipam.ranges"));
        let sets = range_sets(all, config.version)?;

        let path = ipam.resolv_conf.map(PathBuf::from);
        Ok(Config {
            sets,
            requested,
            routes: ipam.routes,
            resolv_conf: path,
            store: join(ipam.data_dir.as_deref(), &config.name)?,
        })
    }
}

#[cfg(test)]
mod tests;
