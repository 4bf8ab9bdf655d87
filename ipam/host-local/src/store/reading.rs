//! What a reading of the store has brought.

use std::net::IpAddr;

use cnimble_cni::Attachment;

use super::StoreError;
use crate::index::Index;
use crate::owner::Owner;

/// A lease file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) ip: IpAddr,
    pub(crate) owner: Owner,
}

/// What the directory holds.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    /// Sorted by address.
    pub(crate) list: Vec<Lease>,
    /// Leases that could not be read, so that nobody knows whose they are.
    pub(crate) unread: Vec<(IpAddr, StoreError)>,
    /// Files that a killed process left half-written.
    pub(crate) temporary: Vec<String>,
    /// The list has one container's leases only: those that this index knew of.
    pub(crate) index: Option<Index>,
    /// There is a file of the index's name.
    pub(crate) has_index: bool,
}

impl Leases {
    /// Whether the list has all leases.
    pub(crate) fn are_all(&self) -> bool {
        self.index.is_none()
    }

    /// Takes out why leases couldn't be read that may matter. One bad block must not stop every
    /// pod of the node: a file that can't be read (EIO) only counts if `concerns` says so. A
    /// lack of memory or descriptors may have hidden anybody's.
    pub(crate) fn hidden(&mut self, concerns: impl Fn(IpAddr) -> bool) -> Vec<StoreError> {
        let unread = std::mem::take(&mut self.unread).into_iter();
        unread.filter(|(ip, err)| !err.is_bad_block() || concerns(*ip)).map(|(_, err)| err).collect()
    }

    /// Who holds `ip`; `None` if there is no lease.
    pub(crate) fn owner(&self, ip: IpAddr) -> Option<&Owner> {
        let at = self.list.binary_search_by_key(&ip, |lease| lease.ip).ok()?;
        self.list.get(at).map(|lease| &lease.owner)
    }

    /// `attachment`'s leases. Those that name only the container count where no lease names
    /// the interface too, as in the reference.
    pub(crate) fn of(&self, attachment: &Attachment) -> Vec<IpAddr> {
        let pick = |is: &dyn Fn(&Owner) -> bool| -> Vec<IpAddr> {
            let own = self.list.iter().filter(|lease| is(&lease.owner));
            own.map(|lease| lease.ip).collect()
        };
        let own = pick(&|owner| owner.is(attachment));
        if own.is_empty() { pick(&|owner| owner.is_container_of(attachment)) } else { own }
    }
}
