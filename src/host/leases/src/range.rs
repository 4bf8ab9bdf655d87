//! Ranges of addresses: validation and arithmetic.
//!
//! An address is a `u128` and a range is its two ends, so an IPv6 /64 costs as much as an IPv4 /29. A gateway is never
//! given out. The network address and the IPv4 broadcast address are given out if `rangeStart` and `rangeEnd` include
//! them. A routed link to a pod (ptp) has no other use for them. In IPv6 the former is the subnet-router anycast
//! address (RFC 4291, section 2.6.1). On a shared link they are given on request only ([`Range::leaves_out`]). A subnet
//! of two addresses has neither (RFC 3021, RFC 6164).

mod set;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cnimble_cni::cidr;
pub use cnimble_cni::cidr::number;
use ipnetwork::IpNetwork;

pub use set::RangeSet;

/// Consecutive addresses in one network, both ends included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    pub subnet: IpNetwork,
    pub start: IpAddr,
    pub end: IpAddr,
    /// The router, which may lie outside the range.
    pub gateway: IpAddr,
    /// Whether the pods share a link, on which the network address and the broadcast address have a meaning.
    pub on_shared_link: bool,
}

/// Returns the address with that number, in the family of `like`.
pub fn address(number: u128, like: IpAddr) -> IpAddr {
    match like {
        // The number lies between two IPv4 addresses, so the cast loses nothing.
        IpAddr::V4(_) => Ipv4Addr::from(number as u32).into(),
        IpAddr::V6(_) => Ipv6Addr::from(number).into(),
    }
}

fn same_family(a: IpAddr, b: IpAddr) -> bool {
    a.is_ipv4() == b.is_ipv4()
}

impl Range {
    /// Returns a range with defaults for what is missing. The gateway is then the first address after that of the
    /// network. The range has all addresses that hosts may have. A given gateway may lie outside.
    ///
    /// # Errors
    /// Fails for values that do not go together. The texts are those of the Go plugin where it has any.
    pub fn new(
        subnet: IpNetwork,
        start: Option<IpAddr>,
        end: Option<IpAddr>,
        gateway: Option<IpAddr>,
    ) -> Result<Self, String> {
        let bits = if subnet.is_ipv4() { 32 } else { 128 };
        if subnet.prefix() > bits - 1 {
            return Err(format!("Network {subnet} too small to allocate from"));
        }
        let network = subnet.network();
        if subnet.ip() != network {
            let length = subnet.prefix();
            return Err(format!(
                "Network has host bits set. For a subnet mask of length {length} the network address is {network}"
            ));
        }
        for ip in [start, end, gateway].into_iter().flatten() {
            if !same_family(ip, network) {
                return Err(format!("IP {ip} is not the same protocol as subnet {subnet}"));
            }
        }
        let first = cidr::first_address(subnet);
        let is_pair = subnet.prefix() == bits - 1;
        let start = start.unwrap_or(if is_pair { network } else { first });
        if !subnet.contains(start) {
            return Err(format!("RangeStart {start} not in network {subnet}"));
        }
        let last = match subnet.broadcast() {
            IpAddr::V4(broadcast) if !is_pair => address(number(broadcast.into()) - 1, network),
            last => last,
        };
        let end = end.unwrap_or(last);
        if !subnet.contains(end) {
            return Err(format!("RangeEnd {end} not in network {subnet}"));
        }
        if end < start {
            return Err(format!("RangeEnd {end} is before RangeStart {start} in network {subnet}"));
        }
        Ok(Range { subnet, start, end, gateway: gateway.unwrap_or(first), on_shared_link: false })
    }

    /// Returns the rest of the range without some prefixes, as ranges in ascending order.
    ///
    /// # Errors
    /// Fails if a prefix is outside the subnet, or if no address is left.
    pub fn without(self, excluded: &[IpNetwork]) -> Result<Vec<Range>, String> {
        let subnet = self.subnet;
        if let Some(prefix) = excluded.iter().find(|prefix| !subnet.contains(prefix.ip())) {
            return Err(format!("exclude: {prefix} is not in network {subnet}"));
        }
        let piece = |(from, to)| Range {
            start: address(from, self.start),
            end: address(to, self.start),
            ..self.clone()
        };
        let left = cidr::without(number(self.start), number(self.end), excluded);
        if left.is_empty() {
            return Err(format!("exclude leaves no address of {self}"));
        }
        Ok(left.into_iter().map(piece).collect())
    }

    /// Returns whether `ip` lies in the range.
    pub fn contains(&self, ip: IpAddr) -> bool {
        same_family(self.start, ip) && self.start <= ip && ip <= self.end
    }

    /// Returns the number of addresses. For all of IPv6 it is one too small.
    pub fn size(&self) -> u128 {
        (number(self.end) - number(self.start)).saturating_add(1)
    }

    /// Returns whether both have an address in common.
    fn overlaps(&self, other: &Range) -> bool {
        same_family(self.start, other.start) && self.start <= other.end && other.start <= self.end
    }

    /// Returns whether `ip` is given on request only: on a shared link, that is so for the network address and the IPv4
    /// broadcast address.
    pub fn leaves_out(&self, ip: IpAddr) -> bool {
        let bits = if self.subnet.is_ipv4() { 32 } else { 128 };
        let is_reserved = ip == self.subnet.network() || ip.is_ipv4() && ip == self.subnet.broadcast();
        self.on_shared_link && self.subnet.prefix() < bits - 1 && is_reserved
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.start, self.end)
    }
}
