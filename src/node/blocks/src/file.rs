//! The file of the share in this boot, and the node's lock.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use cnimble_cni::Error;
use cnimble_leases::boot::is_shared;
use cnimble_leases::cluster::config::Cluster;
use cnimble_leases::cluster::share::{self, Identity, LOCK, Other, Share};

use crate::boots::known_before;
use crate::{BlocksError, Result};

/// Reads the share of this boot, or makes a new one and writes it. The share of an earlier boot is not taken over: pods
/// don't outlive a boot, and a copy of the disk has the share of the original.
///
/// # Errors
/// Fails if this machine had another name in this boot, or if other machines may share the directory.
pub(crate) fn of_this_boot(cluster: &Cluster, dir: &Path) -> Result<Share> {
    let boot = share::this_boot()?;
    let known = Share::read(dir)?;
    let renamed = known.as_ref().filter(|share| share.identity.name != cluster.node);
    if let Some(Share { identity, .. }) = renamed
        && (identity.boot == boot || File::open(dir).map_or(true, is_shared))
    {
        let why = format!("this machine was {}", identity.name);
        return Err(BlocksError::Identity { name: cluster.node.clone(), why });
    }
    match known {
        Some(share) if share.identity.boot == boot => Ok(share),
        known => {
            let share = fresh(cluster, boot, known)?;
            share.write(dir)?;
            Ok(share)
        }
    }
}

/// Returns the share of a boot that owns nothing yet, with a new instance. It keeps what an `earlier` share has seen of
/// the store.
pub(crate) fn fresh(cluster: &Cluster, boot: String, earlier: Option<Share>) -> Result<Share> {
    let now = share::now()?;
    let (epoch, revision) = earlier.as_ref().map_or((0, 0), Share::seen);
    let answered = earlier.as_ref().map_or(0, |share| share.answered);
    let longest = earlier.as_ref().map_or(0, |share| share.longest);
    let restored = earlier.as_ref().and_then(|share| share.restored.clone());
    let earlier = earlier.filter(|share| share.identity.name == cluster.node);
    // Some systems make the machine ID anew in each boot.
    let machine = earlier.as_ref().map(|share| share.identity.machine.clone());
    let identity = Identity {
        machine: machine.unwrap_or_else(|| read_text("/etc/machine-id").unwrap_or_default()),
        name: cluster.node.clone(),
        instance: read_text("/proc/sys/kernel/random/uuid")?,
        boot,
        offline: 0,
        turn: 0,
        listed: false,
    };
    Ok(Share {
        identity,
        registered: false,
        epoch,
        revision,
        answered,
        longest,
        confirmed: 0,
        owned: Vec::new(),
        announced: Vec::new(),
        others: earlier.map_or_else(Vec::new, |earlier| known_before(earlier.others, now)),
        vanished: Vec::new(),
        used: None,
        restored: restored.map(|other| Other { since: now, ..other }),
        before: None,
    })
}

fn read_text(path: &str) -> std::result::Result<String, Error> {
    let text = std::fs::read_to_string(path);
    text.map(|text| text.trim().to_owned()).map_err(|err| Error::io("reading", path.as_ref(), &err))
}

/// Waits for the node's lock, without a limit of its own. Its modification time is set for readers without the lock.
pub(crate) async fn lock(dir: &Path) -> Result<Flock<File>> {
    let path = dir.join(LOCK);
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let mut file = file.map_err(|err| lock_error(&path, &err))?;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => {
                let _ = lock.set_modified(std::time::SystemTime::now());
                return Ok(lock);
            }
            Err((again, Errno::EWOULDBLOCK | Errno::EINTR)) => file = again,
            Err((_, err)) => return Err(lock_error(&path, &err.into())),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn lock_error(path: &Path, err: &std::io::Error) -> BlocksError {
    BlocksError::Local(Error::io("locking", path, err))
}
