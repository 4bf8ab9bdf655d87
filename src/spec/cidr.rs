//! Addresses and networks, parsed as strictly as Go's `net.ParseIP` and `net.ParseCIDR`.
//!
//! `ipnetwork` does the arithmetic; its parser takes `10.1.2.3` for a network, netmasks
//! and signs, which a configuration must not.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

/// Reads `a.b.c.d/len` or `x::y/len`. Host bits are kept. The length is decimal digits
/// without sign or leading zero.
pub fn parse_cidr(text: &str) -> Option<IpNetwork> {
    let (addr, len) = text.split_once('/')?;
    let digits = len.bytes().all(|b| b.is_ascii_digit()) && (len == "0" || !len.starts_with('0'));
    if len.is_empty() || len.len() > 3 || !digits {
        return None;
    }
    IpNetwork::new(parse_ip(addr)?, len.parse().ok()?).ok()
}

/// Reads one address; no zone, no mask.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    text.parse().ok()
}

/// The network that `net` lies in: host bits cleared.
pub fn network_of(net: IpNetwork) -> IpNetwork {
    IpNetwork::new(net.network(), net.prefix()).unwrap_or(net)
}

/// The single-address network of `ip`: /32 or /128.
pub fn host(ip: IpAddr) -> IpNetwork {
    IpNetwork::from(ip)
}
