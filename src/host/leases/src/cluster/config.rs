//! Reads and validates the configuration of cluster-local: host-local's keys for ranges, [`pools`], and where the store
//! is.

pub mod pools;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use cnimble_cni::{CniArgs, Error, PluginConfig, fields, names};

use super::{address, number};
use crate::config::Config;
use pools::Pools;

/// The prefix of all keys unless `ipam.etcd.prefix` says otherwise.
const PREFIX: &str = "/cnimble/ipam";
/// The length of an IPv4 block's prefix unless `ipam.blockSize` says otherwise.
const BLOCK_SIZE: u8 = 26;
/// The default of `offline`: a node gives addresses for this time without the store, in seconds.
const OFFLINE: u32 = 3600;

/// The configuration of a cluster's network on this node.
#[derive(Debug)]
pub struct Cluster {
    pub network: String,
    /// The keys that cluster-local shares with host-local. The range sets of `pools` come last.
    pub base: Config,
    pub pools: Pools,
    /// The number of bits of an address that count inside a block. A block has two to the power of this many addresses.
    pub host_bits: u32,
    /// The name of this node.
    pub node: String,
    /// The time for which the node gives addresses without the store, after it has confirmed the node's share.
    pub offline: Duration,
    /// Whether pods reach all others by their gateway (`routed`).
    pub routed: bool,
    pub store: Store,
}

/// The store of the cluster's blocks.
#[derive(Debug)]
pub enum Store {
    Etcd(Etcd),
    Kubernetes(Kubernetes),
}

/// An API server with the custom resources of cnimble.
#[derive(Debug)]
pub struct Kubernetes {
    pub kubeconfig: PathBuf,
}

