//! Sets of ranges, and the order in which their addresses are given out.

use std::fmt;
use std::net::IpAddr;

use super::{Range, address, number, same_family};

/// Ranges of one family that don't overlap. An attachment gets one address of the set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeSet(Vec<Range>);

impl RangeSet {
    /// Returns a set of these ranges.
    ///
    /// # Errors
    /// Fails without ranges, for ranges of both families, and for ranges that overlap.
    pub fn new(ranges: Vec<Range>) -> Result<Self, String> {
        let first = ranges.first().ok_or("empty range set")?;
        if ranges.iter().any(|range| !same_family(range.start, first.start)) {
            return Err("mixed address families".to_owned());
        }
        for (n, range) in ranges.iter().enumerate() {
            if let Some(other) = ranges.iter().skip(n + 1).find(|other| range.overlaps(other)) {
                return Err(format!("subnets {range} and {other} overlap"));
            }
        }
        Ok(RangeSet(ranges))
    }

    /// Marks the set as one for pods that share a link.
    pub fn on_shared_link(mut self) -> Self {
        self.0.iter_mut().for_each(|range| range.on_shared_link = true);
        self
    }

    pub fn ranges(&self) -> &[Range] {
        &self.0
    }

    /// Returns the gateways of all ranges of some sets. No pod gets one of them.
    pub fn gateways(sets: &[RangeSet]) -> impl Iterator<Item = IpAddr> {
        sets.iter().flat_map(RangeSet::ranges).map(|range| range.gateway)
    }

    pub fn is_ipv4(&self) -> bool {
        self.0.iter().any(|range| range.start.is_ipv4())
    }

    /// Returns the range that contains `ip`.
    pub fn range_of(&self, ip: IpAddr) -> Option<&Range> {
        self.0.iter().find(|range| range.contains(ip))
    }

    /// Returns whether both have an address in common.
    pub fn overlaps(&self, other: &RangeSet) -> bool {
        self.0.iter().any(|range| other.0.iter().any(|other| range.overlaps(other)))
    }

    /// Returns every address once, with its range. It begins behind `last`, or at the beginning of the set if `last`
    /// isn't in it. Gateways and reserved addresses are among these.
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
        // The range with `last` comes twice: first with its rest, and at the end with its beginning.
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
