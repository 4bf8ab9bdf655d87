//! Leases of host-local.

use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::world::{Life, Verdict, World};
use super::{Doctor, Finding, Kind, Whose, entries};
use crate::leases::boot::{self, Boot};
use crate::leases::lock::{LOCK, Lock, LockError};
use crate::leases::owner::Owner as Holder;
use crate::leases::{address, is_temporary};
use crate::rules::Owner;
use crate::spec::Error;

/// More than any lease.
const LIMIT: u64 = 4096;

/// What the directories hold.
#[derive(Debug, Default)]
pub(super) struct Leases {
    pub(super) findings: Vec<Finding>,
    /// Those who hold a lease, and live or may live.
    pub(super) lives: Vec<Life>,
}

/// A network's directory.
#[derive(Debug)]
struct Store {
    path: PathBuf,
    network: String,
    /// Why none of its leases can be judged.
    doubt: Option<String>,
}

/// All leases as they were read.
#[derive(Debug, Default)]
pub(super) struct Book(Vec<(Store, Vec<Lease>)>);

/// A lease; without address and holder, a file that isn't finished.
#[derive(Debug)]
struct Lease {
    path: PathBuf,
    held: Option<(IpAddr, Holder)>,
    before_boot: bool,
}

impl Book {
    pub(super) fn read(doctor: &Doctor<'_>, entries: &[entries::Known]) -> Result<Self, Error> {
        let mut dirs: BTreeSet<PathBuf> = doctor.data_dirs.iter().cloned().collect();
        dirs.extend(entries.iter().flat_map(entries::Known::data_dirs));
        let real = dirs.into_iter().filter_map(|dir| dir.canonicalize().ok());
        let (boot, mut book) = (Boot::current(), Book::default());
        for dir in real.collect::<BTreeSet<_>>() {
            for path in listed(&dir)?.into_iter().filter(|path| path.is_dir()) {
                let Some(network) = path.file_name().and_then(|name| name.to_str()) else { continue };
                let shared = File::open(&path).map_or(true, boot::is_shared);
                let doubt = shared.then(|| {
                    "other machines may have this file system, too, and pods with leases on it".to_owned()
                });
                let leases = listed(&path)?.into_iter().filter_map(|path| lease(path, &boot)).collect();
                let network = network.to_owned();
                book.0.push((Store { path, network, doubt }, leases));
            }
        }
        Ok(book)
    }

    /// Those who hold a lease and are known to live.
    pub(super) fn holders(&self, world: &World) -> Vec<Life> {
        let of = |(store, leases): &(Store, Vec<Lease>)| {
            let lives = leases.iter().filter_map(|lease| match &lease.held {
                Some((ip, holder @ Holder::Attachment(attachment)))
                    if world.has_attachment(&store.network, attachment) =>
                {
                    life(&store.network, holder, *ip)
                }
                _ => None,
            });
            lives.collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of).collect()
    }

    pub(super) fn judge(&self, doctor: &Doctor<'_>, world: &World) -> Leases {
        let mut found = Leases::default();
        for (store, leases) in &self.0 {
            for lease in leases {
                judge_one(doctor, world, store, lease, &mut found);
            }
        }
        found
    }
}

fn lease(path: PathBuf, boot: &Boot) -> Option<Lease> {
    let name = path.file_name()?.to_str()?;
    if is_temporary(name) {
        return Some(Lease { path, held: None, before_boot: false });
    }
    let ip = address(name)?;
    // It may have gone since.
    let (holder, before_boot) = read(&path, boot).ok()?;
    Some(Lease { path, held: Some((ip, holder)), before_boot })
}

fn listed(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = std::fs::read_dir(dir).map_err(|err| Error::io("list", dir, &err))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

fn judge_one(doctor: &Doctor<'_>, world: &World, store: &Store, lease: &Lease, found: &mut Leases) {
    let doubt = store.doubt.clone().or_else(|| entries::young(&lease.path, doctor.grace));
    let Some((ip, holder)) = &lease.held else {
        return found.findings.push(Finding {
            kind: Kind::UnfinishedFile,
            what: format!("file {}", lease.path.display()),
            whose: Whose { network: Some(store.network.clone()), ..Whose::default() },
            why: "a process that wrote it was killed before it was done".to_owned(),
            doubt,
            remedy: "remove it under the lock of the directory",
            action: super::Action::Lease(Action::of(store, &lease.path)),
        });
    };
    let verdict = match judge(world, store, *ip, holder, lease.before_boot) {
        Verdict::Orphan(why) => match doubt {
            Some(doubt) if store.doubt.is_some() || !lease.before_boot => Verdict::Doubt(doubt),
            _ => Verdict::Orphan(why),
        },
        verdict => verdict,
    };
    if !matches!(verdict, Verdict::Orphan(_)) {
        found.lives.extend(life(&store.network, holder, *ip));
    }
    found.findings.extend(finding(store, &lease.path, holder, verdict));
}

/// Reads a lease, and whether it was made before this boot.
fn read(path: &Path, boot: &Boot) -> io::Result<(Holder, bool)> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = match File::options().read(true).custom_flags(flags.bits()).open(path) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => return Ok((Holder::Unknown, false)),
        file => file?,
    };
    if !file.metadata()?.is_file() {
        return Ok((Holder::Unknown, false));
    }
    let mut content = Vec::new();
    (&file).take(LIMIT + 1).read_to_end(&mut content)?;
    let holder = match content.len() as u64 > LIMIT {
        true => Holder::Unknown,
        false => Holder::parse(&content),
    };
    Ok((holder, boot.is_after(&file)))
}

