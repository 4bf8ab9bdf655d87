//! Addresses and networks, parsed as strictly as Go's `net.ParseIP` and `net.ParseCIDR`. The parser of `ipnetwork`
//! takes `10.1.2.3` for a network, netmasks and signs, which a configuration must not. An IPv4 address in IPv6 clothes
//! (`::ffff:10.1.2.3`) is the IPv4 address, as in the reference.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;

/// An IPv6 network of this length holds IPv4 addresses only (RFC 4291, 2.5.5.2).
const MAPPED_PREFIX: u8 = 96;

/// Reads `a.b.c.d/len` or `x::y/len`. Host bits are kept. The length is decimal digits without sign or leading zero.
pub fn parse_cidr(text: &str) -> Option<IpNetwork> {
    let (addr, len) = text.split_once('/')?;
    let digits = len.bytes().all(|b| b.is_ascii_digit()) && (len == "0" || !len.starts_with('0'));
    if len.is_empty() || len.len() > 3 || !digits {
        return None;
    }
    let written: IpAddr = addr.parse().ok()?;
    let ip = written.to_canonical();
    let mut prefix: u8 = len.parse().ok()?;
    if written.is_ipv6() && ip.is_ipv4() {
        // Shorter than /96 it would hold more than IPv4 addresses: neither family's network.
        prefix = prefix.checked_sub(MAPPED_PREFIX)?;
    }
    IpNetwork::new(ip, prefix).ok()
}

/// Reads one address; no zone, no mask.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    text.parse().ok().map(|ip: IpAddr| ip.to_canonical())
}

/// Reads an address with or without a prefix length, as runtimes ask for static addresses.
pub fn parse_ip_or_cidr(text: &str) -> Option<(IpAddr, Option<u8>)> {
    if text.contains('/') {
        parse_cidr(text).map(|net| (net.ip(), Some(net.prefix())))
    } else {
        parse_ip(text).map(|ip| (ip, None))
    }
}

/// Whether the networks have an address in common.
pub fn overlap(one: IpNetwork, other: IpNetwork) -> bool {
    one.is_ipv4() == other.is_ipv4() && (one.contains(other.network()) || other.contains(one.network()))
}

/// The default route of the family of `net`.
pub fn default_route(net: IpNetwork) -> &'static str {
    if net.is_ipv4() { "0.0.0.0/0" } else { "::/0" }
}

/// The network of all addresses of the family of `net`: `0.0.0.0/0` or `::/0`.
pub fn everywhere(net: IpNetwork) -> IpNetwork {
    let unspecified = match net {
        IpNetwork::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpNetwork::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    IpNetwork::new(unspecified, 0).unwrap_or(net)
}

/// The first address after that of the network, which is the gateway's unless a configuration names another.
pub fn first_address(net: IpNetwork) -> IpAddr {
    match net.network() {
        IpAddr::V4(ip) => IpAddr::V4(u32::from(ip).wrapping_add(1).into()),
        IpAddr::V6(ip) => IpAddr::V6(u128::from(ip).wrapping_add(1).into()),
    }
}

/// The network that `net` lies in: host bits cleared.
pub fn network_of(net: IpNetwork) -> IpNetwork {
    IpNetwork::new(net.network(), net.prefix()).unwrap_or(net)
}

/// The address as a number.
pub fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}

/// The numbers from `first` to `last` without those of the `excluded` networks, as spans in ascending order. A span
/// includes both of its ends.
pub fn without(first: u128, last: u128, excluded: &[IpNetwork]) -> Vec<(u128, u128)> {
    let mut spans: Vec<_> =
        excluded.iter().map(|net| (number(net.network()), number(net.broadcast()))).collect();
    spans.sort_unstable();
    let mut left = Vec::new();
    // None: behind the last number.
    let mut from = Some(first);
    for (start_of_gap, end_of_gap) in spans {
        let Some(start) = from.filter(|start| *start <= last) else { break };
        if let Some(before) = start_of_gap.checked_sub(1).filter(|before| start <= *before) {
            left.push((start, before.min(last)));
        }
        from = end_of_gap.checked_add(1).map(|next| next.max(start));
    }
    left.extend(from.filter(|start| *start <= last).map(|start| (start, last)));
    left
}

