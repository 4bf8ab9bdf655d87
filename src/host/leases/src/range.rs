//! Ranges of addresses, and sets of them: validation and arithmetic.
//!
//! An address is a `u128` and a range is its two ends, so an IPv6 /64 costs as much as an IPv4 /29. A gateway is never
//! given out. The network address (in IPv6 the subnet-router anycast address, RFC 4291 section 2.6.1) and the IPv4
//! broadcast address are given out if `rangeStart` and `rangeEnd` include them: a routed link to a pod (ptp) needs
//! neither. A subnet of two addresses has neither (RFC 3021, RFC 6164).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cnimble_cni::cidr;
use ipnetwork::IpNetwork;

/// Why a range or a set of ranges can't be used. The texts are the reference's where it
/// has one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    #[error("empty range set")]
    EmptySet,
    #[error("mixed address families")]
    MixedFamilies,
    #[error("subnets {} and {} overlap", .0.0, .0.1)]
    Overlap(Box<(Range, Range)>),
    #[error("subnet is missing")]
    NoSubnet,
    #[error("Network {0} too small to allocate from")]
    TooSmall(IpNetwork),
    #[error(
        "Network has host bits set. For a subnet mask of length {length} the network address is {network}"
    )]
    HostBits { length: u8, network: IpAddr },
    #[error("IP {ip} is not the same protocol as subnet {subnet}")]
    OtherFamily { ip: IpAddr, subnet: IpNetwork },
    #[error("RangeStart {ip} not in network {subnet}")]
    StartOutside { ip: IpAddr, subnet: IpNetwork },
    #[error("RangeEnd {ip} not in network {subnet}")]
    EndOutside { ip: IpAddr, subnet: IpNetwork },
    #[error("RangeEnd {end} is before RangeStart {start} in network {subnet}")]
    Backwards { start: IpAddr, end: IpAddr, subnet: IpNetwork },
    /// An excluded prefix has no address of the subnet.
    #[error("exclude: {prefix} is not in network {subnet}")]
    ExcludedOutside { prefix: IpNetwork, subnet: IpNetwork },
    /// No address of the range is left.
    #[error("exclude leaves no address of {0}")]
    AllExcluded(Box<Range>),
}

/// A run of addresses inside one network, both ends included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    pub subnet: IpNetwork,
    pub start: IpAddr,
    pub end: IpAddr,
    /// The router, which may lie outside.
    pub gateway: IpAddr,
    /// Whether the pods share a link on which network and broadcast address mean something.
    pub on_shared_link: bool,
}

pub fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}

/// The address of that number, in the family of `like`.
pub fn address(number: u128, like: IpAddr) -> IpAddr {
    match like {
        // Only numbers between two IPv4 addresses come in; the cut loses nothing.
        IpAddr::V4(_) => Ipv4Addr::from(number as u32).into(),
        IpAddr::V6(_) => Ipv6Addr::from(number).into(),
    }
}

fn same_family(a: IpAddr, b: IpAddr) -> bool {
    a.is_ipv4() == b.is_ipv4()
}

impl Range {
    /// Fills in missing values. The gateway is the first address after the network's, and may be given outside of it.
    /// The range has all addresses that hosts may have.
    pub fn new(
        subnet: IpNetwork,
        start: Option<IpAddr>,
        end: Option<IpAddr>,
        gateway: Option<IpAddr>,
    ) -> Result<Self, RangeError> {
        let bits = if subnet.is_ipv4() { 32 } else { 128 };
        if subnet.prefix() > bits - 1 {
            return Err(RangeError::TooSmall(subnet));
        }
        let network = subnet.network();
        if subnet.ip() != network {
            return Err(RangeError::HostBits { length: subnet.prefix(), network });
        }
        for ip in [start, end, gateway].into_iter().flatten() {
            if !same_family(ip, network) {
                return Err(RangeError::OtherFamily { ip, subnet });
            }
        }
        let first = cidr::first_address(subnet);
        let is_pair = subnet.prefix() == bits - 1;
        let start = start.unwrap_or(if is_pair { network } else { first });
        if !subnet.contains(start) {
            return Err(RangeError::StartOutside { ip: start, subnet });
        }
        let last = match subnet.broadcast() {
            IpAddr::V4(broadcast) if !is_pair => address(number(broadcast.into()) - 1, network),
            last => last,
        };
        let end = end.unwrap_or(last);
        if !subnet.contains(end) {
            return Err(RangeError::EndOutside { ip: end, subnet });
        }
        if end < start {
            return Err(RangeError::Backwards { start, end, subnet });
        }
        Ok(Range { subnet, start, end, gateway: gateway.unwrap_or(first), on_shared_link: false })
    }

