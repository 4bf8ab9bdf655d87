//! Leases of host-local, judged.

use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use cnimble_cni::{Error, Owner};
use cnimble_leases::boot::{self, Boot};
use cnimble_leases::owner::Owner as Holder;
use cnimble_leases::{address, is_temporary};

use super::world::{Life, World};
use super::{Verdict, Witnesses, entries, young};

/// More than any lease.
const LIMIT: u64 = 4096;

/// A network's directory.
#[derive(Debug)]
pub struct Store {
    /// The directory.
    pub path: PathBuf,
    /// Name of the network.
    pub network: String,
    /// Why none of its leases can be judged.
    doubt: Option<String>,
}

/// All leases as they were read, and once they are judged, what is thought of each.
#[derive(Debug, Default)]
pub struct Book(Vec<(Store, Vec<Lease>)>);

/// A lease; without address and holder, a file that isn't finished.
#[derive(Debug)]
pub struct Lease {
    /// The file.
    pub path: PathBuf,
    /// Its address and its holder.
    pub held: Option<(IpAddr, Holder)>,
    /// Of the file that was read.
    pub found: Identity,
    before_boot: bool,
    /// What is thought of it.
    pub verdict: Verdict,
}

/// Device, inode and times: another lease under the same name has others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity(u64, u64, i64, i64, i64, i64);

impl Identity {
    /// That of the file with this metadata.
    pub fn of(meta: &Metadata) -> Self {
        let modified = (meta.mtime(), meta.mtime_nsec());
        Identity(meta.dev(), meta.ino(), modified.0, modified.1, meta.ctime(), meta.ctime_nsec())
    }
}

impl Book {
    pub(super) fn read(witnesses: &Witnesses, entries: &[entries::Known]) -> Result<Self, Error> {
        let mut dirs: BTreeSet<PathBuf> = witnesses.data_dirs.iter().cloned().collect();
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

    /// All leases, each with its directory.
    pub fn all(&self) -> impl Iterator<Item = (&Store, &Lease)> {
        self.0.iter().flat_map(|(store, leases)| leases.iter().map(move |lease| (store, lease)))
    }

    /// The attachments that hold a lease and are known to live.
    pub(super) fn holders(&self, world: &World) -> Vec<Life> {
        let of = |(store, lease): (&Store, &Lease)| match &lease.held {
            Some((ip, holder @ Holder::Attachment(attachment)))
                if world.has_attachment(&store.network, attachment) =>
            {
                life(&store.network, holder, *ip)
            }
            _ => None,
        };
        self.all().filter_map(of).collect()
    }

    /// Judges all leases; returns who holds one, and lives or may live.
    pub(super) fn judge(&mut self, witnesses: &Witnesses, world: &World) -> Vec<Life> {
        let mut lives = Vec::new();
        for (store, leases) in &mut self.0 {
            for lease in leases {
                lease.verdict = judge(witnesses, world, store, lease);
                if let (Some((ip, holder)), Verdict::Lives | Verdict::Doubt(_)) =
                    (&lease.held, &lease.verdict)
                {
                    lives.extend(life(&store.network, holder, *ip));
                }
            }
        }
        lives
    }
}

fn listed(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = std::fs::read_dir(dir).map_err(|err| Error::io("list", dir, &err))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

fn lease(path: PathBuf, boot: &Boot) -> Option<Lease> {
    let name = path.file_name()?.to_str()?;
    let verdict = Verdict::Lives;
    if is_temporary(name) {
        let found = Identity::of(&std::fs::symlink_metadata(&path).ok()?);
        return Some(Lease { path, held: None, found, before_boot: false, verdict });
    }
    let ip = address(name)?;
    // It may have gone since.
    let (holder, found, before_boot) = read(&path, boot).ok()?;
    Some(Lease { path, held: Some((ip, holder)), found, before_boot, verdict })
}

/// Reads a lease, and whether it was made before this boot.
fn read(path: &Path, boot: &Boot) -> io::Result<(Holder, Identity, bool)> {
    let there = Identity::of(&std::fs::symlink_metadata(path)?);
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = match File::options().read(true).custom_flags(flags.bits()).open(path) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => return Ok((Holder::Unknown, there, false)),
        file => file?,
    };
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Ok((Holder::Unknown, there, false));
    }
    let mut content = Vec::new();
    (&file).take(LIMIT + 1).read_to_end(&mut content)?;
    let holder = match content.len() as u64 > LIMIT {
        true => Holder::Unknown,
        false => Holder::parse(&content),
    };
    Ok((holder, Identity::of(&meta), boot.is_after(&file)))
}

fn judge(witnesses: &Witnesses, world: &World, store: &Store, lease: &Lease) -> Verdict {
    let doubt = || store.doubt.clone().or_else(|| young(&lease.path, witnesses.grace));
    let Some((ip, holder)) = &lease.held else {
        let why = "a process that wrote it was killed before it was done".to_owned();
        return doubt().map_or(Verdict::Orphan(why), Verdict::Doubt);
    };
    match by_holder(world, store, *ip, holder, lease.before_boot) {
        Verdict::Orphan(why) => match doubt() {
            Some(doubt) if store.doubt.is_some() || !lease.before_boot => Verdict::Doubt(doubt),
            _ => Verdict::Orphan(why),
        },
        verdict => verdict,
    }
}

fn by_holder(world: &World, store: &Store, ip: IpAddr, holder: &Holder, before_boot: bool) -> Verdict {
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
        // The address isn't free, whichever pod has it.
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
            ifname: None,
            addrs: vec![ip],
        }),
        Holder::Nobody | Holder::Unknown => None,
    }
}