/// Gives each set the first requested address that it holds, as each attachment gets one address of a set. Returns the
/// address of each set, and those that are left over, which no set can give.
pub fn assign<S>(
    sets: &[S],
    requested: &[IpAddr],
    holds: impl Fn(&S, IpAddr) -> bool,
) -> (Vec<Option<IpAddr>>, Vec<IpAddr>) {
    let mut left = requested.to_vec();
    let assigned = sets.iter().map(|set| {
        let at = left.iter().position(|ip| holds(set, *ip))?;
        Some(left.remove(at))
    });
    let assigned = assigned.collect();
    (assigned, left)
}

/// The single-address network of `ip`: /32 or /128.
pub fn host(ip: IpAddr) -> IpNetwork {
    IpNetwork::from(ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_address_and_all_addresses_are_of_the_family() {
        for (net, first, all) in [("10.1.2.7/24", "10.1.2.1", "0.0.0.0/0"), ("fd00::7/64", "fd00::1", "::/0")]
        {
            let net = parse_cidr(net).unwrap();
            assert_eq!(first_address(net).to_string(), first);
            assert_eq!((everywhere(net).to_string().as_str(), default_route(net)), (all, all));
        }
    }

    #[test]
    fn keeps_host_bits_and_prints_like_go() {
        for (text, printed) in [
            ("10.1.2.3/8", "10.1.2.3/8"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("::/0", "::/0"),
            ("2001:DB8:0:0:0:0:0:1/64", "2001:db8::1/64"),
            ("2001:db8:0:1:1:1:1:1/64", "2001:db8:0:1:1:1:1:1/64"),
            ("::1.2.3.4/96", "::102:304/96"),
            ("::ffff:10.0.0.1/120", "10.0.0.1/24"),
        ] {
            assert_eq!(parse_cidr(text).unwrap().to_string(), printed, "{text}");
        }
    }

    #[test]
    fn refuses_what_is_not_exactly_a_cidr() {
        for text in [
            "",
            "/",
            "/24",
            "10.1.2.3",
            "10.1.2.3/",
            "10.1.2.3/33",
            "10.1.2.3/+8",
            "10.1.2.3/-1",
            "10.1.2.3/08",
            "10.1.2.3/8/8",
            "10.1.2.3/255.0.0.0",
            "10.1.2/24",
            "10.1.2.256/24",
            "010.1.2.3/24",
            " 10.1.2.3/24",
            "10.1.2.3/24 ",
            "fe80::1%eth0/64",
            "fe80::1/129",
            "fe80::1/1000",
            "fe80::/99999999999999999999",
            "::ffff:10.0.0.1/64",
            "1::2::3/64",
            "١٠.1.2.3/24",
        ] {
            assert_eq!(parse_cidr(text), None, "{text}");
        }
        for text in ["", "10.1.2.3/24", "10.1.2", "fe80::1%eth0", "localhost", "0x0a.1.2.3"] {
            assert_eq!(parse_ip(text), None, "{text}");
        }
    }

    #[test]
    fn a_requested_address_may_have_a_prefix() {
        let ip = parse_ip("10.1.2.3").unwrap();
        assert_eq!(parse_ip_or_cidr("10.1.2.3"), Some((ip, None)));
        assert_eq!(parse_ip_or_cidr("10.1.2.3/24"), Some((ip, Some(24))));
        assert_eq!(parse_ip_or_cidr("10.1.2.3/"), None);
    }

    #[test]
    fn clears_host_bits() {
        let net = network_of(parse_cidr("10.1.2.3/20").unwrap());
        assert_eq!(net.to_string(), "10.1.0.0/20");
        assert_eq!(host(parse_ip("fd00::1").unwrap()).to_string(), "fd00::1/128");
    }
}
