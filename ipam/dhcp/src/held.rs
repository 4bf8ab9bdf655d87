//! A lease of either family, in the form of answers and files.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use cnimble_cni::{CniResult, Dns, IpConfig, Route};

use crate::{v4, v6};

/// A lease of either family. Lease daemons without IPv6 have written the first form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum AnyLease {
    Four(v4::lease::Lease),
    Six(v6::lease::Lease),
}

impl AnyLease {
    /// Returns the address with its prefix length.
    pub(crate) fn net(&self) -> IpNetwork {
        match self {
            AnyLease::Four(lease) => lease.net(),
            AnyLease::Six(lease) => lease.net(),
        }
    }

    pub(crate) fn address(&self) -> IpAddr {
        self.net().ip()
    }

    /// Returns the router of the lease. DHCPv6 has none: routers advertise themselves.
    pub(crate) fn gateway(&self) -> Option<IpAddr> {
        match self {
            AnyLease::Four(lease) => lease.gateway.map(IpAddr::V4),
            AnyLease::Six(_) => None,
        }
    }

    /// Returns the routes of the lease with the configuration's `priority`. DHCPv6 has none.
    pub(crate) fn routes(&self, priority: Option<u32>) -> Vec<Route> {
        match self {
            AnyLease::Four(lease) => lease.routes(priority),
            AnyLease::Six(_) => Vec::new(),
        }
    }

    fn dns(&self) -> &Dns {
        match self {
            AnyLease::Four(lease) => &lease.dns,
            AnyLease::Six(lease) => &lease.dns,
        }
    }

    /// Returns the end of the lease, in milliseconds since the machine's boot. It is `u64::MAX` for an endless lease.
    pub(crate) fn expires(&self) -> u64 {
        match self {
            AnyLease::Four(lease) => lease.expires,
            AnyLease::Six(lease) => lease.expires,
        }
    }

    /// Returns the remaining preferred and valid lifetime of the address for the kernel, in seconds.
    pub(crate) fn lifetimes(&self, now: u64) -> (u32, u32) {
        match self {
            // DHCPv4 has only one lifetime.
            AnyLease::Four(lease) => (lease.lifetime(now), lease.lifetime(now)),
            AnyLease::Six(lease) => lease.lifetimes(now),
        }
    }

    /// Returns the server in words, for the log.
    pub(crate) fn server(&self) -> String {
        match self {
            AnyLease::Four(lease) => lease.server.to_string(),
            AnyLease::Six(lease) => {
                format!("server {}", cnimble_cni::hash::hex(lease.server_id.iter().copied()))
            }
        }
    }
}

/// Returns the result of ADD for leases of several families, with the addresses in this order. Name servers and search
/// domains are not repeated, and the first domain counts.
pub(crate) fn result(leases: &[AnyLease], priority: Option<u32>) -> CniResult {
    let mut dns = Dns::default();
    for Dns { nameservers, domain, search, .. } in leases.iter().map(AnyLease::dns) {
        extend(&mut dns.nameservers, nameservers);
        extend(&mut dns.search, search);
        if dns.domain.is_empty() {
            dns.domain.clone_from(domain);
        }
    }
    let routes = leases.iter().flat_map(|lease| lease.routes(priority)).collect();
    let ips = leases.iter().map(|lease| IpConfig::new(lease.net(), lease.gateway())).collect();
    CniResult::ipam(ips, routes, dns)
}

/// Adds the texts that are not in the list yet.
fn extend(all: &mut Vec<String>, more: &[String]) {
    for one in more {
        if !all.contains(one) {
            all.push(one.clone());
        }
    }
}
