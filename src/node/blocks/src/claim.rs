//! Which block or address to try next: the first of some candidates that etcd has no owner for.

use std::collections::BTreeMap;
use std::net::IpAddr;

use etcd_client::GetOptions;

use cnimble_leases::cluster::{address, config::Cluster, number};
use cnimble_leases::range::{Range, RangeSet};

use crate::record::Owner;
use crate::session::{Session, parse};
use crate::{Result, keys};

const WINDOW: i64 = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) ip: IpAddr,
    /// The revision of the key that an owner has left; `None` if there is no key.
    pub(crate) left: Option<i64>,
}

/// The blocks of a range, and which of them a node tries first: nodes begin at different ones.
struct Blocks<'c> {
    cluster: &'c Cluster,
    range: Range,
    low: u128,
    high: u128,
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

    fn runs(&self) -> [Box<dyn Iterator<Item = IpAddr> + '_>; 2] {
        let run =
            |from: u128, to: u128| (from..to).map(|n| address(n << self.cluster.host_bits, self.range.start));
        [Box::new(run(self.begin, self.high + 1)), Box::new(run(self.low, self.begin))]
    }

    /// Whether the owner of the block at `first` could give an address of the range.
    fn is_usable(&self, first: IpAddr) -> bool {
        let (start, end) = (self.range.start.max(first), self.range.end.min(self.cluster.last_of(first)));
        start <= end && !(start == end && start == self.range.gateway)
    }

    /// The addresses of a block that no node owns with it.
    fn tail(&self, first: IpAddr) -> impl Iterator<Item = IpAddr> + '_ {
        let from = number(self.cluster.last_of(first)) + 1;
        let tail = (from..from + self.cluster.tail()).map(move |n| address(n, first));
        tail.filter(|ip| self.range.contains(*ip) && *ip != self.range.gateway && !self.range.leaves_out(*ip))
    }
}

pub(crate) async fn block(
    session: &mut Session,
    cluster: &Cluster,
    set: &RangeSet,
) -> Result<Option<Candidate>> {
    let prefix = session.keys.blocks();
    for range in set.ranges() {
        let blocks = Blocks::of(cluster, range);
        for run in blocks.runs() {
            let mut candidates = run.filter(|first| blocks.is_usable(*first));
            if let Some(found) = first_free(session, &prefix, &mut candidates).await? {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}

pub(crate) async fn single(
    session: &mut Session,
    cluster: &Cluster,
    set: &RangeSet,
) -> Result<Option<Candidate>> {
    let prefix = session.keys.singles();
    let gateways: Vec<IpAddr> = RangeSet::gateways(&cluster.base.sets).collect();
    let reserved = &cluster.pools.reserved;
    for range in set.ranges() {
        let blocks = Blocks::of(cluster, range);
        for run in blocks.runs() {
            let tails = run.flat_map(|first| blocks.tail(first));
            let mut candidates = tails.filter(|ip| !gateways.contains(ip) && !reserved.contains(ip));
            if let Some(found) = first_free(session, &prefix, &mut candidates).await? {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}

/// The first of the sorted `candidates` that has no key with this prefix, or a free one.
async fn first_free(
    session: &mut Session,
    prefix: &str,
    candidates: &mut dyn Iterator<Item = IpAddr>,
) -> Result<Option<Candidate>> {
    let mut candidates = candidates.peekable();
    while let Some(first) = candidates.peek().copied() {
        let from = format!("{prefix}{}", keys::text(first));
        let end = format!("{prefix}~");
        let options = GetOptions::new().with_range(end).with_limit(WINDOW);
        let kvs = session.range(from, Some(options)).await?;
        let is_all = kvs.len() < usize::try_from(WINDOW).unwrap_or(usize::MAX);
        let mut known = BTreeMap::new();
        for kv in &kvs {
            if let Some(ip) = keys::ip(&String::from_utf8_lossy(kv.key())) {
                known.insert(ip, (parse::<Owner>(kv)?, kv.mod_revision()));
            }
        }
        let last = known.keys().next_back().copied();
        while let Some(ip) = candidates.peek().copied() {
            if !is_all && last.is_some_and(|last| last < ip) {
                break;
            }
            match known.get(&ip) {
                None => return Ok(Some(Candidate { ip, left: None })),
                Some((owner, revision)) if owner.is_free() => {
                    return Ok(Some(Candidate { ip, left: Some(*revision) }));
                }
                Some(_) => candidates.next(),
            };
        }
    }
    Ok(None)
}
