//! Pools: range sets for the pods of some namespaces, or for pods that ask for the pool. Also addresses that belong to
//! the pods of certain names.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Range;

use serde::Deserialize;

use cnimble_cni::fields::{self, Addresses};
use cnimble_cni::{CniArgs, Error, PluginConfig, cidr};

use crate::config::Config;
use crate::config::ranges::{RangeFields, range_sets};
use crate::range::RangeSet;

/// The annotation by which a pod asks for a pool.
const POOL: &str = "cnimble/pool";
/// The annotation with addresses that a pod asks for, as in `10.1.0.9,fd00::9` or `["10.1.0.9"]`.
const IPS: &str = "cnimble/ips";

/// The pools of a network, and the addresses by pods' names (`ipam.addresses`).
#[derive(Debug)]
pub struct Pools {
    /// The number of range sets that belong to no pool. Those of the pools follow.
    pub usual: usize,
    pools: Vec<Pool>,
    /// The addresses that `ipam.addresses` gives to this pod.
    named: Vec<IpAddr>,
    /// The addresses that `ipam.addresses` gives to other pods.
    pub reserved: BTreeSet<IpAddr>,
}

/// Range sets for some pods.
#[derive(Debug)]
struct Pool {
    name: String,
    /// The namespaces whose pods get the pool without asking. If there are any, no other pod gets it.
    namespaces: Vec<String>,
    /// The numbers of its range sets.
    sets: Range<usize>,
}

