//! The configuration. For each setting `args.cni` precedes all other sources. For the MAC follow `runtimeConfig`, `MAC`
//! of CNI_ARGS, and the key itself.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use cnimble_cni::{Code, Error, PluginConfig};
use cnimble_plugin::Call;
use cnimble_plugin::interface::mac;

use crate::settings::Settings;

const DEFAULT_DATA_DIR: &str = "/run/cni/tuning";
/// The smallest MTU in bytes (ETH_MIN_MTU). The kernel checks the maximum of the link.
const MIN_MTU: u32 = 68;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    sysctl: BTreeMap<String, String>,
    mac: String,
    promisc: bool,
    mtu: u32,
    allmulti: Option<bool>,
    tx_q_len: Option<u32>,
    runtime_config: RuntimeKeys,
    args: Args,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RuntimeKeys {
    mac: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Args {
    cni: Overrides,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Overrides {
    sysctl: BTreeMap<String, String>,
    mac: Option<String>,
    promisc: Option<bool>,
    mtu: Option<u32>,
    allmulti: Option<bool>,
    tx_q_len: Option<u32>,
}

/// A sysctl that ADD sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sysctl {
    /// The key as the configuration has it.
    pub(crate) key: String,
    /// The path relative to /proc/sys, with the name of the interface.
    pub(crate) path: String,
    pub(crate) value: String,
}

#[derive(Debug)]
pub(crate) struct Config {
    /// The directory of the backups (`dataDir`).
    pub(crate) data_dir: PathBuf,
    pub(crate) sysctls: Vec<Sysctl>,
    pub(crate) settings: Settings,
}

/// Returns the directory of the backups, or its default. DEL and GC need no other key. Fails with code 7 if it is no
/// string.
pub(crate) fn data_dir(config: &PluginConfig) -> Result<PathBuf, Error> {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Key {
        data_dir: String,
    }
    let Key { data_dir } = config.decode()?;
    Ok(if data_dir.is_empty() { DEFAULT_DATA_DIR.into() } else { data_dir.into() })
}

impl Config {
    /// Reads the configuration. `ifname` replaces the first `IFNAME` in a sysctl. Fails with code 7 and the path of an
    /// invalid key, or with code 4 for CNI_ARGS. The allowlist is not asked.
    pub(crate) fn read(call: &Call, ifname: &str) -> Result<Self, Error> {
        let data_dir = data_dir(&call.config)?;
        let keys: Keys = call.config.decode()?;
        if let Some(key) = repeated_key(&call.stdin) {
            return Err(Error::config(format!("sysctl: {key} is given twice"))
                .details("duplicated sysctl keys are not allowed"));
        }
        let from_args = call.args()?.get("MAC").unwrap_or_default().to_owned();
        let args = keys.args.cni;
        let mac = match args.mac {
            Some(text) => mac::read(&text, "args.cni.mac", Code::INVALID_CONFIG)?,
            None if !keys.runtime_config.mac.is_empty() => {
                mac::read(&keys.runtime_config.mac, "runtimeConfig.mac", Code::INVALID_CONFIG)?
            }
            None if !from_args.is_empty() => {
                mac::read(&from_args, "CNI_ARGS: MAC", Code::INVALID_ENVIRONMENT)?
            }
            None => mac::read(&keys.mac, "mac", Code::INVALID_CONFIG)?,
        };
        let mtu = Some(args.mtu.unwrap_or(keys.mtu)).filter(|mtu| *mtu != 0);
        if let Some(mtu) = mtu.filter(|mtu| *mtu < MIN_MTU) {
            return Err(Error::config(format!("mtu: {mtu} is less than {MIN_MTU} bytes")));
        }
        Ok(Config {
            data_dir,
            sysctls: sysctls(keys.sysctl, args.sysctl, ifname)?,
            settings: Settings {
                mac,
                // The key only switches the mode on. False leaves it unchanged.
                promisc: Some(args.promisc.unwrap_or(keys.promisc)).filter(|promisc| *promisc),
                mtu,
                allmulti: args.allmulti.or(keys.allmulti),
                txqlen: args.tx_q_len.or(keys.tx_q_len),
            },
        })
    }
}

/// Returns the configured sysctls in the order of their keys, then those of `args.cni`, which replace them. Fails with
/// code 7 if two configured keys are the same sysctl.
fn sysctls(
    configured: BTreeMap<String, String>,
    overrides: BTreeMap<String, String>,
    ifname: &str,
) -> Result<Vec<Sysctl>, Error> {
    let mut sysctls: Vec<Sysctl> = Vec::new();
    for (key, value) in configured {
        let path = path(&key, ifname)?;
        if let Some(other) = sysctls.iter().find(|other| other.path == path) {
            return Err(Error::config(format!("sysctl: {} and {key} are the same key", other.key))
                .details("duplicated sysctl keys are not allowed"));
        }
        sysctls.push(Sysctl { key, path, value });
    }
    for (key, value) in overrides {
        let path = path(&key, ifname)?;
        sysctls.retain(|other| other.path != path);
        sysctls.push(Sysctl { key, path, value });
    }
    Ok(sysctls)
}

/// Returns the path of a key below /proc/sys. As with sysctl(8), the first separator decides: after a slash, dots are
/// parts of names (`net/ipv4/conf/eth0.5/forwarding`). Fails with code 7 if the path is not below `net/`.
fn path(key: &str, ifname: &str) -> Result<String, Error> {
    let written = key.strip_prefix('/').unwrap_or(key);
    let path = match written.find(['.', '/']).and_then(|at| written.get(at..)) {
        Some(rest) if rest.starts_with('/') => written.to_owned(),
        _ => written.replace('.', "/"),
    };
    let path = path.replacen("IFNAME", ifname, 1);
    let broken = path.split('/').any(|part| matches!(part, "" | "." | "..")) || path.contains('\0');
    if broken || !path.starts_with("net/") {
        return Err(Error::config(format!("sysctl: invalid net sysctl key: {key:?}"))
            .details("only keys below net can be set, like net.core.somaxconn"));
    }
    Ok(path)
}

/// Returns a key that `sysctl` has twice. The parser of the configuration would silently drop one of the values. `None`
/// if there is none, or if the document is invalid.
fn repeated_key(document: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Document {
        #[serde(default)]
        sysctl: Repeated,
    }
    #[derive(Default)]
    struct Repeated(Option<String>);
    impl<'de> Deserialize<'de> for Repeated {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Keys;
            impl<'de> Visitor<'de> for Keys {
                type Value = Repeated;
                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("an object")
                }
                fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Repeated, A::Error> {
                    let (mut seen, mut repeated) = (BTreeSet::new(), None);
                    while let Some((key, _)) = map.next_entry::<String, IgnoredAny>()? {
                        if seen.contains(&key) {
                            repeated.get_or_insert(key);
                        } else {
                            seen.insert(key);
                        }
                    }
                    Ok(Repeated(repeated))
                }
            }
            deserializer.deserialize_map(Keys)
        }
    }
    // Errors in the document have been reported by its first reader.
    serde_json::from_slice::<Document>(document).ok()?.sysctl.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_their_files() {
        for (key, file) in [
            ("net.core.somaxconn", "net/core/somaxconn"),
            ("net/core/somaxconn", "net/core/somaxconn"),
            ("/net/core/somaxconn", "net/core/somaxconn"),
            ("net.ipv4.conf.IFNAME.rp_filter", "net/ipv4/conf/eth0.5/rp_filter"),
            ("net/ipv4/conf/IFNAME/rp_filter", "net/ipv4/conf/eth0.5/rp_filter"),
            ("net/ipv4/conf/a.b/rp_filter", "net/ipv4/conf/a.b/rp_filter"),
            ("net.ipv4/conf.a/rp_filter", "net/ipv4/conf/a/rp_filter"),
        ] {
            assert_eq!(path(key, "eth0.5").unwrap(), file, "{key}");
        }
        for key in [
            "",
            "net",
            "net.",
            "kernel.hostname",
            "fs/nr_open",
            "netx.core",
            "net.core/../../kernel/x",
            "net/../kernel/x",
            "net//core",
            "net/./core",
            "//net/core/x",
            "net.core.a\0",
        ] {
            let err = path(key, "eth0").unwrap_err();
            assert_eq!(err.code, Code::INVALID_CONFIG, "{key:?}");
            assert!(err.msg.contains("invalid net sysctl key"), "{err}");
        }
    }

    #[test]
    fn one_key_in_two_spellings() {
        let map = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect::<BTreeMap<_, _>>()
        };
        sysctls(map(&[("net.a", "1"), ("net/a", "2")]), map(&[]), "x").unwrap_err();
        let found = sysctls(map(&[("net.a", "1"), ("net.b", "2")]), map(&[("net/a", "3")]), "x").unwrap();
        let found: Vec<_> = found.iter().map(|s| (s.path.as_str(), s.value.as_str())).collect();
        assert_eq!(found, [("net/b", "2"), ("net/a", "3")]);
        assert_eq!(repeated_key(br#"{"sysctl":{"a":"1","b":"2","a":"3"}}"#).as_deref(), Some("a"));
        for document in ["{}", "x", r#"{"sysctl":{"a":"1"}}"#, r#"{"sysctl":null}"#, r#"{"sysctl":[]}"#] {
            assert_eq!(repeated_key(document.as_bytes()), None, "{document}");
        }
    }
}
