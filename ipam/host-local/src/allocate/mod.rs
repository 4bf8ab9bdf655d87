//! Chooses an attachment's addresses, without I/O: one of each range set. A requested address is taken from the first
//! set that holds it. Other sets give the address that the pod had before (`keepFor`), or the next in turn, so that a
//! freed address comes last.
//!
//! A lease of an earlier boot protects its address only until the set is full. It does not protect it from an
//! attachment that requests the address, or that has left the lease itself.

use std::net::IpAddr;

use cnimble_cni::cidr;
use cnimble_leases::range::{Range, RangeSet};

/// The reason why an attachment gets no address. The texts are the Go plugin's.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AllocateError {
    /// The requested address is a gateway of some range.
    #[error("failed to allocate for range {set}: requested ip {ip} is subnet's gateway")]
    Gateway { set: usize, ip: IpAddr },
    /// The requested address has a lease of this boot.
    #[error(
        "failed to allocate for range {set}: requested IP address {ip} is not available in range set {ranges}"
    )]
    NotAvailable { set: usize, ip: IpAddr, ranges: RangeSet },
    /// The attachment has an address of this set already.
    #[error(
        "failed to allocate for range {set}: {ip} has been allocated to {container}, duplicate allocation is not allowed"
    )]
    Duplicate { set: usize, ip: IpAddr, container: String },
    /// No address of the set is left.
    #[error("failed to allocate for range {set}: no IP addresses available in range set: {ranges}")]
    Full { set: usize, ranges: RangeSet },
    /// These requested addresses are in no set, or their sets gave other requested ones.
    #[error("failed to allocate all requested IPs: {}", join(.0))]
    LeftOver(Vec<IpAddr>),
}

/// Returns the addresses in one line, for an error text.
fn join(ips: &[IpAddr]) -> String {
    let texts: Vec<String> = ips.iter().map(IpAddr::to_string).collect();
    texts.join(" ")
}

/// The holders of addresses. [`crate::ledger`] reads them from the disk.
pub(crate) trait Holders {
    /// Returns true if the address has a lease of any age.
    fn is_taken(&self, ip: IpAddr) -> bool;
    /// Returns true if the address has a lease that is certainly from before this boot.
    fn is_void(&self, ip: IpAddr) -> bool;
    /// Returns the addresses with leases of the attachment, of any age.
    fn own(&self) -> &[IpAddr];
    /// Returns the addresses that the pod had before, as far as they are remembered.
    fn kept(&self) -> &[IpAddr] {
        &[]
    }
    /// Returns the address of set `set` that was given last. The turn continues after it.
    fn last(&self, set: usize) -> Option<IpAddr>;
}

/// A chosen address with its range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Choice<'a> {
    pub(crate) ip: IpAddr,
    pub(crate) range: &'a Range,
}

/// Chooses one address of each set for the attachment, the `requested` ones first. `container` is only for the error.
///
/// Fails if a requested address is not available, if a set is full, or if the attachment has an address of the set
/// already. Nothing is written, so a failure needs no undo.
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

/// One range set during a choice.
struct Pool<'a, 'l, L> {
    /// The number of the set, for errors and for [`Holders::last`].
    n: usize,
    set: &'a RangeSet,
    /// All sets of the choice.
    sets: &'a [RangeSet],
    holders: &'l L,
}

impl<'a, L: Holders> Pool<'a, '_, L> {
    /// Returns true if the address is the gateway of any set. Sets may share a subnet, so a gateway counts for all of
    /// them.
    fn is_gateway(&self, ip: IpAddr) -> bool {
        let mut ranges = self.sets.iter().flat_map(RangeSet::ranges);
        ranges.any(|range| range.gateway == ip)
    }

    /// Takes a requested address. A lease from before this boot does not count, even if the set has free addresses.
    fn exactly(&self, ip: IpAddr) -> Result<Choice<'a>, AllocateError> {
        let range = self.set.range_of(ip).ok_or_else(|| self.not_available(ip))?;
        if self.is_gateway(ip) {
            return Err(AllocateError::Gateway { set: self.n, ip });
        }
        if self.holders.is_taken(ip) && !self.holders.is_void(ip) {
            return Err(self.not_available(ip));
        }
        Ok(Choice { ip, range })
    }

    /// Returns the error for a requested address that the set cannot give.
    fn not_available(&self, ip: IpAddr) -> AllocateError {
        AllocateError::NotAvailable { set: self.n, ip, ranges: self.set.clone() }
    }

    /// Returns true if the range gives the address to pods: it does not leave it out, and it is no gateway.
    fn is_for_pods(&self, ip: IpAddr, range: &Range) -> bool {
        !range.leaves_out(ip) && !self.is_gateway(ip)
    }

    /// Takes a free address that the pod had before, or else the next free one in turn. If the set is full, takes the
    /// next one with a lease from before this boot. The walks take a few more steps than there are leases.
    fn next(&self) -> Result<Choice<'a>, AllocateError> {
        let last = self.holders.last(self.n);
        let kept = self.holders.kept().iter().filter_map(|ip| Some((*ip, self.set.range_of(*ip)?)));
        kept.chain(self.set.cycle(last))
            .filter(|(ip, range)| self.is_for_pods(*ip, range))
            .find(|(ip, _)| !self.holders.is_taken(*ip) || self.is_own_and_void(*ip))
            .or_else(|| {
                let mut all = self.set.cycle(last);
                all.find(|(ip, range)| self.is_for_pods(*ip, range) && self.holders.is_void(*ip))
            })
            .map(|(ip, range)| Choice { ip, range })
            .ok_or_else(|| AllocateError::Full { set: self.n, ranges: self.set.clone() })
    }

    /// Returns true if the attachment itself has left the lease in an earlier boot. This ADD removes it, so the address
    /// counts as free.
    fn is_own_and_void(&self, ip: IpAddr) -> bool {
        self.holders.own().contains(&ip) && self.holders.is_void(ip)
    }

    /// Fails if the attachment already has an address of the set. Leases from before this boot do not count. Container
    /// IDs may survive a reboot (those of podman do), while namespaces do not.
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
