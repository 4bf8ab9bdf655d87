//! The leases that were read from a store.

use std::net::IpAddr;

use cnimble_cni::Attachment;

use super::StoreError;
use crate::files::Identity;
use crate::holder::Holder;
use crate::index::Index;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub ip: IpAddr,
    pub owner: Holder,
}

/// A lease file, looked at by itself.
#[derive(Debug)]
pub struct Found {
    pub owner: Holder,
    pub identity: Identity,
    pub before_boot: bool,
}

#[derive(Debug, Default)]
pub struct Leases {
    pub list: Vec<Lease>,
    /// Leases that could not be read, so their owners are unknown.
    pub unread: Vec<(IpAddr, StoreError)>,
    pub temporary: Vec<String>,
    /// The index, if the list has only the leases of one container.
    pub(crate) index: Option<Index>,
    pub(crate) has_index: bool,
}

impl Leases {
    pub fn are_all(&self) -> bool {
        self.index.is_none()
    }

    /// Takes out the relevant errors of unreadable leases. One bad block must not stop every pod of the node, so an
    /// unreadable file (EIO) counts only if `concerns` says so. A lack of memory or descriptors may have hidden any lease.
    pub fn hidden(&mut self, concerns: impl Fn(IpAddr) -> bool) -> Vec<StoreError> {
        let unread = std::mem::take(&mut self.unread).into_iter();
        unread.filter(|(ip, err)| !err.is_bad_block() || concerns(*ip)).map(|(_, err)| err).collect()
    }

    pub fn owner(&self, ip: IpAddr) -> Option<&Holder> {
        let at = self.list.binary_search_by_key(&ip, |lease| lease.ip).ok()?;
        self.list.get(at).map(|lease| &lease.owner)
    }

    /// The leases of `attachment`. As in the reference, leases that name only the container count if no lease names the
    /// interface too.
    pub fn of(&self, attachment: &Attachment) -> Vec<IpAddr> {
        let pick = |is: &dyn Fn(&Holder) -> bool| -> Vec<IpAddr> {
            let own = self.list.iter().filter(|lease| is(&lease.owner));
            own.map(|lease| lease.ip).collect()
        };
        let own = pick(&|owner| owner.is(attachment));
        if own.is_empty() { pick(&|owner| owner.is_container_of(attachment)) } else { own }
    }
}
