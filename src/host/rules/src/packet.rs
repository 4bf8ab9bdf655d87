//! Pieces of rules about addresses, and names for the sets over them.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use cnimble_netlink::nft::{Expr, Header, Meta, REG1};

/// Offsets of the addresses in the headers of IPv4 and IPv6.
pub(super) const SOURCE: (u32, u32) = (12, 8);
pub(super) const DESTINATION: (u32, u32) = (16, 24);

/// `meta nfproto ipv4`, or ipv6
pub(super) fn of_family(ip: IpAddr) -> Vec<Expr> {
    let number = if ip.is_ipv4() { libc::NFPROTO_IPV4 } else { libc::NFPROTO_IPV6 };
    vec![Expr::meta(Meta::Nfproto, REG1), Expr::equal(REG1, &[u8::try_from(number).unwrap_or(0)])]
}

/// Loads an address of the packet.
pub(super) fn load_address(ip: IpAddr, (v4, v6): (u32, u32)) -> Expr {
    let (offset, len) = if ip.is_ipv4() { (v4, 4) } else { (v6, 16) };
    Expr::payload(Header::Network, offset, len, REG1)
}

/// Loads an address of the packet and keeps its first `prefix` bits.
pub(super) fn load_network(ip: IpAddr, end: (u32, u32), prefix: u8) -> Vec<Expr> {
    let mut load = vec![load_address(ip, end)];
    if prefix < full_length(ip)
        && let Ok(network) = IpNetwork::new(ip, prefix)
    {
        load.push(Expr::mask(REG1, &octets(network.mask())));
    }
    load
}

fn full_length(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

pub(super) fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// A network in the name of a set: `10.1.0.0/16`. The `nft` command takes no colon in a name,
/// so IPv6 has dashes: `fd00-1--/64`.
pub(super) fn network_name(net: &IpNetwork) -> String {
    format!("{}/{}", net.network(), net.prefix()).replace(':', "-")
}

/// The network that [`network_name`] named.
pub(super) fn network_named(name: &str) -> Option<IpNetwork> {
    name.replace('-', ":").parse().ok()
}