/// How etcd is reached.
#[derive(Debug, Clone)]
pub struct Etcd {
    /// The URLs of members.
    pub endpoints: Vec<String>,
    /// The file with the certificate of the authority that has signed those of the members. `https` needs it.
    pub ca: Option<PathBuf>,
    /// The files with the client's certificate and key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The prefix of all keys in etcd, without a slash at its end.
    pub prefix: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Document {
    ipam: Ipam,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Ipam {
    block_size: Option<u8>,
    #[serde(deserialize_with = "fields::text_opt")]
    node_name: Option<String>,
    routed: bool,
    etcd: EtcdFields,
    kubernetes: KubernetesFields,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct KubernetesFields {
    #[serde(deserialize_with = "fields::text_opt")]
    kubeconfig: Option<String>,
    offline: Option<u32>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct EtcdFields {
    endpoints: Vec<String>,
    #[serde(deserialize_with = "fields::text_opt")]
    ca: Option<String>,
    #[serde(deserialize_with = "fields::text_opt")]
    certificate: Option<String>,
    #[serde(deserialize_with = "fields::text_opt")]
    key: Option<String>,
    #[serde(deserialize_with = "fields::text_opt")]
    prefix: Option<String>,
    offline: Option<u32>,
}

impl Cluster {
    /// Reads the configuration. Fails with code 7 for a wrong key, and with code 4 for a bad `IP` in CNI_ARGS.
    pub fn read(config: &PluginConfig, args: &CniArgs) -> Result<Self, Error> {
        let mut base = Config::read(config, args)?;
        let pools = Pools::read(config, args, &mut base)?;
        let ipam = config.decode::<Document>()?.ipam;
        let size = ipam.block_size.unwrap_or(BLOCK_SIZE);
        if !(20..=29).contains(&size) {
            return Err(Error::config(format!("ipam.blockSize: {size} is not between 20 and 29")));
        }
        let host_bits = u32::from(32 - size);
        let node = ipam.node_name.map_or_else(host_name, Ok)?;
        if !names::is_identifier(&node) {
            return Err(Error::config(format!("ipam.nodeName: invalid name \"{}\"", node.escape_default()))
                .details("it must start with a letter or digit and hold only letters, digits, _ . -"));
        }
        let offline = ipam.etcd.offline.or(ipam.kubernetes.offline).unwrap_or(OFFLINE);
        if offline == 0 {
            return Err(Error::config("offline: 0 seconds leave no time to give an address"));
        }
        let network = config.name.clone();
        let store = match ipam.kubernetes.kubeconfig {
            Some(_) if !ipam.etcd.endpoints.is_empty() => {
                return Err(Error::config("ipam.etcd and ipam.kubernetes: choose one"));
            }
            Some(kubeconfig) => Store::Kubernetes(Kubernetes::validated(kubeconfig, &network, &node)?),
            None => Store::Etcd(ipam.etcd.validated()?),
        };
        Ok(Cluster {
            network,
            base,
            pools,
            host_bits,
            node,
            offline: Duration::from_secs(offline.into()),
            routed: ipam.routed,
            store,
        })
    }

    /// Returns `offline` in milliseconds.
    pub fn offline_ms(&self) -> u64 {
        u64::try_from(self.offline.as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the number of addresses at the end of each block that do not come with the block. Nodes claim them one
    /// by one if no block is free.
    pub fn tail(&self) -> u128 {
        1 << (self.host_bits.saturating_sub(3))
    }

    /// Returns half the number of a block's addresses. If fewer are free, it is time to claim another block.
    pub fn half(&self) -> usize {
        1 << (self.host_bits - 1)
    }

    /// Returns the first address of the block that `ip` is in.
    pub fn block_of(&self, ip: IpAddr) -> IpAddr {
        address(number(ip) >> self.host_bits << self.host_bits, ip)
    }

    /// Returns the last address before the [tail](Self::tail) of the block at `first`.
    pub fn last_of(&self, first: IpAddr) -> IpAddr {
        address(number(first) + (1 << self.host_bits) - 1 - self.tail(), first)
    }

    /// Returns whether `ip` is in the [tail](Self::tail) of its block.
    pub fn is_in_tail(&self, ip: IpAddr) -> bool {
        ip > self.last_of(self.block_of(ip))
    }
}

impl Kubernetes {
    fn validated(kubeconfig: String, network: &str, node: &str) -> Result<Self, Error> {
        for (key, name) in [("name", network), ("ipam.nodeName", node)] {
            // A label's value has 63 characters.
            if name.len() > 63 || names::subdomain_problem(name).is_some() {
                return Err(Error::config(format!(
                    "{key}: \"{}\" can't name an API object",
                    name.escape_default()
                ))
                .details("with ipam.kubernetes it may hold lower-case letters, digits, - and ."));
            }
        }
        Ok(Kubernetes { kubeconfig: kubeconfig.into() })
    }
}

impl EtcdFields {
    fn validated(self) -> Result<Etcd, Error> {
        if self.endpoints.is_empty() {
            return Err(Error::config(
                "ipam.etcd.endpoints: give the URL of a member of etcd, or ipam.kubernetes.kubeconfig",
            ));
        }
        for url in &self.endpoints {
            let tls = url.starts_with("https://");
            if !tls && !url.starts_with("http://") {
                return Err(Error::config(format!(
                    "ipam.etcd.endpoints: \"{}\" begins with neither https:// nor http://",
                    url.escape_default()
                )));
            }
            if tls && self.ca.is_none() {
                return Err(Error::config("ipam.etcd.ca: https needs the authority's certificate"));
            }
        }
        let identity = match (self.certificate, self.key) {
            (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
            (None, None) => None,
            _ => return Err(Error::config("ipam.etcd: certificate and key go together")),
        };
        let prefix = self.prefix.unwrap_or_else(|| PREFIX.to_owned());
        Ok(Etcd {
            endpoints: self.endpoints,
            ca: self.ca.map(PathBuf::from),
            identity,
            prefix: prefix.trim_end_matches('/').to_owned(),
        })
    }
}

fn host_name() -> Result<String, Error> {
    const FILE: &str = "/proc/sys/kernel/hostname";
    let name = std::fs::read_to_string(FILE)
        .map_err(|err| Error::io("reading the node's name:", std::path::Path::new(FILE), &err))?;
    Ok(name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(size: u8, name: &str, etcd: &Value) -> Result<Cluster, Error> {
        let document = json!({ "cniVersion": "1.0.0", "name": "net", "ipam": {
            "subnet": "10.0.0.0/16", "blockSize": size, "nodeName": name, "etcd": etcd } });
        let config = PluginConfig::parse(document.to_string().as_bytes())?;
        Cluster::read(&config, &CniArgs::default())
    }

    fn local() -> Value {
        json!({ "endpoints": ["http://127.0.0.1:2379"] })
    }

    #[test]
    fn a_block_is_its_owners_but_for_the_tail() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        for (size, half, tail, last) in
            [(26, 32, 8, "10.0.0.119"), (29, 4, 1, "10.0.0.70"), (24, 128, 32, "10.0.0.223")]
        {
            let cluster = read(size, "n", &local()).unwrap();
            assert_eq!((cluster.half(), cluster.tail()), (half, tail), "/{size}");
            let first = cluster.block_of(ip("10.0.0.65"));
            assert_eq!(cluster.last_of(first), ip(last), "/{size}");
            assert!(!cluster.is_in_tail(first) && !cluster.is_in_tail(ip(last)), "/{size}");
            assert!(cluster.is_in_tail(address(number(ip(last)) + 1, ip(last))), "/{size}");
        }
        for size in [19, 30] {
            let err = read(size, "n", &local()).unwrap_err();
            assert_eq!(err.msg, format!("ipam.blockSize: {size} is not between 20 and 29"));
        }
    }

    #[test]
    fn a_store_in_kubernetes_has_names_of_objects_and_no_etcd_beside() {
        let with = |name: &str, etcd: &Value| {
            let kubernetes = json!({"kubeconfig": "/k", "offline": 60});
            let document = json!({"cniVersion": "1.0.0", "name": "net", "ipam": {
                "subnet": "10.0.0.0/16", "nodeName": name, "etcd": etcd, "kubernetes": kubernetes}});
            let config = PluginConfig::parse(document.to_string().as_bytes()).unwrap();
            Cluster::read(&config, &CniArgs::default()).map_err(|err| err.msg)
        };
        let cluster = with("worker-1.example", &json!({})).unwrap();
        assert!(matches!(cluster.store, Store::Kubernetes(_)));
        assert_eq!(cluster.offline, Duration::from_secs(60));
        assert!(with("worker", &local()).unwrap_err().contains("choose one"));
        for name in ["Worker", "a_b", "a.-b", "a-"] {
            assert!(with(name, &json!({})).unwrap_err().contains("can't name an API object"), "{name}");
        }
    }

    #[test]
    fn a_node_has_a_name_and_a_way_to_etcd() {
        let cluster = read(26, "", &local()).unwrap();
        assert_eq!(cluster.node, host_name().unwrap());
        assert!(!cluster.node.is_empty());
        assert_eq!(read(26, "a", &local()).unwrap().node, "a");
        assert!(read(26, "../a", &local()).unwrap_err().msg.starts_with("ipam.nodeName: invalid name"));
        assert_eq!(cluster.offline, Duration::from_secs(3600));
        let etcd = |cluster: Cluster| match cluster.store {
            Store::Etcd(etcd) => etcd,
            Store::Kubernetes(_) => panic!("no etcd"),
        };
        let usual = etcd(cluster);
        assert_eq!((usual.prefix.as_str(), &usual.identity), (PREFIX, &None));
        let one = |key: &str, value: Value| {
            let mut keys = local();
            keys[key] = value;
            read(26, "n", &keys).map(etcd).map_err(|err| err.msg)
        };
        assert_eq!(one("prefix", json!("/a/b/")).unwrap().prefix, "/a/b");
        for (key, value, msg) in [
            ("endpoints", json!([]), "ipam.etcd.endpoints: give the URL"),
            ("endpoints", json!(["ftp://x"]), "ipam.etcd.endpoints: \"ftp://x\" begins with neither"),
            ("endpoints", json!(["https://x"]), "ipam.etcd.ca: https needs"),
            ("key", json!("/k"), "ipam.etcd: certificate and key go together"),
            ("offline", json!(0), "offline: 0 seconds"),
        ] {
            let err = one(key, value).unwrap_err();
            assert!(err.starts_with(msg), "{err}");
        }
    }
}