    /// The rest of the range without some prefixes, as ranges in ascending order.
    ///
    /// # Errors
    /// Fails if a prefix is outside the subnet, and if no address is left.
    pub fn without(self, excluded: &[IpNetwork]) -> Result<Vec<Range>, RangeError> {
        let subnet = self.subnet;
        if let Some(&prefix) = excluded.iter().find(|prefix| !subnet.contains(prefix.ip())) {
            return Err(RangeError::ExcludedOutside { prefix, subnet });
        }
        let mut spans: Vec<_> =
            excluded.iter().map(|prefix| (number(prefix.network()), number(prefix.broadcast()))).collect();
        spans.sort_unstable();
        let end = number(self.end);
        let piece = |from, to| Range {
            start: address(from, self.start),
            end: address(to, self.start),
            ..self.clone()
        };
        let mut left = Vec::new();
        // None: behind the last number.
        let mut from = Some(number(self.start));
        for (first, last) in spans {
            let Some(start) = from.filter(|start| *start <= end) else { break };
            if let Some(before) = first.checked_sub(1).filter(|before| start <= *before) {
                left.push(piece(start, before.min(end)));
            }
            from = last.checked_add(1).map(|next| next.max(start));
        }
        if let Some(start) = from.filter(|start| *start <= end) {
            left.push(piece(start, end));
        }
        if left.is_empty() { Err(RangeError::AllExcluded(Box::new(self))) } else { Ok(left) }
    }

    /// Whether `ip` lies in the range.
    pub fn contains(&self, ip: IpAddr) -> bool {
        same_family(self.start, ip) && self.start <= ip && ip <= self.end
    }

    /// The number of addresses, saturated.
    pub fn size(&self) -> u128 {
        (number(self.end) - number(self.start)).saturating_add(1)
    }

    fn overlaps(&self, other: &Range) -> bool {
        same_family(self.start, other.start) && self.start <= other.end && other.start <= self.end
    }

    /// Whether `ip` names the network or all its hosts, so that it is given only on request.
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

/// A pool: ranges of one family that don't overlap. An attachment gets one address of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeSet(Vec<Range>);

impl RangeSet {
    /// A set of these.
    ///
    /// # Errors
    /// Fails without ranges, and for ranges that do not go together.
    pub fn new(ranges: Vec<Range>) -> Result<Self, RangeError> {
        let Some(first) = ranges.first() else {
            return Err(RangeError::EmptySet);
        };
        if ranges.iter().any(|range| !same_family(range.start, first.start)) {
            return Err(RangeError::MixedFamilies);
        }
        for (n, range) in ranges.iter().enumerate() {
            if let Some(other) = ranges.iter().skip(n + 1).find(|other| range.overlaps(other)) {
                return Err(RangeError::Overlap(Box::new((range.clone(), other.clone()))));
            }
        }
        Ok(RangeSet(ranges))
    }

    /// Marks the set as one of pods that share a link.
    pub fn on_shared_link(mut self) -> Self {
        self.0.iter_mut().for_each(|range| range.on_shared_link = true);
        self
    }

    pub fn ranges(&self) -> &[Range] {
        &self.0
    }

