//! The store: a directory for each network, with a file for each lease.
//!
//! The layout is that of the Go plugin, so that either can take over from the other at any moment:
//!
//! | file | content | mode |
//! |---|---|---|
//! | the address, `10.1.2.3` or `fd00::2` | [`crate::holder`] | 0600 |
//! | `last_reserved_ip.N` | the address that was given last from range set N | 0600 |
//! | `lock` | nothing; `flock(2)` | 0750 |
//!
//! [`Directory`] reads, [`Store`] holds the lock (`locking`) and writes. One lock spans a whole verb, so ADD writes
//! exactly its decision. [`Directory::leases`] reads every lease once. For one container among many,
//! [`Directory::leases_of`] asks the [`index`].

mod directory;
mod error;
mod locking;
mod reading;

use std::io;
use std::net::IpAddr;

pub use crate::files::Identity;
use crate::lock::{LOCK, Lock};
use crate::{INDEX, KEPT, files, index, is_temporary};

pub use directory::{Directory, probe_writing};
pub use error::StoreError;
pub use locking::Noted;
pub use reading::{Lease, LeaseFile, Leases};

type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Returns the name of the file with the address that was given last from the range set with this number.
pub fn last_name(set: usize) -> String {
    format!("last_reserved_ip.{set}")
}

/// A network's directory with its lock, which is held until the value is dropped.
#[derive(Debug)]
pub struct Store {
    dir: Directory,
    lock: Lock,
}

impl std::ops::Deref for Store {
    type Target = Directory;
    fn deref(&self) -> &Directory {
        &self.dir
    }
}

impl Store {
    /// Notes in the index what this process has changed since it read `leases`. Call it last, because a later change of
    /// the directory makes the index invalid. If all leases were read, rebuilds the index, or removes it if there are
    /// few leases.
    pub fn update_index(&self, leases: &Leases, container_id: &str, added: &[IpAddr], removed: &[IpAddr]) {
        let key = index::key(container_id);
        if let Some(index) = &leases.index {
            if index.change(self.fd(), key, added, removed).is_none() {
                log::debug!("the index of {} is out of date", self.path().display());
            }
            return;
        }
        let old = leases.list.iter().filter(|lease| !removed.contains(&lease.ip));
        let old = old.filter_map(|lease| Some((index::key(lease.owner.container()?), lease.ip)));
        let entries: Vec<_> = old.chain(added.iter().map(|ip| (key, *ip))).collect();
        if entries.len() >= index::MANY {
            index::rebuild(self.fd(), &entries);
        } else if leases.has_index {
            index::discard(self.fd());
        }
    }

    /// Removes the index if few leases remain of `leases` without `removed` ones. Otherwise an outdated index would
    /// stay. `leases` must be all leases of the directory.
    pub fn forget_index(&self, leases: &Leases, removed: usize) {
        if leases.has_index && leases.list.len().saturating_sub(removed) < index::MANY {
            index::discard(self.fd());
        }
    }

    /// Removes the unfinished files of killed processes. A failure is only logged.
    pub fn sweep(&self, leases: &Leases) {
        for name in &leases.temporary {
            if let Err(err) = files::remove(self.fd(), name) {
                log::warn!("removing {}: {err}", self.path().join(name).display());
            }
        }
    }

    /// Removes the lease of `ip`. A missing lease is no error.
    ///
    /// # Errors
    /// Fails if the system refuses it.
    pub fn remove(&self, ip: IpAddr) -> Result<()> {
        let name = ip.to_string();
        log::debug!("releasing {}", self.path().join(&name).display());
        files::remove(self.fd(), &name).map_err(|err| self.failed("removing", &name, err))
    }

    /// Removes a file if it is still the one that was found. Otherwise does nothing, and returns false.
    ///
    /// # Errors
    /// Fails if the system refuses it.
    pub fn remove_found(&self, name: &str, found: Identity) -> Result<bool> {
        // Another process has removed it, or has given the address to another pod.
        if self.identity(name)? != Some(found) {
            return Ok(false);
        }
        files::remove(self.fd(), name).map_err(|err| self.failed("removing", name, err))?;
        Ok(true)
    }

    /// Removes the directory with everything that host-local keeps beside the leases. If it has a lease or a file of
    /// another program, removes nothing and returns the name of that file.
    pub fn remove_directory(&self) -> Result<Option<String>> {
        let names: Vec<String> =
            self.names()?.into_iter().filter(|name| ![".", ".."].contains(&name.as_str())).collect();
        if let Some(other) = names.iter().find(|name| !is_known(name)) {
            return Ok(Some(other.clone()));
        }
        for name in names.iter().filter(|name| *name != LOCK) {
            files::remove(self.fd(), name).map_err(|err| self.failed("removing", name, err))?;
        }
        files::remove(self.fd(), LOCK).map_err(|err| self.failed("removing", LOCK, err))?;
        match std::fs::remove_dir(self.path()) {
            // An ADD has made a file meanwhile, which stays.
            Err(err) if err.kind() == io::ErrorKind::DirectoryNotEmpty => {
                Ok(self.names()?.into_iter().find(|name| ![".", ".."].contains(&name.as_str())))
            }
            Err(err) if err.kind() != io::ErrorKind::NotFound => Err(self.failed("removing", "", err)),
            _ => Ok(None),
        }
    }

    /// Removes the lock and the index if nothing else is in the directory, which stays. If our lock has lost its name,
    /// another process may hold a new one. Then everything stays.
    pub fn remove_if_empty(&self) -> Result<()> {
        if !self.lock.guards(self.fd(), self.path()) {
            return Ok(());
        }
        let mut is_used = false;
        self.each_entry(|name, _| {
            let name = name.to_bytes();
            is_used |= !matches!(name, b"." | b".." | b"lock") && name != INDEX.as_bytes();
            Ok(())
        })?;
        if is_used {
            return Ok(());
        }
        files::remove(self.fd(), INDEX).map_err(|err| self.failed("removing", INDEX, err))?;
        files::remove(self.fd(), LOCK).map_err(|err| self.failed("removing", LOCK, err))
    }
}

/// Returns whether host-local keeps a file of this name beside the leases.
fn is_known(name: &str) -> bool {
    [LOCK, INDEX, KEPT].contains(&name) || name.starts_with("last_reserved_ip.") || is_temporary(name)
}
