//! A cluster's addresses, of which a node owns a share: blocks, and single addresses.
//!
//! The plugin cluster-local gives addresses from the [`share`], a file in the network's directory beside the
//! leases. A program of its own claims and returns parts of it in etcd. Both read the same configuration
//! ([`config`]) and the same file, so that both are here, where there is no client of etcd.

pub mod config;
pub mod share;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The address as a number.
pub fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}

/// The address of that number in the family of `like`.
pub fn address(number: u128, like: IpAddr) -> IpAddr {
    match like {
        // Only numbers between two IPv4 addresses come in; the cut loses nothing.
        IpAddr::V4(_) => Ipv4Addr::from(number as u32).into(),
        IpAddr::V6(_) => Ipv6Addr::from(number).into(),
    }
}