    /// The gateways of all ranges of some sets, which no pod gets.
    pub fn gateways(sets: &[RangeSet]) -> impl Iterator<Item = IpAddr> {
        sets.iter().flat_map(RangeSet::ranges).map(|range| range.gateway)
    }

    pub fn is_ipv4(&self) -> bool {
        self.0.iter().any(|range| range.start.is_ipv4())
    }

    pub fn range_of(&self, ip: IpAddr) -> Option<&Range> {
        self.0.iter().find(|range| range.contains(ip))
    }

    /// Whether the two have an address in common.
    pub fn overlaps(&self, other: &RangeSet) -> bool {
        self.0.iter().any(|range| other.0.iter().any(|other| range.overlaps(other)))
    }

    /// Every address once, with its range, from the one after `last` on. From the set's start if `last` isn't in it.
    pub fn cycle(&self, last: Option<IpAddr>) -> impl Iterator<Item = (IpAddr, &Range)> {
        let last = last.and_then(|last| {
            let at = self.0.iter().position(|range| range.contains(last))?;
            Some((at, number(last)))
        });
        let count = self.0.len();
        let (at, last) = match last {
            Some((at, last)) => (at, Some(last)),
            None => (0, None),
        };
        // The range with `last` comes twice: its rest at first, its beginning in the end.
        let rest = self.0.get(at).into_iter().filter_map(move |range| {
            let from = match last {
                None => number(range.start),
                Some(last) => last.checked_add(1)?,
            };
            Some((range, from, number(range.end)))
        });
        let others = self.0.iter().cycle().skip(at + 1).take(count.saturating_sub(1));
        let others = others.map(|range| (range, number(range.start), number(range.end)));
        let beginning =
            self.0.get(at).into_iter().filter_map(move |range| Some((range, number(range.start), last?)));
        rest.chain(others)
            .chain(beginning)
            .flat_map(|(range, from, to)| (from..=to).map(move |n| (address(n, range.start), range)))
    }
}

impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, range) in self.0.iter().enumerate() {
            if n > 0 {
                f.write_str(",")?;
            }
            range.fmt(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn build(subnet: &str, start: &str, end: &str, gateway: &str) -> Result<Range, RangeError> {
        let opt = |text: &str| (!text.is_empty()).then(|| ip(text));
        Range::new(subnet.parse().unwrap(), opt(start), opt(end), opt(gateway))
    }

    /// `10.0.0.0/29` or `10.0.0.0/29:START-END`, with an optional `@GATEWAY`; IPv6 too.
    fn set(ranges: &[(&str, &str, &str)]) -> RangeSet {
        let ranges = ranges.iter().map(|(subnet, start, end)| build(subnet, start, end, "").unwrap());
        RangeSet::new(ranges.collect()).unwrap()
    }

    fn addresses(set: &RangeSet, last: &str) -> Vec<String> {
        let last = (!last.is_empty()).then(|| ip(last));
        set.cycle(last).take(100).map(|(ip, _)| ip.to_string()).collect()
    }

    #[test]
    fn fills_in_the_defaults() {
        for (subnet, range, gateway) in [
            ("10.1.2.0/24", "10.1.2.1-10.1.2.254", "10.1.2.1"),
            ("10.1.2.4/30", "10.1.2.5-10.1.2.6", "10.1.2.5"),
            ("0.0.0.0/0", "0.0.0.1-255.255.255.254", "0.0.0.1"),
            ("fd00::/64", "fd00::1-fd00::ffff:ffff:ffff:ffff", "fd00::1"),
            ("fd00::4/126", "fd00::5-fd00::7", "fd00::5"),
            ("::/0", "::1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::1"),
        ] {
            let made = build(subnet, "", "", "").unwrap();
            assert_eq!(made.to_string(), range);
            assert_eq!(made.gateway, ip(gateway));
        }
        let outside = build("10.1.2.0/24", "10.1.2.0", "10.1.2.255", "192.168.0.1").unwrap();
        assert_eq!(outside.gateway, ip("192.168.0.1"));
        assert_eq!(outside.to_string(), "10.1.2.0-10.1.2.255");
    }

    #[test]
    fn refuses_odd_ranges_in_the_words_of_the_reference() {
        for ((subnet, start, end, gateway), error) in [
            (("10.1.2.1/32", "", "", ""), "Network 10.1.2.1/32 too small to allocate from"),
            (("fd00::1/128", "", "", ""), "Network fd00::1/128 too small to allocate from"),
            (
                ("10.1.2.3/24", "", "", ""),
                "Network has host bits set. For a subnet mask of length 24 the network address is 10.1.2.0",
            ),
            (("10.1.2.0/24", "10.1.3.1", "", ""), "RangeStart 10.1.3.1 not in network 10.1.2.0/24"),
            (("10.1.2.0/24", "", "10.1.1.1", ""), "RangeEnd 10.1.1.1 not in network 10.1.2.0/24"),
            (
                ("10.1.2.0/24", "10.1.2.9", "10.1.2.8", ""),
                "RangeEnd 10.1.2.8 is before RangeStart 10.1.2.9 in network 10.1.2.0/24",
            ),
            (("10.1.2.0/24", "fd00::1", "", ""), "IP fd00::1 is not the same protocol as subnet 10.1.2.0/24"),
            (("fd00::/64", "", "", "10.0.0.1"), "IP 10.0.0.1 is not the same protocol as subnet fd00::/64"),
            // The default start lies behind an explicit end: only the network address.
            (
                ("10.1.2.0/24", "", "10.1.2.0", ""),
                "RangeEnd 10.1.2.0 is before RangeStart 10.1.2.1 in network 10.1.2.0/24",
            ),
            (
                ("10.1.2.0/24", "10.1.2.255", "", ""),
                "RangeEnd 10.1.2.254 is before RangeStart 10.1.2.255 in network 10.1.2.0/24",
            ),
        ] {
            assert_eq!(build(subnet, start, end, gateway).unwrap_err().to_string(), error);
        }
    }

    #[test]
    fn a_set_is_of_one_family_and_without_overlap() {
        let of = |subnets: &[&str]| {
            let ranges = subnets.iter().map(|subnet| build(subnet, "", "", "").unwrap());
            RangeSet::new(ranges.collect()).map_err(|err| err.to_string())
        };
        assert_eq!(of(&[]).unwrap_err(), "empty range set");
        assert_eq!(of(&["10.0.0.0/24", "fd00::/64"]).unwrap_err(), "mixed address families");
        assert_eq!(
            of(&["10.0.0.0/24", "10.1.0.0/24", "10.0.0.128/25"]).unwrap_err(),
            "subnets 10.0.0.1-10.0.0.254 and 10.0.0.129-10.0.0.254 overlap"
        );
        assert_eq!(
            of(&["10.0.0.0/30", "10.0.0.4/30"]).unwrap().to_string(),
            "10.0.0.1-10.0.0.2,10.0.0.5-10.0.0.6"
        );
        assert!(of(&["::/0"]).unwrap().overlaps(&of(&["fd00::/64"]).unwrap()));
        assert!(!of(&["0.0.0.0/0"]).unwrap().overlaps(&of(&["::/0"]).unwrap()));
    }

    #[test]
    fn the_cycle_goes_around_once() {
        let one = set(&[("10.0.0.0/29", "", "")]);
        assert_eq!(
            addresses(&one, ""),
            ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]
        );
        assert_eq!(
            addresses(&one, "10.0.0.4"),
            ["10.0.0.5", "10.0.0.6", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]
        );
        assert_eq!(addresses(&one, "10.0.0.6"), addresses(&one, ""));
        assert_eq!(addresses(&one, "10.9.9.9"), addresses(&one, ""));

        let two = set(&[("10.0.0.0/30", "", ""), ("10.0.1.0/30", "", "")]);
        assert_eq!(addresses(&two, "10.0.0.1"), ["10.0.0.2", "10.0.1.1", "10.0.1.2", "10.0.0.1"]);
        assert_eq!(addresses(&two, "10.0.1.1"), ["10.0.1.2", "10.0.0.1", "10.0.0.2", "10.0.1.1"]);
    }

    #[test]
    fn excluded_prefixes_split_a_range() {
        let rest = |subnet: &str, start: &str, end: &str, excluded: &[&str]| {
            let excluded: Vec<IpNetwork> = excluded.iter().map(|prefix| prefix.parse().unwrap()).collect();
            match build(subnet, start, end, "").unwrap().without(&excluded) {
                Ok(ranges) => RangeSet::new(ranges).unwrap().to_string(),
                Err(err) => err.to_string(),
            }
        };
        for ((subnet, start, end), excluded, expected) in [
            (("10.0.0.0/24", "", ""), &[][..], "10.0.0.1-10.0.0.254"),
            (("10.0.0.0/24", "", ""), &["10.0.0.9"], "10.0.0.1-10.0.0.8,10.0.0.10-10.0.0.254"),
            // In any order, touching, one in another, and at both ends.
            (
                ("10.0.0.0/24", "", ""),
                &["10.0.0.240/28", "10.0.0.16/28", "10.0.0.20", "10.0.0.0/28", "10.0.0.33/32"],
                "10.0.0.32-10.0.0.32,10.0.0.34-10.0.0.239",
            ),
            (
                ("10.0.0.0/24", "10.0.0.10", "10.0.0.20"),
                &["10.0.0.0/29", "10.0.0.64/26"],
                "10.0.0.10-10.0.0.20",
            ),
            (
                ("10.0.0.0/24", "10.0.0.10", "10.0.0.20"),
                &["10.0.0.12/30"],
                "10.0.0.10-10.0.0.11,10.0.0.16-10.0.0.20",
            ),
            (("fd00::/64", "", ""), &["fd00::/65"], "fd00::8000:0:0:0-fd00::ffff:ffff:ffff:ffff"),
            (("::/0", "", ""), &["8000::/1"], "::1-7fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            (
                ("0.0.0.0/0", "0.0.0.0", "255.255.255.255"),
                &["0.0.0.0", "255.255.255.255"],
                "0.0.0.1-255.255.255.254",
            ),
            (
                ("10.0.0.0/24", "", ""),
                &["10.0.0.0/25", "10.0.0.128/25"],
                "exclude leaves no address of 10.0.0.1-10.0.0.254",
            ),
            (
                ("::/0", "", ""),
                &["::/0"],
                "exclude leaves no address of ::1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            ),
            (("10.0.0.0/24", "", ""), &["10.0.1.0/28"], "exclude: 10.0.1.0/28 is not in network 10.0.0.0/24"),
            (("10.0.0.0/24", "", ""), &["fd00::1"], "exclude: fd00::1/128 is not in network 10.0.0.0/24"),
        ] {
            assert_eq!(rest(subnet, start, end, excluded), expected, "{subnet} without {excluded:?}");
        }
    }

    #[test]
    fn a_range_has_as_many_addresses_as_it_gives() {
        for (subnet, start, end, size) in [
            ("10.0.0.0/24", "", "", 254),
            ("10.0.0.0/24", "10.0.0.9", "10.0.0.9", 1),
            ("10.0.0.0/31", "", "", 2),
            ("fd00::/112", "fd00::10", "fd00::1f", 16),
        ] {
            let range = build(subnet, start, end, "").unwrap();
            assert_eq!(range.size(), size, "{range}");
        }
    }

    #[test]
    fn the_largest_ranges_end_without_overflow() {
        let all = set(&[("::/0", "", "")]);
        assert_eq!(
            addresses(&all, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe")[..3],
            ["ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::1", "::2"]
        );
        assert_eq!(addresses(&all, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")[0], "::1");
        let all = set(&[("0.0.0.0/0", "0.0.0.0", "255.255.255.255")]);
        assert_eq!(addresses(&all, "255.255.255.255")[..2], ["0.0.0.0", "0.0.0.1"]);
    }
}
