//! The subnets of a described network: free ones are chosen, and taken ones refused. podman does neither for external
//! drivers.

use std::path::PathBuf;

use ipnetwork::{IpNetwork, Ipv6Network};
use nix::unistd::{Uid, User};
use serde_json::{Map, Value, json};

use cnimble_cni::{cidr, hash16};
use cnimble_lint::{Document, Finding, Host};
use cnimble_netavark::describe::Description;
use cnimble_netavark::input::{Network, Subnet};
use cnimble_netavark::options::Options;
use cnimble_netavark::{Failure, rootless, said};

use super::create::{failed, must_be_faultless, parse};
use crate::init;
use crate::lint::host;

/// The directory of root's networks in podman, unless `network_config_dir` of containers.conf names another.
const PODMAN_NETWORKS: &str = "/etc/containers/networks";
/// The same of another user, below the home directory.
const USERS_NETWORKS: &str = ".local/share/containers/storage/networks";

/// The name of podman's own default network.
const DEFAULT_NETWORK: &str = "podman";

/// What has addresses already.
struct Taken {
    host: Host,
    /// The networks of the CNI configuration directory.
    networks: Vec<Document>,
    /// The subnets of podman's other networks, with their names.
    podman: Vec<(IpNetwork, String)>,
}

/// Adds the subnets that are missing to the network and to podman's document, and checks all.
pub(super) fn choose(document: &mut Map<String, Value>, network: &mut Network) -> Result<(), Failure> {
    let kind = Description::read(network)?.kind;
    let taken = Taken::read(network)?;
    if network.subnets().is_empty() {
        if !kind.is_routed_here() {
            return said(format!("type={} needs --subnet, the subnet of the parent's network", kind.name()));
        }
        let free = taken.free(network)?;
        network.subnets = Some(vec![free]);
    }
    if network.ipv6_enabled && !network.subnets().iter().any(|subnet| subnet.subnet.is_ipv6()) {
        network.subnets.get_or_insert_default().push(unique_local_subnet(document)?);
    }
    must_differ(network.subnets())?;
    must_be_faultless(&format!("network {}", network.name), &taken.overlaps(network)?)?;
    if kind.is_routed_here() {
        taken.must_not_overlap_podman(network)?;
    }
    let known = document.get("subnets").and_then(Value::as_array).map_or(0, Vec::len);
    let chosen =
        network.subnets().iter().skip(known).map(|subnet| json!({"subnet": subnet.subnet.to_string()}));
    let mut all = document.get("subnets").and_then(Value::as_array).cloned().unwrap_or_default();
    all.extend(chosen);
    document.insert("subnets".into(), all.into());
    Ok(())
}

/// Fails if two subnets of the network overlap.
fn must_differ(subnets: &[Subnet]) -> Result<(), Failure> {
    for (index, one) in subnets.iter().enumerate() {
        let mut others = subnets.iter().skip(index + 1);
        if let Some(other) = others.find(|other| cidr::overlap(one.subnet, other.subnet)) {
            return said(format!("the subnets {} and {} overlap", one.subnet, other.subnet));
        }
    }
    Ok(())
}

/// Returns the IPv6 subnet of a network: a unique local one, by podman's random ID of the network (RFC 4193).
fn unique_local_subnet(document: &Map<String, Value>) -> Result<Subnet, Failure> {
    let id = document.get("id").and_then(Value::as_str).unwrap_or_default();
    let global = hash16(id).get(..10).and_then(|digits| u128::from_str_radix(digits, 16).ok());
    let number = 0xfd << 120 | global.unwrap_or_default() << 80;
    match Ipv6Network::new(number.into(), 64) {
        Ok(subnet) => Ok(Subnet { subnet: IpNetwork::V6(subnet), gateway: None }),
        Err(err) => said(format!("no IPv6 subnet: {err}")),
    }
}

impl Taken {
    /// Reads what has addresses, apart from the network itself.
    fn read(network: &Network) -> Result<Self, Failure> {
        let given = Options::new(network.options.as_ref());
        let networks = init::networks(&given.conf_dir()).map_err(|report| failed(&report))?;
        let host = host::read().map_err(|report| failed(&report))?;
        Ok(Taken { host, networks, podman: read_podman_subnets(&network.name) })
    }

    /// Returns the first unused /24 from 10.89.0.0 on, as podman's own driver and `cnimble init` choose it.
    fn free(&self, network: &Network) -> Result<Subnet, Failure> {
        let mut probe = network.clone();
        for subnet in init::candidates() {
            let subnet = Subnet { subnet, gateway: None };
            probe.subnets = Some(vec![subnet.clone()]);
            if self.overlaps(&probe)?.is_empty() && self.find_podman_network(subnet.subnet).is_none() {
                return Ok(subnet);
            }
        }
        said("every /24 from 10.89.0.0 to 10.95.255.0 is taken; name a subnet with --subnet")
    }

    /// Returns what the network shares with CNI networks and with the host's routes.
    fn overlaps(&self, network: &Network) -> Result<Vec<Finding>, Failure> {
        let text = Description::read(network)?.with_ranges().to_string();
        let document = parse(&format!("network {}", network.name), text)?;
        Ok(init::overlaps(&document, &self.networks, &self.host))
    }

    /// Returns podman's network that overlaps with a subnet.
    fn find_podman_network(&self, subnet: IpNetwork) -> Option<&(IpNetwork, String)> {
        self.podman.iter().find(|(other, _)| cidr::overlap(*other, subnet))
    }

    fn must_not_overlap_podman(&self, network: &Network) -> Result<(), Failure> {
        for subnet in network.subnets() {
            if let Some((other, name)) = self.find_podman_network(subnet.subnet) {
                return said(format!(
                    "the subnet {} overlaps {other} of podman's network {name}",
                    subnet.subnet
                ));
            }
        }
        Ok(())
    }
}

/// Returns the directory of podman's networks. HOME is not asked, because it belongs to the environment.
fn podman_networks_dir() -> PathBuf {
    let user = rootless::user().and_then(|user| User::from_uid(Uid::from_raw(user)).ok().flatten());
    user.map_or_else(|| PODMAN_NETWORKS.into(), |user| user.dir.join(USERS_NETWORKS))
}

/// Returns the subnets of podman's networks, apart from the network `name`. A file that can't be read has none: podman
/// itself reports it.
fn read_podman_subnets(name: &str) -> Vec<(IpNetwork, String)> {
    let mut found = Vec::new();
    let mut has_default = false;
    for entry in std::fs::read_dir(podman_networks_dir()).into_iter().flatten().flatten() {
        let Ok(text) = std::fs::read(entry.path()) else { continue };
        let Ok(network) = serde_json::from_slice::<Network>(&text) else { continue };
        has_default |= network.name == DEFAULT_NETWORK;
        found.extend(network.subnets().iter().map(|of| (Some(of.subnet), network.name.clone())));
    }
    // podman's own default network has no file until somebody gives it another subnet.
    if !has_default {
        found.push((cidr::parse_cidr("10.88.0.0/16"), DEFAULT_NETWORK.to_owned()));
    }
    found.retain(|(_, of)| of != name);
    found.into_iter().filter_map(|(subnet, of)| Some((subnet?, of))).collect()
}
