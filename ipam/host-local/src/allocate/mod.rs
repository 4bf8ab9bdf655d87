//! Chooses an attachment's addresses, without I/O: one of each range set. A requested address is taken from the first
//! set that holds it. Others give the address that the pod had before (`keepFor`), or the next in turn, so a freed
//! address comes last. Leases of an earlier boot are taken back only if a set is full.

use std::net::IpAddr;

use cnimble_cni::cidr;
use cnimble_leases::range::{Range, RangeSet};

/// The texts are the reference's.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AllocateError {
    #[error("failed to allocate for range {set}: requested ip {ip} is subnet's gateway")]
    Gateway { set: usize, ip: IpAddr },
    #[error(
        "failed to allocate for range {set}: requested IP address {ip} is not available in range set {ranges}"
    )]
    NotAvailable { set: usize, ip: IpAddr, ranges: RangeSet },
    #[error(
        "failed to allocate for range {set}: {ip} has been allocated to {container}, duplicate allocation is not allowed"
    )]
    Duplicate { set: usize, ip: IpAddr, container: String },
    #[error("failed to allocate for range {set}: no IP addresses available in range set: {ranges}")]
    Full { set: usize, ranges: RangeSet },
    #[error("failed to allocate all requested IPs: {}", join(.0))]
    LeftOver(Vec<IpAddr>),
}

fn join(ips: &[IpAddr]) -> String {
    let texts: Vec<String> = ips.iter().map(IpAddr::to_string).collect();
    texts.join(" ")
}

/// [`crate::ledger`] reads them from the disk.
pub(crate) trait Holders {
    /// A lease of any age.
    fn is_taken(&self, ip: IpAddr) -> bool;
    /// A lease from before this boot.
    fn is_void(&self, ip: IpAddr) -> bool;
    /// Leases of the attachment.
    fn own(&self) -> &[IpAddr];
    /// Addresses that the pod had before.
    fn kept(&self) -> &[IpAddr] {
        &[]
    }
    /// The latest address of set `set`.
    fn last(&self, set: usize) -> Option<IpAddr>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Choice<'a> {
    pub(crate) ip: IpAddr,
    pub(crate) range: &'a Range,
}

/// One of each set for `container`, `requested` first.
pub(crate) fn choose<'a>(
    sets: &'a [RangeSet],
    requested: &[IpAddr],
    container: &str,
    holders: &impl Holders,
) -> Result<Vec<Choice<'a>>, AllocateError> {
    let (wanted, left) = cidr::assign(sets, requested, |set, ip| set.range_of(ip).is_some());
    let mut choices = Vec::with_capacity(sets.len());
    for ((n, set), wanted) in sets.iter().enumerate().zip(wanted) {
        let pool = Pool { n, set, sets, holders };
        choices.push(match wanted {
            Some(ip) => {
                let choice = pool.exactly(ip)?;
                pool.refuse_second(container)?;
                choice
            }
            None => {
                pool.refuse_second(container)?;
                pool.next()?
            }
        });
    }
    if left.is_empty() { Ok(choices) } else { Err(AllocateError::LeftOver(left)) }
}

/// Checks that each set has a free address, or one that could be taken back.
pub(crate) fn has_room(sets: &[RangeSet], holders: &impl Holders) -> Result<(), AllocateError> {
    for (n, set) in sets.iter().enumerate() {
        Pool { n, set, sets, holders }.next()?;
    }
    Ok(())
}

struct Pool<'a, 'l, L> {
    n: usize,
    set: &'a RangeSet,
    sets: &'a [RangeSet],
    holders: &'l L,
}

impl<'a, L: Holders> Pool<'a, '_, L> {
    /// Sets may share a subnet, so a gateway is one for all.
    fn is_gateway(&self, ip: IpAddr) -> bool {
        let mut ranges = self.sets.iter().flat_map(RangeSet::ranges);
        ranges.any(|range| range.gateway == ip)
    }

    /// A lease of an earlier boot doesn't matter.
    fn exactly(&self, ip: IpAddr) -> Result<Choice<'a>, AllocateError> {
        let not_available = || AllocateError::NotAvailable { set: self.n, ip, ranges: self.set.clone() };
        let range = self.set.range_of(ip).ok_or_else(not_available)?;
        if self.is_gateway(ip) {
            return Err(AllocateError::Gateway { set: self.n, ip });
        }
        if self.holders.is_taken(ip) && !self.holders.is_void(ip) {
            return Err(not_available());
        }
        Ok(Choice { ip, range })
    }

    /// A free address that the pod had before, else the next in turn, else the next that can be taken back. The walks
    /// take a few more steps than there are leases.
    fn next(&self) -> Result<Choice<'a>, AllocateError> {
        let last = self.holders.last(self.n);
        let is_usable = |(ip, range): &(IpAddr, &Range)| !range.leaves_out(*ip) && !self.is_gateway(*ip);
        let kept = self.holders.kept().iter().filter_map(|ip| Some((*ip, self.set.range_of(*ip)?)));
        kept.chain(self.set.cycle(last))
            .filter(is_usable)
            .find(|(ip, _)| !self.holders.is_taken(*ip) || self.is_own_and_void(*ip))
            .or_else(|| self.set.cycle(last).filter(is_usable).find(|(ip, _)| self.holders.is_void(*ip)))
            .map(|(ip, range)| Choice { ip, range })
            .ok_or_else(|| AllocateError::Full { set: self.n, ranges: self.set.clone() })
    }

    /// This ADD removes it: its address is as good as free.
    fn is_own_and_void(&self, ip: IpAddr) -> bool {
        self.holders.own().contains(&ip) && self.holders.is_void(ip)
    }

    /// One address of a set for an attachment. Leases of an earlier boot don't count: container IDs may survive a
    /// reboot (podman's), namespaces don't.
    fn refuse_second(&self, container: &str) -> Result<(), AllocateError> {
        let mut own = self.holders.own().iter().copied();
        match own.find(|ip| self.set.range_of(*ip).is_some() && !self.is_own_and_void(*ip)) {
            None => Ok(()),
            Some(ip) => Err(AllocateError::Duplicate { set: self.n, ip, container: container.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests;
