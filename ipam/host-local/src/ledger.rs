//! The holders of addresses, read from the store, for the decisions of [`crate::allocate`].

use std::borrow::Cow;
use std::cell::OnceCell;
use std::net::IpAddr;

use cnimble_cni::Attachment;
use cnimble_leases::boot::{self, Boot};
use cnimble_leases::files;
use cnimble_leases::holder::Holder;
use cnimble_leases::store::{Directory, Leases};

use crate::allocate::Holders;

/// Seen by one attachment.
pub(crate) struct Ledger<'a> {
    dir: &'a Directory,
    leases: &'a Leases,
    own: Vec<IpAddr>,
    /// Addresses that the pod had before.
    pub(crate) kept: Vec<IpAddr>,
    pub(crate) boot: &'a Boot,
    /// The number of the first range set among all of the network.
    pub(crate) first: usize,
    /// Asked for only when it matters: most ADDs find a free address.
    shared: OnceCell<bool>,
}

impl<'a> Ledger<'a> {
    /// `attachment` is `None` for STATUS, which asks for no attachment.
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

    /// A file has to go before `ip` can be given.
    pub(crate) fn is_occupied(&self, ip: IpAddr) -> bool {
        self.owner(ip).is_some()
    }

    fn owner(&self, ip: IpAddr) -> Option<Cow<'_, Holder>> {
        match self.leases.owner(ip) {
            Some(owner) => Some(Cow::Borrowed(owner)),
            None if self.leases.are_all() => None,
            None => self.dir.owner(ip).map(Cow::Owned),
        }
    }
}

impl Holders for Ledger<'_> {
    /// An empty or broken file holds nothing. We have the Go plugin's lock, so no process is about to fill it.
    fn is_taken(&self, ip: IpAddr) -> bool {
        self.owner(ip).is_some_and(|owner| *owner != Holder::Broken)
    }

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
