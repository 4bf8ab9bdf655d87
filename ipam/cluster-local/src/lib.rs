//! The CNI IPAM plugin cluster-local: gives out addresses of a cluster in blocks that nodes own.
//!
//! It is host-local with another source of ranges: the part of the configured ranges that the node owns ([`Share`]).
//! Leases, lock, undo and GC are host-local's. If the share is not enough, a separate program asks the store of the
//! cluster (`ask`), and the ADD is tried again.

mod ask;

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use cnimble_cni::{Attachment, CniResult, Code, Error, Route, cidr};
use cnimble_host_local::{self as host_local, PLUGIN as HOST_LOCAL, Source, add_from};
use cnimble_leases::cluster::config::Cluster;
use cnimble_leases::cluster::number;
use cnimble_leases::cluster::share::{self, Asker, NAMESAKE, Share};
use cnimble_leases::range::RangeSet;
use cnimble_plugin::{Call, Caps, Plugin, Role};

use ask::Request;

pub static PLUGIN: &dyn Plugin = &ClusterLocal;

struct ClusterLocal;

/// The maximum number of attempts of one ADD, each followed by a request to the store. It asks for a confirmation and
/// for each address, and again if other pods of the node take the addresses.
const TRIES: usize = 8;

impl Plugin for ClusterLocal {
    fn name(&self) -> &'static str {
        "cluster-local"
    }

    fn role(&self) -> Role {
        Role::Helper
    }

    fn needs(&self) -> Caps {
        HOST_LOCAL.needs()
    }

    /// The plugin runs the program that asks the store.
    fn starts_programs(&self, _call: &Call) -> bool {
        true
    }

    fn read_config(&self, call: &Call) -> Result<(), Error> {
        Cluster::read(&call.config, &call.args()?).map(drop)
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let args = call.args()?;
        let mut cluster = Cluster::read(&call.config, &args)?;
        let pool = cluster.pools.choose(&call.config, &args, &mut cluster.base)?;
        let need = Owned { cluster, pool, need: Cell::new(None) };
        for _ in 0..TRIES {
            match add_from(call, need.cluster.base.clone(), &need) {
                Ok(mut result) => {
                    // A process that was paused since the choice may be too late: another node may own the address by
                    // now.
                    if !Share::read(&need.cluster.base.store)?.map_or(Ok(false), |share| share.is_valid())? {
                        return Err(late());
                    }
                    prepare(call, &need.cluster, &result);
                    if need.cluster.routed {
                        lead_to_gateways(&mut result);
                    }
                    return Ok(result);
                }
                Err(err) => match need.need.take() {
                    Some(request) => ask::store(call, &request)?,
                    None => return Err(err),
                },
            }
        }
        Err(Error::new(
            Code::TRY_AGAIN_LATER,
            "other pods of this node take the addresses as fast as they are claimed",
        ))
    }

    /// Releases the leases as host-local does, and then gives a single address of the pod back to the cluster. The
    /// addresses are those of prevResult, so without one they stay with the node for now. A failure of the store is only
    /// logged.
    fn del(&self, call: &Call) -> Result<(), Error> {
        HOST_LOCAL.del(call)?;
        let ips = call.config.prev_result.iter().flat_map(|result| &result.ips);
        let ips: Vec<IpAddr> = ips.map(|ip| ip.address.ip()).collect();
        // DEL works with an invalid configuration, but then returns nothing to the store.
        if let Ok(cluster) = Cluster::read(&call.config, &Default::default())
            && let Ok(Some(share)) = Share::read(&cluster.base.store)
        {
            if share.owned.iter().any(|owned| owned.is_single() && ips.iter().any(|ip| owned.contains(*ip))) {
                give_back(call);
            } else if !share.others.is_empty() {
                // Other boots use the node's name, and this one waits until they are gone. With a single pod it has
                // waited since its ADD, so the store is asked again if that is due.
                confirm(call, &cluster, &share);
            }
        }
        Ok(())
    }

    fn checks_prev_result(&self) -> bool {
        HOST_LOCAL.checks_prev_result()
    }

    // host-local reads the prevResult from `call`.
    fn check(&self, call: &Call, _prev: &CniResult) -> Result<(), Error> {
        host_local::check(call, &Cluster::read(&call.config, &call.args()?)?.base)
    }

    /// Releases leases as host-local does, and then gives unused addresses back to the cluster. A failure of the store
    /// is only logged.
    fn gc(&self, call: &Call, valid: &[Attachment]) -> Result<(), Error> {
        HOST_LOCAL.gc(call, valid)?;
        if let Ok(cluster) = Cluster::read(&call.config, &Default::default())
            && Share::read(&cluster.base.store)?.is_some()
        {
            give_back(call);
        }
        Ok(())
    }

    /// Checks what host-local checks. Also checks that the node has a valid share with a free address in each range
    /// set. If it has not, asks the store for that, and fails with code 50 if the store refuses.
    fn status(&self, call: &Call) -> Result<(), Error> {
        let cluster = Cluster::read(&call.config, &call.args()?)?;
        HOST_LOCAL.status(call)?;
        let share = Share::read(&cluster.base.store).map_err(unavailable)?;
        let valid = match &share {
            Some(share) if share.is_valid()? => share,
            _ => return ask::store(call, &Request::Confirm).map_err(unavailable),
        };
        for set in 0..cluster.pools.usual {
            if valid.free(&cluster, set).map_err(unavailable)? == 0 {
                ask::store(call, &Request::More(set, 1)).map_err(unavailable)?;
            }
        }
        Ok(())
    }
}

