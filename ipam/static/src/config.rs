//! The addresses, by source.
//!
//! | source | |
//! |---|---|
//! | `ipam.addresses[{address, gateway}]` | the configuration's own |
//! | CNI_ARGS `IP=CIDR,CIDR` | come behind those |
//! | CNI_ARGS `GATEWAY=ADDRESS,ADDRESS` | each for the addresses of `IP` with a network that contains it |
//! | `args.cni.ips` | replaces all of the above, gateways included |
//! | `runtimeConfig.ips` (capability `ips`) | replaces `args.cni.ips`, too |
//!
//! A replaced `address` of the configuration may be a placeholder, so it is not parsed. CNI_ARGS have to be valid in
//! any case.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::Deserialize;

use cnimble_cni::{CniArgs, Code, Dns, Error, IpConfig, PluginConfig, Route, Version, cidr, fields};

#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) ips: Vec<IpConfig>,
    pub(crate) routes: Vec<Route>,
    pub(crate) dns: Dns,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Document {
    ipam: Option<Ipam>,
    args: Args,
    runtime_config: Ips,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Ipam {
    addresses: Vec<Address>,
    routes: Vec<Route>,
    dns: Dns,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Address {
    address: String,
    #[serde(deserialize_with = "fields::ip_opt")]
    gateway: Option<IpAddr>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Args {
    cni: Ips,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Ips {
    #[serde(deserialize_with = "fields::cidrs")]
    ips: Vec<IpNetwork>,
}

impl Config {
    /// Reads the configuration. Fails with code 7 and the path to the bad value, or with code 4 for CNI_ARGS. The
    /// addresses may be empty.
    pub(crate) fn read(config: &PluginConfig, args: &CniArgs) -> Result<Self, Error> {
        let document: Document = config.decode()?;
        let ipam = document.ipam.ok_or_else(|| Error::config("IPAM config missing 'ipam' key"))?;
        let asked = asked_for(args)?;
        let named = [document.runtime_config.ips, document.args.cni.ips];
        let ips = match named.into_iter().find(|ips| !ips.is_empty()) {
            Some(ips) => ips.into_iter().map(|address| IpConfig::new(address, None)).collect(),
            None => {
                let mut ips = configured(&ipam.addresses)?;
                ips.extend(asked);
                ips
            }
        };
        one_a_family(&ips, config.version)?;
        Ok(Config { ips, routes: ipam.routes, dns: ipam.dns })
    }
}

/// Parses `ipam.addresses`. Fails with code 7 for an address without a prefix length.
fn configured(addresses: &[Address]) -> Result<Vec<IpConfig>, Error> {
    let mut ips = Vec::with_capacity(addresses.len());
    for (n, Address { address, gateway }) in addresses.iter().enumerate() {
        let net = cidr::parse_cidr(address).ok_or_else(|| {
            Error::config(format!(
                "ipam.addresses[{n}].address: invalid CIDR address: {}",
                address.escape_debug()
            ))
        })?;
        ips.push(IpConfig::new(net, *gateway));
    }
    Ok(ips)
}

/// Parses `IP` and `GATEWAY` of CNI_ARGS. A gateway that is in the network of none of these addresses is only logged.
/// Fails with code 4.
fn asked_for(args: &CniArgs) -> Result<Vec<IpConfig>, Error> {
    let mut ips = Vec::new();
    for item in items_of(args, "IP") {
        let net = cidr::parse_cidr(&item).ok_or_else(|| {
            invalid_item("IP", "CIDR address", &item)
                .details("an address needs its prefix length, like 10.1.2.3/24")
        })?;
        ips.push(IpConfig::new(net, None));
    }
    for item in items_of(args, "GATEWAY") {
        let gateway = cidr::parse_ip(&item).ok_or_else(|| invalid_item("GATEWAY", "IP address", &item))?;
        let mut used = false;
        for ip in ips.iter_mut().filter(|ip| ip.address.contains(gateway)) {
            ip.gateway = Some(gateway);
            used = true;
        }
        if !used {
            log::info!("CNI_ARGS: GATEWAY: {gateway} is in the network of no address of IP");
        }
    }
    Ok(ips)
}

/// Returns the items of a key of CNI_ARGS, which commas separate. There are none if the key is missing or empty.
fn items_of(args: &CniArgs, key: &str) -> Vec<String> {
    let text = args.get(key).unwrap_or_default().trim();
    if text.is_empty() {
        return Vec::new();
    }
    text.split(',').map(|item| item.trim().to_owned()).collect()
}

/// Returns the error for an item of a key of CNI_ARGS that is no `what`, with code 4.
fn invalid_item(key: &str, what: &str, item: &str) -> Error {
    let msg = format!("CNI_ARGS: {key}: invalid {what}: {}", item.escape_debug());
    Error::new(Code::INVALID_ENVIRONMENT, msg)
}

/// Fails with code 7 for two addresses of one family in a version before 0.3.0, whose results have no room for them.
fn one_a_family(ips: &[IpConfig], version: Version) -> Result<(), Error> {
    let ipv4 = ips.iter().filter(|ip| ip.address.is_ipv4()).count();
    if version < Version::V0_3_0 && (ipv4 > 1 || ips.len() - ipv4 > 1) {
        return Err(Error::config(format!(
            "CNI version {version} does not support more than 1 address per family"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(document: &Value, args: &str) -> Result<Config, Error> {
        let mut document = document.clone();
        document["name"] = "net".into();
        if document.get("cniVersion").is_none() {
            document["cniVersion"] = "1.1.0".into();
        }
        let config = PluginConfig::parse(document.to_string().as_bytes())?;
        Config::read(&config, &CniArgs::parse(args)?)
    }

    fn ips(document: &Value, args: &str) -> Vec<String> {
        let text = |ip: &IpConfig| match ip.gateway {
            Some(gateway) => format!("{} via {gateway}", ip.address),
            None => ip.address.to_string(),
        };
        read(document, args).unwrap().ips.iter().map(text).collect()
    }

    fn document() -> Value {
        json!({ "ipam": { "addresses": [
            { "address": "10.1.0.2/16", "gateway": "10.1.0.1" }, { "address": "fd00::2/64" },
        ] } })
    }

    #[test]
    fn later_sources_replace_earlier_ones_but_cni_args_adds() {
        let own = ["10.1.0.2/16 via 10.1.0.1", "fd00::2/64"];
        let mut config = document();
        assert_eq!(ips(&config, ""), own);
        assert_eq!(ips(&config, "IP=;GATEWAY="), own);
        let args = "IP=10.2.0.2/16, fd01::2/64;GATEWAY= fd01::1,10.2.0.1,10.9.9.9";
        let both = [own.as_slice(), &["10.2.0.2/16 via 10.2.0.1", "fd01::2/64 via fd01::1"]].concat();
        assert_eq!(ips(&config, args), both);
        // As in the reference, GATEWAY belongs to IP alone.
        assert_eq!(ips(&config, "GATEWAY=fd00::1"), own);
        config["args"] = json!({ "cni": { "ips": ["10.3.0.2/16"] } });
        assert_eq!(ips(&config, args), ["10.3.0.2/16"]);
        config["RuntimeConfig"] = json!({ "IPs": ["10.4.0.2/16", "fd04::2/64"] });
        assert_eq!(ips(&config, args), ["10.4.0.2/16", "fd04::2/64"]);
        config["runtimeConfig"] = json!({ "ips": [] });
        assert_eq!(ips(&config, ""), ["10.3.0.2/16"]);
    }

    #[test]
    fn a_replaced_address_may_be_anything() {
        let config = json!({ "ipam": { "addresses": [{ "address": "tbd" }] },
                             "runtimeConfig": { "ips": ["10.4.0.2/16"] } });
        assert_eq!(ips(&config, ""), ["10.4.0.2/16"]);
    }

    #[test]
    fn routes_and_dns_are_copied_and_no_key_is_required() {
        let config = read(
            &json!({ "ipam": {
                "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0", "gw": "fd00::9", "priority": 5 }],
                "dns": { "nameservers": ["10.0.0.10"], "search": ["x"] },
            } }),
            "",
        )
        .unwrap();
        assert_eq!((config.ips.len(), config.routes.len()), (0, 2));
        assert_eq!(config.routes[1].priority, Some(5));
        assert_eq!(config.dns.nameservers, ["10.0.0.10"]);
        assert!(read(&json!({ "ipam": { "addresses": null, "routes": null, "dns": null } }), "").is_ok());
    }

    #[test]
    fn says_what_is_wrong_and_where() {
        let addresses = |list: Value| json!({ "ipam": { "addresses": list } });
        for (document, args, code, msg) in [
            (json!({}), "", 7, "IPAM config missing 'ipam' key"),
            (addresses(json!([{}])), "", 7, "ipam.addresses[0].address: invalid CIDR address: "),
            (
                addresses(json!([{ "address": "10.0.0.1/8" }, { "address": "10.0.0.1" }])),
                "",
                7,
                "ipam.addresses[1].address: invalid CIDR address: 10.0.0.1",
            ),
            (
                addresses(json!([{ "address": "10.0.0.1/8", "gateway": "10.0.0" }])),
                "",
                7,
                "ipam.addresses[0].gateway: invalid IP address: 10.0.0",
            ),
            (
                addresses(json!({ "address": "10.0.0.1/8" })),
                "",
                7,
                "ipam.addresses: invalid type: object, expected a list",
            ),
            (
                json!({ "ipam": {}, "args": { "cni": { "ips": ["10.0.0.1"] } } }),
                "",
                7,
                "args.cni.ips[0]: invalid CIDR address: 10.0.0.1",
            ),
            (
                json!({ "ipam": {}, "runtimeConfig": { "ips": ["10.0.0.1/8", "x"] } }),
                "",
                7,
                "runtimeConfig.ips[1]: invalid CIDR address: x",
            ),
            (document(), "IP=10.0.0.1", 4, "CNI_ARGS: IP: invalid CIDR address: 10.0.0.1"),
            (document(), "IP=10.0.0.1/8,", 4, "CNI_ARGS: IP: invalid CIDR address: "),
            (document(), "GATEWAY=10.0.0.1/8", 4, "CNI_ARGS: GATEWAY: invalid IP address: 10.0.0.1/8"),
            (
                json!({ "cniVersion": "0.2.0",
                        "ipam": { "addresses": [{ "address": "10.0.0.1/8" }, { "address": "10.0.0.2/8" }] } }),
                "",
                7,
                "CNI version 0.2.0 does not support more than 1 address per family",
            ),
        ] {
            let err = read(&document, args).unwrap_err();
            assert_eq!((err.code.0, err.msg.as_str()), (code, msg), "{document}");
        }
        let mut one_each = document();
        one_each["cniVersion"] = "0.1.0".into();
        assert_eq!(ips(&one_each, "").len(), 2);
        assert!(read(&one_each, "IP=fd00::3/64").is_err());
    }
}
