//! The leases that were read from a store.

use std::net::IpAddr;

use cnimble_cni::Attachment;

use super::StoreError;
use crate::files::Identity;
use crate::holder::Holder;
use crate::index::Index;

/// An address with its holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub ip: IpAddr,
    pub owner: Holder,
}

/// A lease file that was looked at by itself.
#[derive(Debug)]
pub struct LeaseFile {
    pub owner: Holder,
    pub identity: Identity,
    /// Whether it was made before this boot, so that it protects nobody.
    pub before_boot: bool,
}

/// The leases of a network, or of one container.
#[derive(Debug, Default)]
pub struct Leases {
    /// The leases in the order of their addresses.
    pub list: Vec<Lease>,
    /// Leases that could not be read, so their owners are unknown.
    pub unread: Vec<(IpAddr, StoreError)>,
    /// The names of unfinished files. They are known only if all leases were read.
    pub temporary: Vec<String>,
    /// The index, if the list has only the leases of one container.
    pub(crate) index: Option<Index>,
    /// Whether the directory has a file for an index, valid or not.
    pub(crate) has_index: bool,
}

impl Leases {
    /// Returns whether the list has the leases of all containers, and not only those that an index named.
    pub fn are_all(&self) -> bool {
        self.index.is_none()
    }

    /// Takes out the errors of all unreadable leases, and returns those that matter to the caller. One bad block must
    /// not stop every pod of the node. So a file that the disk can't read (EIO) matters only if `concerns` says so. A
    /// lack of memory or descriptors may have hidden any lease.
    pub fn hidden(&mut self, concerns: impl Fn(IpAddr) -> bool) -> Vec<StoreError> {
        let unread = std::mem::take(&mut self.unread).into_iter();
        unread.filter(|(ip, err)| !err.is_bad_block() || concerns(*ip)).map(|(_, err)| err).collect()
    }

    /// Returns the holder of `ip`, or `None` if no lease of it was read.
    pub fn owner(&self, ip: IpAddr) -> Option<&Holder> {
        let at = self.list.binary_search_by_key(&ip, |lease| lease.ip).ok()?;
        self.list.get(at).map(|lease| &lease.owner)
    }

    /// Returns the addresses of `attachment`. As in the Go plugin, leases that name only the container count if no
    /// lease names the interface, too.
    pub fn addresses_of(&self, attachment: &Attachment) -> Vec<IpAddr> {
        let own = self.list.iter().filter(|lease| lease.owner.is(attachment));
        let own: Vec<IpAddr> = own.map(|lease| lease.ip).collect();
        if !own.is_empty() {
            return own;
        }
        let of_container = self.list.iter().filter(|lease| lease.owner.is_container_of(attachment));
        of_container.map(|lease| lease.ip).collect()
    }
}
