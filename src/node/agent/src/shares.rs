//! Nodes that own blocks of a shared subnet, as the IPAM plugin cluster-local keeps them in etcd or Kubernetes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use ipnetwork::IpNetwork;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use cnimble_api::tame;
use cnimble_cni::cidr::default_route;
use cnimble_cni::{CniArgs, PluginConfig};
use cnimble_leases::cluster::config::Cluster;
use cnimble_leases::range::RangeSet;
use cnimble_os::files::{self as files, Links};

use crate::LIMIT;
use crate::node::is_host;
use crate::{Node, Nodes};

const PLUGIN: &str = "cluster-local";

/// The configuration of the IPAM plugin for this node.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterLocal {
    /// The plugin's part of the network's file.
    pub ipam: Value,
    /// The name of this node.
    pub node: String,
    /// The subnets of which nodes own blocks.
    pub subnets: Vec<IpNetwork>,
}

/// Keys that the agent adds to those of a file.
#[derive(Debug, Clone, Copy, Default)]
pub struct Added<'a> {
    /// The value of `nodeName`.
    pub node: Option<&'a str>,
    /// The value of `dataDir`.
    pub data_dir: Option<&'a Path>,
    /// Whether `routed` is set.
    pub routed: bool,
}

impl ClusterLocal {
    /// Reads a file with the keys of `ipam`, and completes them for the network of this name. Without `routes` it adds
    /// the default routes.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or if the plugin would refuse the configuration.
    pub fn read(path: &Path, network: &str, added: &Added<'_>) -> Result<Self, String> {
        let shown = path.display();
        let text = files::read(path, LIMIT, Links::Follow).map_err(|err| format!("{shown}: {err}"))?;
        let ipam: Map<String, Value> = serde_json::from_slice(&text)
            .map_err(|err| format!("{shown}: it is to hold an object with the keys of ipam: {err}"))?;
        Self::complete(ipam, network, added).map_err(|why| format!("{shown}: {why}"))
    }