impl Pool {
    /// Returns whether the pods of a namespace get the pool without asking.
    fn is_of(&self, namespace: &str) -> bool {
        self.namespaces.iter().any(|name| name == namespace)
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Document {
    ipam: Ipam,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Ipam {
    pools: Vec<PoolFields>,
    addresses: BTreeMap<String, Addresses>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PoolFields {
    name: String,
    namespaces: Vec<String>,
    ranges: Vec<Vec<RangeFields>>,
}

/// What one attachment asks for.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PoolRequest {
    args: Args,
    runtime_config: RuntimeConfig,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Args {
    cni: CniArguments,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CniArguments {
    #[serde(deserialize_with = "fields::text_opt")]
    pool: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RuntimeConfig {
    #[serde(rename = "io.kubernetes.cri.pod-annotations")]
    annotations: BTreeMap<String, String>,
}

impl RuntimeConfig {
    /// Returns an annotation of the pod, unless it is empty.
    fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(String::as_str).filter(|text| !text.is_empty())
    }
}

impl Pools {
    /// Reads the keys, and adds the pools' range sets to those of `base`. Fails with code 7 for a wrong key.
    pub(super) fn read(config: &PluginConfig, args: &CniArgs, base: &mut Config) -> Result<Self, Error> {
        let ipam = config.decode::<Document>()?.ipam;
        let usual = base.sets.len();
        let mut pools: Vec<Pool> = Vec::new();
        for (n, PoolFields { name, namespaces, ranges }) in ipam.pools.into_iter().enumerate() {
            let key = format!("ipam.pools[{n}]");
            if name.is_empty() || pools.iter().any(|other| other.name == name) {
                return Err(Error::config(format!("{key}.name: a pool needs a name of its own")));
            }
            if ranges.is_empty() {
                return Err(Error::config(format!("{key}.ranges: a pool needs a range")));
            }
            let keys = (0..).map(|set| format!("{key}.ranges[{set}]"));
            let sets = range_sets(ranges.into_iter().zip(keys), config)?;
            if let Some(other) = base.sets.iter().find(|other| sets.iter().any(|set| set.overlaps(other))) {
                return Err(Error::config(format!("{key}.ranges: a range overlaps with {other}"))
                    .details("hint: exclude the pool's addresses from the other range"));
            }
            let first = base.sets.len();
            base.sets.extend(sets);
            pools.push(Pool { name, namespaces, sets: first..base.sets.len() });
        }
        let mut read = Pools { usual, pools, named: Vec::new(), reserved: BTreeSet::new() };
        let pod = args.get("K8S_POD_NAMESPACE").zip(args.get("K8S_POD_NAME"));
        let pod = pod.map(|(namespace, name)| format!("{namespace}/{name}"));
        for (name, Addresses(ips)) in ipam.addresses {
            for ip in ips {
                if !base.sets.iter().any(|set| set.range_of(ip).is_some()) {
                    return Err(Error::config(format!("ipam.addresses: {ip} of {name} is in no range")));
                }
                if read.named.contains(&ip) || !read.reserved.insert(ip) {
                    return Err(Error::config(format!("ipam.addresses: {ip} of {name} is listed twice")));
                }
                if pod.as_ref() == Some(&name) {
                    read.reserved.remove(&ip);
                    read.named.push(ip);
                }
            }
        }
        Ok(read)
    }

    /// Returns the numbers of the range sets of which the pod gets addresses. Fails with code 7 if the pod may not have
    /// the pool or an address.
    ///
    /// Adds to the requested addresses in `base` those of the pod's annotation. Also adds that of its name, unless one
    /// of the same range set is requested already. Removes routes without a gateway from `base` if the pod gets no
    /// address of their family.
    pub fn choose(
        &self,
        config: &PluginConfig,
        args: &CniArgs,
        base: &mut Config,
    ) -> Result<Range<usize>, Error> {
        let asked = config.decode::<PoolRequest>()?;
        let own = self.pool(&asked, args.get("K8S_POD_NAMESPACE").unwrap_or_default())?;
        let sets = base.sets.get(own.clone()).unwrap_or_default();
        for ip in asked.runtime_config.annotation(IPS).map(addresses).transpose()?.unwrap_or_default() {
            self.allowed_set(&format!("annotation {IPS}"), sets, ip)?;
            if !base.requested.contains(&ip) {
                base.requested.push(ip);
            }
        }
        for ip in &self.named {
            let set = self.allowed_set("ipam.addresses", sets, *ip)?;
            if !base.requested.iter().any(|other| find_set(sets, *other) == Some(set)) {
                base.requested.push(*ip);
            }
        }
        base.routes.retain(|route| {
            route.gw.is_some() || sets.iter().any(|set| set.is_ipv4() == route.dst.is_ipv4())
        });
        Ok(own)
    }

    /// Returns the number of the range set that an address is in. Fails with code 7 and the `key` that names the
    /// address if the pod may not have it.
    fn allowed_set(&self, key: &str, sets: &[RangeSet], ip: IpAddr) -> Result<usize, Error> {
        match find_set(sets, ip).filter(|_| !self.reserved.contains(&ip)) {
            Some(set) => Ok(set),
            None => Err(Error::config(format!("{key}: {ip} is no address for this pod"))
                .details("it is in no range of the pod's pool, or ipam.addresses gives it to another pod")),
        }
    }

    /// Returns the numbers of the range sets of the pool that is asked for, else of the namespace's pool, else those
    /// without a pool.
    fn pool(&self, asked: &PoolRequest, namespace: &str) -> Result<Range<usize>, Error> {
        let argument = asked.args.cni.pool.as_deref().map(|name| ("args.cni.pool".to_owned(), name));
        let annotation = asked.runtime_config.annotation(POOL);
        let annotation = annotation.map(|name| (format!("annotation {POOL}"), name));
        let Some((key, name)) = argument.or(annotation) else {
            let pool = self.pools.iter().find(|pool| pool.is_of(namespace));
            return Ok(pool.map_or(0..self.usual, |pool| pool.sets.clone()));
        };
        let why = match self.pools.iter().find(|pool| pool.name == name) {
            Some(pool) if pool.namespaces.is_empty() || pool.is_of(namespace) => {
                return Ok(pool.sets.clone());
            }
            Some(_) => "is for other namespaces",
            None => "is none of ipam.pools",
        };
        Err(Error::config(format!("{key}: pool \"{}\" {why}", name.escape_default())))
    }
}

/// Reads a list of addresses, with or without the brackets and quotes of JSON. Fails with code 7.
fn addresses(list: &str) -> Result<Vec<IpAddr>, Error> {
    let words =
        list.split(',').map(|word| word.trim_matches(|c: char| "[]\"".contains(c) || c.is_whitespace()));
    let addresses = words.map(|word| match cidr::parse_ip_or_cidr(word) {
        Some((ip, _)) => Ok(ip),
        None => {
            Err(Error::config(format!("annotation {IPS}: invalid IP address: {}", word.escape_default())))
        }
    });
    addresses.collect()
}

/// Returns the number of the first range set with this address, or `None` if it is in none.
fn find_set(sets: &[RangeSet], ip: IpAddr) -> Option<usize> {
    sets.iter().position(|set| set.range_of(ip).is_some())
}