/// Returns the error of STATUS for `err`, with code 50.
fn unavailable(err: Error) -> Error {
    err.with_code(Code::NOT_AVAILABLE)
}

/// Sets full prefix lengths, so that the pod expects no other address on its link, and adds on-link routes to the
/// gateways. They come before the other routes, which lead through the gateways.
fn lead_to_gateways(result: &mut CniResult) {
    let mut ways = Vec::new();
    for ip in &mut result.ips {
        ip.address = cidr::host(ip.address.ip());
        let Some(gateway) = ip.gateway else { continue };
        let nowhere: IpAddr =
            if gateway.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let way = Route::new(cidr::host(gateway), Some(nowhere));
        if !ways.contains(&way) {
            ways.push(way);
        }
    }
    result.routes.splice(0..0, ways);
}

/// Returns the error for a share that has expired, with code 11.
fn late() -> Error {
    Error::new(Code::TRY_AGAIN_LATER, "the node's right to its addresses ended during the ADD")
}

/// Prepares later ADDs. Fetches a spare block when the last one is half used, and has the store confirm the share
/// before it expires. A failure is only logged, because this ADD has its address.
fn prepare(call: &Call, cluster: &Cluster, result: &CniResult) {
    let Ok(Some(share)) = Share::read(&cluster.base.store) else { return };
    if share.namesakes() > 0 {
        log::warn!("{NAMESAKE}");
    }
    for (set, ranges) in cluster.base.sets.iter().enumerate() {
        let last = share.owned.iter().rfind(|owned| ranges.range_of(owned.last).is_some());
        let is_half_used = last
            .is_some_and(|last| result.ips.iter().any(|ip| is_in_the_middle(cluster, last, ip.address.ip())));
        if is_half_used && let Err(err) = ask::store(call, &Request::More(set, cluster.half())) {
            // The store does not answer, so the confirmation would take as long.
            return log::warn!("no spare block: {err}");
        }
    }
    confirm(call, cluster, &share);
}

/// Returns true if the address is the first one of the second half of its block, and the block is `owned`. A single
/// address has no halves.
fn is_in_the_middle(cluster: &Cluster, owned: &share::Owned, ip: IpAddr) -> bool {
    let block = cluster.block_of(ip);
    block != ip
        && owned.contains(ip)
        && !owned.is_single()
        && usize::try_from(number(ip) - number(block)) == Ok(cluster.half())
}

/// Has the store confirm the share if that is due and nobody has just tried. A failure is only logged.
fn confirm(call: &Call, cluster: &Cluster, share: &Share) {
    if share.is_due(cluster, Asker::Plugin).unwrap_or(false)
        && !ask::was_tried(cluster)
        && let Err(err) = ask::store(call, &Request::Confirm)
    {
        log::warn!("the node's addresses aren't confirmed: {err}");
    }
}

/// Gives unused addresses back to the cluster. After a failure, which is only logged, they stay with the node until a
/// later try.
fn give_back(call: &Call) {
    if let Err(err) = ask::store(call, &Request::Tidy) {
        log::warn!("unused addresses stay with this node: {err}");
    }
}

/// The part of the ranges that the node owns, as the [`Source`] of an ADD.
struct Owned {
    cluster: Cluster,
    /// The numbers of the range sets that the pod gets addresses of.
    pool: Range<usize>,
    /// The request that would let the failed ADD succeed. `None` if no request would help.
    need: Cell<Option<Request>>,
}

impl Owned {
    /// Returns a requested address that is in the ranges but that the node does not own.
    fn foreign(&self, share: &Share) -> Option<IpAddr> {
        let base = &self.cluster.base;
        let sets = base.sets.get(self.pool.clone()).unwrap_or_default();
        base.requested.iter().copied().find(|ip| {
            let is_given = sets.iter().any(|set| set.range_of(*ip).is_some());
            let is_given = is_given && !self.cluster.pools.reserved.contains(ip);
            is_given && !share.owned.iter().any(|owned| owned.contains(*ip))
        })
    }
}

impl Source for Owned {
    /// Returns the owned part of each range set. Fails if the share is not valid, if a requested address is not the
    /// node's, or if the node owns nothing of a set. `need` then has the request that helps.
    fn sets(&self) -> Result<Vec<RangeSet>, Error> {
        let share = Share::read(&self.cluster.base.store)?;
        let share = share.map_or(Ok(None), |share| share.is_valid().map(|valid| valid.then_some(share)))?;
        let Some(share) = share else {
            self.need.set(Some(Request::Confirm));
            return Err(late());
        };
        // The requested address comes first. Otherwise the node would claim a block that the pod does not need.
        if let Some(ip) = self.foreign(&share) {
            self.need.set(Some(Request::Address(ip)));
            return Err(Error::new(Code::NO_ADDRESS, format!("the node doesn't own {ip}")));
        }
        let parts = share.parts(&self.cluster).into_iter().skip(self.pool.start).take(self.pool.len());
        let owned = parts.enumerate().map(|(set, part)| {
            part.ok_or_else(|| {
                self.is_full(set);
                Error::new(Code::NO_ADDRESS, format!("the node owns no address of range set {set}"))
            })
        });
        owned.collect()
    }

    fn is_full(&self, set: usize) {
        self.need.set(Some(Request::More(self.pool.start + set, 1)));
    }

    fn first(&self) -> usize {
        self.pool.start
    }
}
