//! The configuration of the plugin ipvlan. Without the key `master`, the master is the interface in prevResult. Without
//! that either, it is the interface of the host's default route.

use serde::Deserialize;

use cnimble_cni::{DnsKeys, Error, PluginConfig};
use cnimble_netlink::kind::{IpvlanMode, Kind};
use cnimble_plugin::interface::shim::Shim;
use cnimble_plugin::interface::upper::Upper;
use cnimble_plugin::interface::{any_mtu, master};

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    master: String,
    mode: String,
    mtu: i64,
    link_in_container: bool,
    dns: DnsKeys,
}

/// Reads the configuration for CHECK and STATUS. Fails with code 7 and the key if a value is invalid.
pub(crate) fn read(config: &PluginConfig) -> Result<Upper, Error> {
    let keys: Keys = config.decode()?;
    let master = master::MasterSelector {
        in_pod: keys.link_in_container,
        ..master::MasterSelector::read(&keys.master)?
    };
    let mode = match keys.mode.as_str() {
        "" => Some(IpvlanMode::L2),
        wanted => IpvlanMode::ALL.into_iter().find(|mode| mode.name() == wanted),
    };
    let mode = mode.ok_or_else(|| {
        Error::config(format!("mode: unknown ipvlan mode \"{}\"", keys.mode))
            .details("expected l2, l3 or l3s")
    })?;
    let (kind, mtu) = (Kind::Ipvlan(mode), any_mtu(keys.mtu)?);
    Ok(Upper {
        shim: Shim::read(config, kind, mtu, master.in_pod)?,
        master: Some(master),
        mtu,
        // The MTU may be larger than that of the master, as with the Go plugin.
        mtu_is_free: true,
        takes_previous: config.ipam().is_none(),
        dns: keys.dns.given(),
        ..Upper::new(kind)
    })
}

/// Reads the configuration for ADD. In a chain, the master may be the previous plugin's interface, and the addresses
/// may be those in its result.
///
/// Fails as [`read`] does. Also fails with code 7 if prevResult has to name the master and has not exactly one
/// interface, or if nobody gives addresses.
pub(crate) fn read_for_add(config: &PluginConfig) -> Result<Upper, Error> {
    let mut upper = read(config)?;
    let prev = config.prev_result.as_ref();
    if let (Some(master @ master::MasterSelector { name: None, .. }), Some(prev)) = (&mut upper.master, prev)
    {
        master.name = match prev.interfaces.as_slice() {
            [only] if !only.name.is_empty() => Some(only.name.clone()),
            _ => {
                return Err(Error::config(
                    "chained master failure: prevResult lacks a single named interface",
                )
                .details("without the key master, the master is the interface of prevResult"));
            }
        };
    }
    if upper.takes_previous && prev.is_none_or(|prev| prev.ips.is_empty()) {
        return Err(Error::config("ipvlan requires an IPAM configuration")
            .details("ipam.type is missing, and no plugin in front has addresses"));
    }
    Ok(upper)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(json: &str) -> PluginConfig {
        PluginConfig::parse(json.as_bytes()).unwrap()
    }

    #[test]
    fn defaults_are_the_reference_ones() {
        let upper = read_for_add(&config(r#"{"name":"n","ipam":{"type":"static"}}"#)).unwrap();
        assert_eq!(upper.kind, Kind::Ipvlan(IpvlanMode::L2));
        assert_eq!(upper.master, Some(master::MasterSelector { name: None, in_pod: false }));
        assert_eq!((upper.mtu, upper.takes_previous), (None, false));
    }

    #[test]
    fn every_key_is_read_in_any_case() {
        let json = r#"{"name":"n","Master":"eth7","MODE":"l3s","mtu":1400,"LinkInContainer":true,
                       "ipam":{"type":"static"}}"#;
        let upper = read_for_add(&config(json)).unwrap();
        assert_eq!(upper.kind, Kind::Ipvlan(IpvlanMode::L3s));
        assert_eq!(
            upper.master,
            Some(master::MasterSelector { name: Some("eth7".to_owned()), in_pod: true })
        );
        assert_eq!(upper.mtu, Some(1400));
    }

    #[test]
    fn in_a_chain_master_and_addresses_are_those_in_front() {
        let read = |interfaces: &str, ips: &str| {
            let prev = format!(r#"{{"interfaces":{interfaces},"ips":{ips}}}"#);
            read_for_add(&config(&format!(r#"{{"cniVersion":"1.0.0","name":"n","prevResult":{prev}}}"#)))
        };
        let (one, ip) = (r#"[{"name":"eth5"}]"#, r#"[{"address":"10.0.0.2/24"}]"#);
        let upper = read(one, ip).unwrap();
        assert_eq!(upper.master.unwrap().name.as_deref(), Some("eth5"));
        assert!(upper.takes_previous);
        for interfaces in ["[]", r#"[{"name":""}]"#, r#"[{"name":"a"},{"name":"b"}]"#] {
            assert!(read(interfaces, ip).unwrap_err().msg.contains("a single named interface"));
        }
        assert_eq!(read(one, "[]").unwrap_err().msg, "ipvlan requires an IPAM configuration");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (json, msg) in [
            (r#"{"mode":"l4"}"#, "mode: unknown ipvlan mode \"l4\""),
            (r#"{"master":".."}"#, "master: invalid name \"..\""),
            ("{}", "ipvlan requires an IPAM configuration"),
        ] {
            let err = read_for_add(&config(json)).unwrap_err();
            assert_eq!((err.code.0, err.msg.as_str()), (7, msg));
        }
    }
}
