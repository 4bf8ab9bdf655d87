//! Leases of host-local.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::fcntl::OFlag;

use cnimble_cni::Error;
use cnimble_leases::lock::{LOCK, Lock, LockError};
use cnimble_leases::owner::Owner as Holder;
use cnimble_life::Verdict;
use cnimble_life::leases::{Book, Identity, Lease, Store};

use super::{Finding, Kind, Whose};

pub(super) fn findings(book: &Book) -> impl Iterator<Item = Finding> {
    book.all().filter_map(|(store, lease)| finding(store, lease))
}

fn finding(store: &Store, lease: &Lease) -> Option<Finding> {
    let (why, doubt) = match &lease.verdict {
        Verdict::Lives => return None,
        Verdict::Orphan(why) => (why.clone(), None),
        Verdict::Doubt(doubt) => ("nothing shows that its pod lives".to_owned(), Some(doubt.clone())),
    };
    let path = lease.path.display();
    let (kind, what) = match &lease.held {
        None => (Kind::UnfinishedFile, format!("file {path}")),
        Some((_, Holder::Nobody | Holder::Unknown)) => (Kind::BrokenLease, format!("lease {path}")),
        Some(_) => (Kind::Lease, format!("lease {path}")),
    };
    let mut whose = Whose { network: Some(store.network.clone()), ..Whose::default() };
    match &lease.held {
        Some((_, Holder::Attachment(attachment))) => whose = Whose::of(&store.network, attachment),
        Some((_, Holder::Container(id))) => whose.container_id = Some(id.clone()),
        _ => {}
    }
    let action = Action { dir: store.path.clone(), path: lease.path.clone(), found: lease.found };
    let why = match lease.held {
        None => "a process that wrote it was killed before it was done".to_owned(),
        Some(_) => why,
    };
    Some(Finding {
        kind,
        what,
        whose,
        why,
        doubt,
        remedy: "remove it under the lock of the directory",
        action: super::Action::Lease(action),
    })
}

/// Removes a file of a network's directory.
#[derive(Debug, Clone)]
pub(super) struct Action {
    dir: PathBuf,
    path: PathBuf,
    found: Identity,
}

impl Action {
    pub(super) fn run(&self) -> Result<(), Error> {
        let dir = File::open(&self.dir).map_err(|err| Error::io("open", &self.dir, &err))?;
        let lock = self.dir.join(LOCK);
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).custom_flags(flags.bits()).open(&lock);
        let file = file.map_err(|err| Error::io("open", &lock, &err))?;
        let held = Lock::wait(file).map_err(|err| match err {
            LockError::Io(err) => Error::io("lock", &lock, &err),
            LockError::Stopped(err) => err,
        })?;
        if !held.guards(std::os::fd::AsFd::as_fd(&dir), &self.dir) {
            let err = io::Error::from(Errno::ESTALE);
            return Err(Error::io("lock", &lock, &err));
        }
        match std::fs::symlink_metadata(&self.path) {
            Ok(meta) if Identity::of(&meta) == self.found => {}
            // Another process was faster, or has given the address to another pod.
            _ => return Ok(()),
        }
        match std::fs::remove_file(&self.path) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", &self.path, &err)),
            _ => Ok(()),
        }
    }
}
