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

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cnimble::spec::fields::{self, RequestedIp};
use cnimble::spec::{CniArgs, Code, Error, PluginConfig, Route, Version, cidr};
use ipnetwork::IpNetwork;
use serde::Deserialize;

use crate::range::{Range, RangeError, RangeSet};

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

#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RangeFields {
    #[serde(deserialize_with = "fields::cidr_opt")]
    subnet: Option<IpNetwork>,
    #[serde(deserialize_with = "fields::ip_opt")]
    range_start: Option<IpAddr>,
    #[serde(deserialize_with = "fields::ip_opt")]
    range_end: Option<IpAddr>,
    #[serde(deserialize_with = "fields::ip_opt")]
    gateway: Option<IpAddr>,
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

/// Each set with the key that it came from.
fn range_sets(
    given: impl Iterator<Item = (Vec<RangeFields>, String)>,
    version: Version,
) -> Result<Vec<RangeSet>, Error> {
    let mut sets: Vec<RangeSet> = Vec::new();
    let mut keys: Vec<String> = Vec::new();
    for (fields, key) in given {
        let n = sets.len();
        let invalid = |err: RangeError, key: &str| {
            Error::config(format!("invalid range set {n}: {err}")).details(format!("see {key}"))
        };
        let mut ranges = Vec::with_capacity(fields.len());
        for (at, fields) in fields.iter().enumerate() {
            let range = fields
                .subnet
                .ok_or(RangeError::NoSubnet)
                .and_then(|subnet| Range::new(subnet, fields.range_start, fields.range_end, fields.gateway));
            let place = || match key.as_str() {
                "ipam.subnet" => key.clone(),
                _ => format!("{key}[{at}]"),
            };
            ranges.push(range.map_err(|err| invalid(err, &place()))?);
        }
        sets.push(RangeSet::new(ranges).map_err(|err| invalid(err, &key))?);
        keys.push(key);
    }
    if sets.is_empty() {
        return Err(Error::config("no IP ranges specified")
            .details("give ipam.ranges or ipam.subnet, or let the runtime pass the capability ipRanges"));
    }
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
            let key = |n: usize| keys.get(n).map_or("", String::as_str);
            return Err(Error::config(format!("range set {n} overlaps with {other}")).details(format!(
                "see {} and {}",
                key(n),
                key(other)
            )));
        }
    }
    Ok(sets)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read_with(document: &Value, args: &str) -> Result<Config, Error> {
        let mut document = document.clone();
        let object = document.as_object_mut().unwrap();
        object.entry("name").or_insert("net".into());
        object.entry("cniVersion").or_insert("1.0.0".into());
        let config = PluginConfig::parse(document.to_string().as_bytes())?;
        Config::read(&config, &CniArgs::parse(args)?)
    }

    fn read(document: &Value) -> Result<Config, Error> {
        read_with(document, "")
    }

    fn sets(document: &Value) -> Vec<String> {
        read(document).unwrap().sets.iter().map(RangeSet::to_string).collect()
    }

    fn requested(document: &Value, args: &str) -> Vec<String> {
        let config = read_with(document, args).unwrap();
        config.requested.iter().map(IpAddr::to_string).collect()
    }

    #[test]
    fn range_sets_come_in_the_order_of_the_reference() {
        let document = json!({
            "ipam": {
                "ranges": [[{ "subnet": "10.3.0.0/30" }, { "subnet": "10.4.0.0/30" }]],
                "subnet": "10.2.0.0/24", "rangeStart": "10.2.0.9", "rangeEnd": "10.2.0.9",
            },
            "runtimeConfig": { "IPRanges": [[{ "Subnet": "10.1.0.0/30", "RangeStart": "10.1.0.2" }]] },
        });
        assert_eq!(
            sets(&document),
            ["10.1.0.2-10.1.0.2", "10.2.0.9-10.2.0.9", "10.3.0.1-10.3.0.2,10.4.0.1-10.4.0.2"]
        );
        // Without a subnet the oldest form isn't there at all, whatever else it says.
        let document =
            json!({ "ipam": { "rangeStart": "1.1.1.1", "subnet": "", "ranges": [[{ "subnet": "::/0" }]] } });
        assert_eq!(sets(&document).len(), 1);
    }

    #[test]
    fn requested_addresses_come_in_order_and_once() {
        let document = json!({
            "ipam": { "subnet": "10.0.0.0/24" },
            "args": { "cni": { "ips": ["10.0.0.6", "10.0.0.5/24"] } },
            "runtimeConfig": { "ips": ["fd00::1/64", "10.0.0.6"] },
        });
        assert_eq!(requested(&document, "IP=10.0.0.5/16"), ["10.0.0.5", "10.0.0.6", "fd00::1"]);
        assert_eq!(requested(&document, "IP="), ["10.0.0.6", "10.0.0.5", "fd00::1"]);
        let document =
            json!({ "ipam": { "subnet": "10.0.0.0/24" }, "args": null, "runtimeConfig": { "ips": null } });
        assert!(requested(&document, "").is_empty());
        let err = read_with(&document, "IP=10.0.0").unwrap_err();
        assert_eq!(
            (err.code, err.msg.as_str()),
            (Code::INVALID_ENVIRONMENT, "CNI_ARGS: IP: cannot understand ip: 10.0.0")
        );
    }

    #[test]
    fn everything_else_is_read_and_defaulted() {
        let config = read(&json!({ "ipam": {
            "SUBNET": "fd00::/64", "dataDir": "/tmp/x", "resolvConf": "/etc/resolv.conf",
            "routes": [{ "dst": "::/0", "gw": "fd00::9", "mtu": 1400, "advmss": 1300, "priority": 5, "table": 100, "scope": 0 }],
        } }))
        .unwrap();
        assert_eq!(config.store, Path::new("/tmp/x/net"));
        assert_eq!(config.resolv_conf.as_deref(), Some(Path::new("/etc/resolv.conf")));
        let route = &config.routes[0];
        assert_eq!(
            (route.mtu, route.advmss, route.priority, route.table),
            (Some(1400), Some(1300), Some(5), Some(100))
        );
        let config = read(
            &json!({ "ipam": { "subnet": "fd00::/64", "dataDir": "", "resolvConf": "", "routes": null } }),
        )
        .unwrap();
        assert_eq!(config.store, Path::new("/var/lib/cni/networks/net"));
        assert_eq!(config.resolv_conf, None);
    }

    #[test]
    fn says_what_is_wrong_and_where() {
        let ranges = |ranges: Value| json!({ "ipam": { "ranges": ranges } });
        for (document, msg, details) in [
            (json!({}), "IPAM config missing 'ipam' key", ""),
            (json!({ "ipam": null }), "IPAM config missing 'ipam' key", ""),
            (json!({ "ipam": {} }), "no IP ranges specified", "give ipam.ranges"),
            (ranges(json!([])), "no IP ranges specified", "give ipam.ranges"),
            (ranges(json!([[]])), "invalid range set 0: empty range set", "see ipam.ranges[0]"),
            (ranges(json!([[{}]])), "invalid range set 0: subnet is missing", "see ipam.ranges[0][0]"),
            (
                ranges(json!([[{ "subnet": "10.0.0.0/24" }, { "subnet": "10.0.0" }]])),
                "ipam.ranges[0][1].subnet: invalid CIDR address: 10.0.0",
                "",
            ),
            (
                ranges(json!([[{ "subnet": "10.0.0.0/24", "gateway": "x" }]])),
                "ipam.ranges[0][0].gateway: invalid IP address: x",
                "",
            ),
            (
                ranges(json!([{ "subnet": "10.0.0.0/24" }])),
                "ipam.ranges[0]: invalid type: object, expected a list",
                "",
            ),
            (
                ranges(
                    json!([[{ "subnet": "10.0.0.0/24" }], [{ "subnet": "10.1.0.0/16" }, { "subnet": "10.0.0.1/24" }]]),
                ),
                "invalid range set 1: Network has host bits set. For a subnet mask of length 24 the network address is 10.0.0.0",
                "see ipam.ranges[1][1]",
            ),
            (
                ranges(json!([[{ "subnet": "10.0.0.0/24" }, { "subnet": "fd00::/64" }]])),
                "invalid range set 0: mixed address families",
                "see ipam.ranges[0]",
            ),
            (
                json!({
                    "ipam": { "subnet": "10.0.0.0/24", "ranges": [[{ "subnet": "fd00::/64" }], [{ "subnet": "10.0.0.0/25" }]] },
                }),
                "range set 0 overlaps with 2",
                "see ipam.subnet and ipam.ranges[1]",
            ),
            (
                json!({ "ipam": { "subnet": "10.0.0.0/31" } }),
                "invalid range set 0: Network 10.0.0.0/31 too small to allocate from",
                "see ipam.subnet",
            ),
            (
                json!({ "ipam": { "subnet": "10.0.0.0/24" }, "runtimeConfig": { "ipRanges": [[{ "subnet": "fd00::/127" }]] } }),
                "invalid range set 0: Network fd00::/127 too small to allocate from",
                "see runtimeConfig.ipRanges[0][0]",
            ),
            (
                json!({ "ipam": { "subnet": "10.0.0.0/24" }, "args": { "cni": { "ips": [""] } } }),
                "args.cni.ips[0]: invalid IP address: ",
                "",
            ),
            (
                json!({ "ipam": { "subnet": "10.0.0.0/24" }, "runtimeConfig": { "ips": ["10.0.0.1/99"] } }),
                "runtimeConfig.ips[0]: invalid IP address: 10.0.0.1/99",
                "",
            ),
            (
                json!({ "ipam": { "subnet": "10.0.0.0/24", "dataDir": "/a\u{0}b" } }),
                "ipam.dataDir: a path can't hold a NUL character",
                "",
            ),
            (
                json!({ "ipam": { "subnet": "10.0.0.0/24", "routes": [{ "dst": "x" }] } }),
                "ipam.routes[0].dst: invalid CIDR address: x",
                "",
            ),
            (
                json!({ "cniVersion": "0.2.0", "ipam": { "ranges": [[{ "subnet": "10.0.0.0/24" }], [{ "subnet": "10.0.1.0/24" }]] } }),
                "CNI version 0.2.0 does not support more than 1 address per family",
                "",
            ),
        ] {
            let err = read(&document).unwrap_err();
            assert_eq!((err.code, err.msg.as_str()), (Code::INVALID_CONFIG, msg), "{document}");
            assert!(
                err.details.starts_with(details) && err.details.is_empty() == details.is_empty(),
                "{}",
                err.details
            );
        }
        let two = json!({ "cniVersion": "0.2.0", "ipam": { "ranges": [[{ "subnet": "10.0.0.0/24" }], [{ "subnet": "fd00::/64" }]] } });
        assert_eq!(sets(&two).len(), 2);
    }

    #[test]
    fn del_needs_nothing_but_the_store() {
        let config = |text: &Value| PluginConfig::parse(text.to_string().as_bytes()).unwrap();
        let bad = json!({ "cniVersion": "1.0.0", "name": "n", "ipam": { "dataDir": "/d", "ranges": 5, "subnet": [] }, "args": 7 });
        assert_eq!(store_path(&config(&bad)).unwrap(), Path::new("/d/n"));
        let err = store_path(&config(&json!({ "name": "n" }))).unwrap_err();
        assert_eq!(err.msg, "IPAM config missing 'ipam' key");
    }
}
