//! Finds the block or address to claim next: the first candidate that has no owner.

use std::net::IpAddr;

use cnimble_leases::cluster::share::Owned;
use cnimble_leases::cluster::{address, config::Cluster, number};
use cnimble_leases::range::{Range, RangeSet};

use crate::Result;
use crate::record::Owner;
use crate::store::Store;

/// A block or address that is free to claim.
pub(crate) struct Candidate<E> {
    pub(crate) owned: Owned,
    /// The released owner and its entry, which the claim compares. It is `None` if there is no entry.
    pub(crate) left: Option<(Owner, E)>,
}

/// The blocks of a range. Nodes begin at different ones, by a hash of the name, so that they rarely claim the same.
struct Blocks<'c> {
    cluster: &'c Cluster,
    range: Range,
    /// The number of the first block: its first address without the host bits.
    low: u128,
    high: u128,
    /// The number of the block that this node tries first.
    begin: u128,
}

impl<'c> Blocks<'c> {
    fn of(cluster: &'c Cluster, range: &Range) -> Self {
        let low = number(range.start) >> cluster.host_bits;
        let high = number(range.end) >> cluster.host_bits;
        let hash = cnimble_cni::hash16(&cluster.node);
        let hash = u128::from_str_radix(hash.get(..12).unwrap_or("0"), 16).unwrap_or(0);
        let begin = low + hash % (high - low + 1);
        Blocks { cluster, range: range.clone(), low, high, begin }
    }

    /// Returns the first addresses of all blocks, from `begin` to the end and then from the start. Each run is sorted.
    fn runs(&self) -> [Box<dyn Iterator<Item = IpAddr> + '_>; 2] {
        [Box::new(self.run(self.begin, self.high + 1)), Box::new(self.run(self.low, self.begin))]
    }

    /// Returns the first addresses of the blocks with the numbers `from` to below `to`.
    fn run(&self, from: u128, to: u128) -> impl Iterator<Item = IpAddr> + '_ {
        (from..to).map(|n| address(n << self.cluster.host_bits, self.range.start))
    }

    /// Returns whether the owner of the block at `first` could give an address of the range to a pod. It could not if
    /// the range and the block have no address in common, or the gateway alone.
    fn is_usable(&self, first: IpAddr) -> bool {
        let (start, end) = (self.range.start.max(first), self.range.end.min(self.cluster.last_of(first)));
        start <= end && !(start == end && start == self.range.gateway)
    }

    /// Returns the addresses behind the block's last one that no owner of the block gets. Nodes claim them one by one.
    fn tail(&self, first: IpAddr) -> impl Iterator<Item = IpAddr> + '_ {
        let from = number(self.cluster.last_of(first)) + 1;
        let tail = (from..from + self.cluster.tail()).map(move |n| address(n, first));
        tail.filter(|ip| self.range.contains(*ip) && *ip != self.range.gateway && !self.range.leaves_out(*ip))
    }
}

/// Returns a free block of the range set, or `None` if there is none. Those in `taken` count as owned.
pub(crate) async fn block<S: Store>(
    session: &mut S,
    cluster: &Cluster,
    set: &RangeSet,
    taken: &[Owned],
) -> Result<Option<Candidate<S::Entry>>> {
    for range in set.ranges() {
        let blocks = Blocks::of(cluster, range);
        for run in blocks.runs() {
            let usable = run.filter(|first| blocks.is_usable(*first) && !has(taken, *first));
            let mut candidates =
                usable.map(|first| Owned { first, last: cluster.last_of(first), idle: None });
            if let Some(found) = first_free(session, &mut candidates).await? {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}

/// Returns a free single address of the range set, or `None` if there is none. Those in `taken` count as owned.
pub(crate) async fn single<S: Store>(
    session: &mut S,
    cluster: &Cluster,
    set: &RangeSet,
    taken: &[Owned],
) -> Result<Option<Candidate<S::Entry>>> {
    let gateways: Vec<IpAddr> = RangeSet::gateways(&cluster.base.sets).collect();
    let reserved = &cluster.pools.reserved;
    for range in set.ranges() {
        let blocks = Blocks::of(cluster, range);
        for run in blocks.runs() {
            let tails = run.flat_map(|first| blocks.tail(first));
            let tails =
                tails.filter(|ip| !gateways.contains(ip) && !reserved.contains(ip) && !has(taken, *ip));
            let mut candidates = tails.map(|ip| Owned { first: ip, last: ip, idle: None });
            if let Some(found) = first_free(session, &mut candidates).await? {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}

/// Returns whether a block or address that begins here is taken.
fn has(taken: &[Owned], first: IpAddr) -> bool {
    taken.iter().any(|owned| owned.first == first)
}

/// Returns the first of the sorted `candidates` that has no owner, or one whose release others may use by now.
async fn first_free<S: Store>(
    session: &mut S,
    candidates: &mut dyn Iterator<Item = Owned>,
) -> Result<Option<Candidate<S::Entry>>> {
    let mut candidates = candidates.peekable();
    while let Some(from) = candidates.peek() {
        let mut window = session.owners(from).await?;
        let last = window.owners.keys().next_back().copied();
        while let Some(first) = candidates.peek().map(|owned| owned.first) {
            if !window.is_last && last.is_some_and(|last| last < first) {
                break;
            }
            let left = window.owners.remove(&first);
            let is_free = left.as_ref().is_none_or(|(owner, _)| owner.is_free());
            if let Some(owned) = candidates.next().filter(|_| is_free) {
                return Ok(Some(Candidate { owned, left }));
            }
        }
    }
    Ok(None)
}
