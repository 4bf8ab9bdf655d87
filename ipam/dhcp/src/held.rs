//! A lease of either family, as in answers and files.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use cnimble_cni::{CniResult, Dns, IpConfig, Route};

use crate::{v4, v6};

/// Lease daemons without IPv6 have written the first form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Held {
    Four(v4::lease::Lease),
    Six(v6::lease::Lease),
}

impl Held {
    pub(crate) fn net(&self) -> IpNetwork {
        match self {
            Held::Four(lease) => lease.net(),
            Held::Six(lease) => lease.net(),
        }
    }

    pub(crate) fn address(&self) -> IpAddr {
        self.net().ip()
    }

    pub(crate) fn gateway(&self) -> Option<IpAddr> {
        match self {
            Held::Four(lease) => lease.gateway.map(IpAddr::V4),
            Held::Six(_) => None,
        }
    }

    /// Returns the routes of the lease with the configuration's `priority`.
    pub(crate) fn routes(&self, priority: Option<u32>) -> Vec<Route> {
        match self {
            Held::Four(lease) => lease.routes(priority),
            Held::Six(_) => Vec::new(),
        }
    }

    fn dns(&self) -> &Dns {
        match self {
            Held::Four(lease) => &lease.dns,
            Held::Six(lease) => &lease.dns,
        }
    }

    /// The end of the lease, in milliseconds since the machine's boot.
    pub(crate) fn expires(&self) -> u64 {
        match self {
            Held::Four(lease) => lease.expires,
            Held::Six(lease) => lease.expires,
        }
    }

    /// Returns the remaining preferred and valid lifetime of the address for the kernel, in seconds.
    pub(crate) fn lifetimes(&self, now: u64) -> (u32, u32) {
        match self {
            // DHCPv4 has only one lifetime.
            Held::Four(lease) => (lease.lifetime(now), lease.lifetime(now)),
            Held::Six(lease) => lease.lifetimes(now),
        }
    }

    pub(crate) fn server(&self) -> String {
        match self {
            Held::Four(lease) => lease.server.to_string(),
            Held::Six(lease) => format!("server {}", cnimble_cni::hash::hex(lease.server_id.iter().copied())),
        }
    }
}

/// Keeps the order of addresses. DNS settings are not repeated.
pub(crate) fn result(leases: &[Held], priority: Option<u32>) -> CniResult {
    let ip = |lease: &Held| IpConfig::new(lease.net(), lease.gateway());
    let mut dns = Dns::default();
    for Dns { nameservers, domain, search, .. } in leases.iter().map(Held::dns) {
        extend(&mut dns.nameservers, nameservers);
        extend(&mut dns.search, search);
        if dns.domain.is_empty() {
            dns.domain.clone_from(domain);
        }
    }
    let routes = leases.iter().flat_map(|lease| lease.routes(priority)).collect();
    CniResult::ipam(leases.iter().map(ip).collect(), routes, dns)
}

fn extend(all: &mut Vec<String>, more: &[String]) {
    for one in more {
        if !all.contains(one) {
            all.push(one.clone());
        }
    }
}
