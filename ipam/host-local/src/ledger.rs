//! Reads the holders of addresses from the store, for the decisions of [`crate::allocate`].

use std::borrow::Cow;
use std::cell::OnceCell;
use std::net::IpAddr;

use cnimble_cni::Attachment;
use cnimble_leases::boot::{self, Boot};
use cnimble_leases::files;
use cnimble_leases::holder::Holder;
use cnimble_leases::store::{Directory, Leases};

use crate::allocate::Holders;

/// The leases of a store, as one attachment sees them.
pub(crate) struct Ledger<'a> {
    dir: &'a Directory,
    leases: &'a Leases,
    /// The addresses with a lease of the attachment.
    own: Vec<IpAddr>,
    /// The addresses that the pod had before. ADD sets them.
    pub(crate) kept: Vec<IpAddr>,
    pub(crate) boot: &'a Boot,
    /// The number of the first range set among all sets of the network.
    pub(crate) first: usize,
    /// Whether other machines may hold leases in the directory. It is asked only when it matters, because most ADDs
    /// find a free address.
    shared: OnceCell<bool>,
}

impl<'a> Ledger<'a> {
    /// Makes the ledger of an attachment, without remembered addresses. `attachment` is `None` for STATUS, which has
    /// none. A lease in the old form, which names only the container, also counts as its own.
    pub(crate) fn new(
        dir: &'a Directory,
        leases: &'a Leases,
        attachment: Option<&Attachment>,
        boot: &'a Boot,
    ) -> Self {
        let own = leases.list.iter().filter(|lease| {
            attachment.is_some_and(|own| lease.owner.is(own) || lease.owner.is_container_of(own))
        });
        let own = own.map(|lease| lease.ip).collect();
        Ledger { dir, leases, own, kept: Vec::new(), boot, first: 0, shared: OnceCell::new() }
    }

    /// Returns true if a file has to be removed before the address can be given. That includes broken files, which do
    /// not count for [`Holders::is_taken`].
    pub(crate) fn is_occupied(&self, ip: IpAddr) -> bool {
        self.owner(ip).is_some()
    }

    /// Returns the holder of an address. The directory is asked if only a part of the leases was read.
    fn owner(&self, ip: IpAddr) -> Option<Cow<'_, Holder>> {
        match self.leases.owner(ip) {
            Some(owner) => Some(Cow::Borrowed(owner)),
            None if self.leases.are_all() => None,
            None => self.dir.owner(ip).map(Cow::Owned),
        }
    }
}

impl Holders for Ledger<'_> {
    /// Returns false for an empty or broken file, which holds nothing. The lock is also the Go plugin's, so no process
    /// is about to fill the file.
    fn is_taken(&self, ip: IpAddr) -> bool {
        self.owner(ip).is_some_and(|owner| *owner != Holder::Broken)
    }

    /// Returns false if other machines may hold leases in the directory, because their boots are unknown. Also returns
    /// false for something that is no lease file.
    fn is_void(&self, ip: IpAddr) -> bool {
        if *self.shared.get_or_init(|| boot::is_shared(self.dir.fd())) {
            return false;
        }
        match self.owner(ip).as_deref() {
            None | Some(Holder::Unknown) => false,
            Some(_) => match files::open_regular(self.dir.fd(), &ip.to_string()) {
                Ok(files::Entry::Regular(file)) => self.boot.is_after(&file),
                _ => false,
            },
        }
    }

    fn own(&self) -> &[IpAddr] {
        &self.own
    }

    fn kept(&self) -> &[IpAddr] {
        &self.kept
    }

    fn last(&self, set: usize) -> Option<IpAddr> {
        self.dir.last(self.first + set)
    }
}