fn judge(world: &World, store: &Store, ip: IpAddr, holder: &Holder, before_boot: bool) -> Verdict {
    let place = world.place_of(ip);
    let lives = match holder {
        Holder::Attachment(attachment) => world.has_attachment(&store.network, attachment),
        Holder::Container(id) => world.has_container(id),
        Holder::Nobody => {
            return match place {
                Some(place) => Verdict::Doubt(format!("{ip} is in use {place}")),
                None => world.unless_blind("it is empty or damaged and names nobody".to_owned()),
            };
        }
        Holder::Unknown => return Verdict::Doubt("it isn't a lease file, or can't be read".to_owned()),
    };
    match place {
        _ if lives => Verdict::Lives,
        // Whoever has the address, it isn't free.
        Some(place) if world.is_held(ip) => Verdict::Doubt(format!("another pod uses {ip} {place}")),
        Some(_) => Verdict::Lives,
        None if before_boot => world.unless_blind(
            "it was made before this boot, which no namespace outlived, and nobody has its address"
                .to_owned(),
        ),
        None => world.unless_blind(
            "its address is in no network namespace, and neither the result cache nor a link knows its owner"
                .to_owned(),
        ),
    }
}

fn life(network: &str, holder: &Holder, ip: IpAddr) -> Option<Life> {
    match holder {
        Holder::Attachment(attachment) => {
            let owner = Owner { network: network.to_owned(), attachment: attachment.clone() };
            Some(Life::of(&owner, vec![ip]))
        }
        Holder::Container(id) => Some(Life {
            tag: None,
            network: Some(network.to_owned()),
            container: Some((id.clone(), true)),
            addrs: vec![ip],
        }),
        Holder::Nobody | Holder::Unknown => None,
    }
}

fn finding(store: &Store, path: &Path, holder: &Holder, verdict: Verdict) -> Option<Finding> {
    let (why, doubt) = match verdict {
        Verdict::Lives => return None,
        Verdict::Orphan(why) => (why, None),
        Verdict::Doubt(doubt) => ("nothing shows that its pod lives".to_owned(), Some(doubt)),
    };
    let broken = matches!(holder, Holder::Nobody | Holder::Unknown);
    let mut whose = Whose { network: Some(store.network.clone()), ..Whose::default() };
    match holder {
        Holder::Attachment(attachment) => whose = Whose::of(&store.network, attachment),
        Holder::Container(id) => whose.container_id = Some(id.clone()),
        Holder::Nobody | Holder::Unknown => {}
    }
    Some(Finding {
        kind: if broken { Kind::BrokenLease } else { Kind::Lease },
        what: format!("lease {}", path.display()),
        whose,
        why,
        doubt,
        remedy: "remove it under the lock of the directory",
        action: super::Action::Lease(Action::of(store, path)),
    })
}

/// Removes a file of a network's directory.
#[derive(Debug, Clone)]
pub(super) struct Action {
    dir: PathBuf,
    path: PathBuf,
    found: Option<Identity>,
}

/// Device, inode and times: another lease under the same name has others.
type Identity = (u64, u64, i64, i64, i64, i64);

fn identity(meta: &Metadata) -> Identity {
    (meta.dev(), meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec())
}

impl Action {
    fn of(store: &Store, path: &Path) -> Self {
        let found = std::fs::symlink_metadata(path).ok().map(|meta| identity(&meta));
        Action { dir: store.path.clone(), path: path.to_owned(), found }
    }

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
            Ok(meta) if Some(identity(&meta)) == self.found => {}
            // Somebody was faster, or has given the address to another.
            _ => return Ok(()),
        }
        match std::fs::remove_file(&self.path) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", &self.path, &err)),
            _ => Ok(()),
        }
    }
}
