//! Expressions about the addresses of a packet.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use super::{Expr, Header, Meta, REG1};

/// The offsets of the source address in the headers of IPv4 and of IPv6 (linux/ip.h, linux/ipv6.h).
pub const SOURCE: (u32, u32) = (12, 8);
/// The offsets of the destination address in the headers of IPv4 and of IPv6.
pub const DESTINATION: (u32, u32) = (16, 24);

/// The match `meta nfproto ipv4`, or `ipv6` for an IPv6 address.
pub fn of_family(ip: IpAddr) -> Vec<Expr> {
    let number = if ip.is_ipv4() { libc::NFPROTO_IPV4 } else { libc::NFPROTO_IPV6 };
    vec![Expr::meta(Meta::Nfproto, REG1), Expr::equal(REG1, &[u8::try_from(number).unwrap_or(0)])]
}

/// Loads an address of the packet into [`REG1`]. `ip` tells the family, and the second parameter is [`SOURCE`] or
/// [`DESTINATION`].
pub fn load_address(ip: IpAddr, (v4, v6): (u32, u32)) -> Expr {
    let (offset, len) = if ip.is_ipv4() { (v4, 4) } else { (v6, 16) };
    Expr::payload(Header::Network, offset, len, REG1)
}

/// Loads an address of the packet into [`REG1`] and keeps its first `prefix` bits. `ip` tells the family, and `end` is
/// [`SOURCE`] or [`DESTINATION`].
pub fn load_network(ip: IpAddr, end: (u32, u32), prefix: u8) -> Vec<Expr> {
    let mut load = vec![load_address(ip, end)];
    let whole = if ip.is_ipv4() { 32 } else { 128 };
    if prefix < whole
        && let Ok(network) = IpNetwork::new(ip, prefix)
    {
        load.push(Expr::mask(REG1, &octets(network.mask())));
    }
    load
}

/// Returns the bytes of an address, in network byte order.
pub fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}