    fn complete(mut ipam: Map<String, Value>, network: &str, added: &Added<'_>) -> Result<Self, String> {
        if ipam.get("type").is_some_and(|kind| kind != PLUGIN) {
            return Err(format!("ipam.type: only {PLUGIN} is known here"));
        }
        ipam.insert("type".to_owned(), json!(PLUGIN));
        if let Some(node) = added.node {
            ipam.insert("nodeName".to_owned(), json!(node));
        }
        if let Some(dir) = added.data_dir {
            ipam.insert("dataDir".to_owned(), json!(dir));
        }
        if added.routed {
            ipam.insert("routed".to_owned(), json!(true));
        }
        let document = json!({"cniVersion": "1.0.0", "name": network, "type": "ptp", "ipam": ipam});
        let read = PluginConfig::parse(document.to_string().as_bytes())
            .and_then(|config| Cluster::read(&config, &CniArgs::default()));
        let cluster = read.map_err(|err| err.to_string())?;
        let subnets: Vec<IpNetwork> =
            cluster.base.sets.iter().flat_map(RangeSet::ranges).map(|range| range.subnet).collect();
        if !ipam.contains_key("routes") {
            // There is a default route for each family. A pod gets those of the families of its addresses.
            let routes: BTreeSet<&str> = subnets.iter().copied().map(default_route).collect();
            let routes: Vec<Value> = routes.into_iter().map(|dst| json!({"dst": dst})).collect();
            ipam.insert("routes".to_owned(), Value::Array(routes));
        }
        Ok(ClusterLocal { ipam: Value::Object(ipam), node: cluster.node, subnets })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    #[serde(default)]
    epoch: u64,
    revision: i64,
    host_bits: u8,
    nodes: BTreeMap<String, Shares>,
}

#[derive(Deserialize)]
struct Shares {
    ips: Vec<IpAddr>,
    blocks: Vec<IpAddr>,
    singles: Vec<IpAddr>,
}

/// Reads a line of `cluster-local-store watch`. Returns the nodes, and the epoch and the revision of the store.
pub fn nodes(line: &str) -> Result<(Nodes, (u64, i64)), String> {
    let line: Line = serde_json::from_str(line).map_err(|err| tame(&err.to_string()))?;
    let nodes = line.nodes.into_iter().map(|(name, shares)| (name, read_node(&shares, line.host_bits)));
    Ok((nodes.collect(), (line.epoch, line.revision)))
}

/// Returns a node from its blocks of `host_bits` and its single addresses. Addresses of no host are left out, and told
/// as wrong.
fn read_node(shares: &Shares, host_bits: u8) -> Node {
    let mut node = Node::default();
    node.cidrs.extend(shares.blocks.iter().filter_map(|ip| network_at(*ip, host_bits)));
    node.cidrs.extend(shares.singles.iter().filter_map(|ip| network_at(*ip, 0)));
    let (good, bad): (Vec<IpAddr>, Vec<IpAddr>) = shares.ips.iter().partition(|ip| is_host(**ip));
    node.ips = good;
    node.wrong.extend(bad.iter().map(|ip| format!("{ip} is the address of no host")));
    node
}

fn network_at(ip: IpAddr, host_bits: u8) -> Option<IpNetwork> {
    let bits: u8 = if ip.is_ipv4() { 32 } else { 128 };
    IpNetwork::new(ip, bits.saturating_sub(host_bits)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ClusterLocal, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pods.json");
        std::fs::write(&path, text).unwrap();
        let added = Added { node: Some("a"), data_dir: Some(Path::new("/run/x")), routed: true };
        ClusterLocal::read(&path, "pods", &added)
    }

    #[test]
    fn the_file_is_completed_and_a_bad_one_refused_in_a_sentence() {
        let etcd = r#""etcd": {"endpoints": ["http://192.0.2.1:2379"]}"#;
        let two = read(&format!(
            r#"{{"ranges": [[{{"subnet": "10.1.0.0/16"}}], [{{"subnet": "fd00::/64"}}]], {etcd}}}"#
        ));
        let two = two.unwrap();
        assert_eq!(
            two.subnets.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["10.1.0.0/16", "fd00::/64"]
        );
        assert_eq!(two.ipam["routes"], json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]));
        assert_eq!((&two.ipam["nodeName"], &two.ipam["dataDir"]), (&json!("a"), &json!("/run/x")));
        assert_eq!(two.ipam["routed"], true);
        let own =
            read(&format!(r#"{{"type": "cluster-local", "subnet": "10.1.0.0/16", "routes": [], {etcd}}}"#))
                .unwrap();
        assert_eq!((own.ipam["routes"].clone(), own.node.as_str()), (json!([]), "a"));
        let pool =
            r#"[{"name": "db", "ranges": [[{"subnet": "fd00:2::/64"}], [{"subnet": "10.2.0.0/24"}]]}]"#;
        let pools = read(&format!(r#"{{"subnet": "10.1.0.0/16", "pools": {pool}, {etcd}}}"#)).unwrap();
        let subnets: Vec<String> = pools.subnets.iter().map(ToString::to_string).collect();
        assert_eq!(subnets, ["10.1.0.0/16", "fd00:2::/64", "10.2.0.0/24"]);
        assert_eq!(pools.ipam["routes"], json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]));
        for (bad, words) in [
            ("[]".to_owned(), "the keys of ipam"),
            (r#"{"type": "host-local"}"#.to_owned(), "only cluster-local"),
            (r#"{"subnet": "10.1.0.0/16"}"#.to_owned(), "ipam.etcd.endpoints"),
            (format!(r#"{{"subnet": "10.1.0.0/16", "blockSize": 8, {etcd}}}"#), "ipam.blockSize"),
        ] {
            let why = read(&bad).unwrap_err();
            assert!(why.contains(words) && why.contains("pods.json"), "{bad}: {why}");
        }
    }

    #[test]
    fn a_line_is_read_and_addresses_of_no_host_are_told() {
        let (nodes, seen) = nodes(
            r#"{"epoch": 2, "revision": 7, "hostBits": 6, "nodes": {"a": {"ips": ["192.0.2.1", "127.0.0.1"],
                "blocks": ["10.1.0.64", "fd00::40"], "singles": ["10.1.0.63"]}}}"#,
        )
        .unwrap();
        let a = &nodes["a"];
        let cidrs: Vec<String> = a.cidrs.iter().map(ToString::to_string).collect();
        assert_eq!(cidrs, ["10.1.0.64/26", "fd00::40/122", "10.1.0.63/32"]);
        assert_eq!((a.ips.len(), a.wrong.len(), seen), (1, 1, (2, 7)));
        for bad in [
            "",
            "{}",
            r#"{"epoch": 0, "revision": 1, "hostBits": 6, "nodes": {"a": {"ips": ["x"], "blocks": [], "singles": []}}}"#,
        ] {
            assert!(super::nodes(bad).is_err());
        }
    }
}
