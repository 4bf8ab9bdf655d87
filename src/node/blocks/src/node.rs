//! A node's part: its identity in etcd, and its share of the addresses.
//!
//! One process of a node works at a time, under a lock. The file of the share never has more than etcd: a claim is
//! written to etcd first, a return to the file first.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, TxnOp};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use cnimble_cni::Error;
use cnimble_leases::cluster::config::Cluster;
use cnimble_leases::cluster::share::{self, Identity, Owned, Share};
use cnimble_leases::range::RangeSet;
use cnimble_leases::store::{Directory, Store};

use crate::claim::{self, Candidate};
use crate::record::Owner;
use crate::session::{Session, is, is_absent, json, parse};
use crate::{BlocksError, Result, keys};

/// The lock for changes of the share. Its time is that of the last try.
pub const LOCK: &str = ".cnimble-share-lock";
/// How often another node may be faster.
const TRIES: u32 = 30;

pub struct Node<'c> {
    pub(crate) cluster: &'c Cluster,
    dir: PathBuf,
    pub(crate) share: Share,
    pub(crate) session: Session,
    /// The node's record as etcd has it, which every transaction compares.
    pub(crate) record: Vec<u8>,
    _lock: Flock<File>,
}

impl<'c> Node<'c> {
    /// Takes the node's lock, and has etcd confirm the share, or register the node.
    pub async fn open(cluster: &'c Cluster) -> Result<Self> {
        let dir = cluster.base.store.clone();
        std::fs::create_dir_all(&dir).map_err(|err| Error::io("making", &dir, &err))?;
        let lock = lock(&dir).await?;
        let mut share = match Share::read(&dir)? {
            Some(share) => share,
            None => {
                let share = fresh(cluster)?;
                share.write(&dir)?;
                share
            }
        };
        if share.identity.name != cluster.node {
            let name = cluster.node.clone();
            return Err(BlocksError::Identity {
                name,
                why: format!("this machine was {}", share.identity.name),
            });
        }
        let mut session = Session::open(cluster, share.revision).await?;
        let asked = share::now()?;
        let offline = u64::try_from(cluster.offline.as_millis()).unwrap_or(u64::MAX);
        let mut wanted = Identity {
            boot: share::this_boot()?,
            // Each block has the time that others wait for after a release.
            offline: if share.registered { offline.min(share.identity.offline) } else { offline },
            ..share.identity.clone()
        };
        let key = session.keys.node(&cluster.node);
        let known = session.get(&key).await?;
        let condition = match &known {
            None if share.registered => {
                return Err(refused(
                    cluster,
                    "the operator has released its addresses (or etcd has lost them)",
                ));
            }
            None => is_absent(key.clone()),
            Some(kv) => {
                let known: Identity = parse(kv)?;
                check(cluster, &known, &share.identity, &wanted)?;
                wanted.turn = known.turn + 1;
                wanted.offline = wanted.offline.min(known.offline);
                is(key.clone(), kv.value())
            }
        };
        let record = json(&wanted)?;
        if !session.commit(vec![condition], vec![TxnOp::put(key, record.clone(), None)]).await? {
            return Err(BlocksError::Contended);
        }
        share.identity = wanted;
        share.registered = true;
        share.confirmed = asked;
        let mut node = Node { cluster, dir, share, session, record, _lock: lock };
        node.reconcile().await?;
        node.save()?;
        Ok(node)
    }

    pub(crate) fn save(&mut self) -> Result<()> {
        self.share.revision = self.share.revision.max(self.session.revision);
        Ok(self.share.write(&self.dir)?)
    }

    /// Takes over the claims and returns that a killed process left unfinished.
    async fn reconcile(&mut self) -> Result<()> {
        let prefix = self.session.keys.owned_by(&self.cluster.node);
        let mut known = BTreeSet::new();
        for kv in self.session.list(&prefix).await? {
            let ours = kv.value() == self.share.identity.instance.as_bytes();
            known.extend(keys::ip(&String::from_utf8_lossy(kv.key())).filter(|_| ours));
        }
        if let Some(lost) = self.share.owned.iter().find(|owned| !known.contains(&owned.first)) {
            let why = format!("etcd doesn't have {} as its own any more", lost.first);
            return Err(refused(self.cluster, &why));
        }
        for first in known {
            if !self.share.owned.iter().any(|owned| owned.first == first) {
                self.share.owned.push(self.owned(first));
            }
        }
        Ok(())
    }

    fn owned(&self, first: IpAddr) -> Owned {
        let last = match self.cluster.block_of(first) == first {
            true => self.cluster.last_of(first),
            false => first,
        };
        Owned { first, last, idle: None }
    }

    /// Makes sure that set `n` has as many free addresses: claims a block, else a single address.
    pub async fn more(&mut self, n: usize, at_least: usize) -> Result<()> {
        let Some(set) = self.cluster.base.sets.get(n) else { return Ok(()) };
        if free(self.cluster, &self.share, n)? >= at_least {
            return Ok(());
        }
        for _ in 0..TRIES {
            let found = match claim::block(&mut self.session, self.cluster, set).await? {
                Some(found) => Some(found),
                None if at_least > 1 => return Ok(()),
                None => claim::single(&mut self.session, self.cluster, set).await?,
            };
            let found = found.ok_or_else(|| BlocksError::Full(set.to_string()))?;
            if self.claim(found).await? {
                return Ok(());
            }
        }
        Err(BlocksError::Contended)
    }

    /// Makes sure that the node may give `ip`. Fails if another node gives it.
    pub async fn address(&mut self, ip: IpAddr) -> Result<()> {
        for _ in 0..TRIES {
            if self.share.owned.iter().any(|owned| owned.contains(ip)) {
                return Ok(());
            }
            let (first, key) = match self.cluster.is_in_tail(ip) {
                true => (ip, self.session.keys.single(ip)),
                false => (self.cluster.block_of(ip), self.session.keys.block(self.cluster.block_of(ip))),
            };
            let left = match self.session.get(&key).await? {
                None => None,
                Some(kv) => {
                    let owner: Owner = parse(&kv)?;
                    if !owner.is_free() {
                        return Err(BlocksError::Taken { ip: ip.to_string(), node: owner.node });
                    }
                    Some(kv.mod_revision())
                }
            };
            self.claim(Candidate { ip: first, left }).await?;
        }
        Err(BlocksError::Contended)
    }

    /// Returns whether no other node was faster.
    async fn claim(&mut self, found: Candidate) -> Result<bool> {
        let identity = &self.share.identity;
        let owned = self.owned(found.ip);
        let keys = &self.session.keys;
        let key = if owned.is_single() { keys.single(found.ip) } else { keys.block(found.ip) };
        let free = match found.left {
            None => is_absent(key.clone()),
            Some(revision) => Compare::mod_revision(key.clone(), CompareOp::Equal, revision),
        };
        let owner = Owner {
            node: identity.name.clone(),
            instance: identity.instance.clone(),
            offline: identity.offline,
            free: None,
        };
        let list = TxnOp::put(keys.owned(&identity.name, found.ip), identity.instance.clone(), None);
        let operations = vec![TxnOp::put(key, json(&owner)?, None), list];
        let node = is(keys.node(&identity.name), self.record.clone());
        if !self.session.commit(vec![free, node], operations).await? {
            return Ok(false);
        }
        self.share.owned.push(owned);
        self.save()?;
        Ok(true)
    }

    /// Returns single addresses without a lease, and blocks long without one, but for one in a set. If it fails, the
    /// next process of this node takes the block over again.
    pub async fn tidy(&mut self) -> Result<()> {
        let Some(store) = Store::lock(&self.dir).map_err(Error::from)? else { return Ok(()) };
        let leases = store.addresses().map_err(Error::from)?;
        let now = share::now()?;
        let offline = self.share.identity.offline;
        let mut spare = BTreeSet::new();
        let mut gone = Vec::new();
        for mut owned in std::mem::take(&mut self.share.owned) {
            let is_used = leases.iter().any(|ip| owned.contains(*ip));
            owned.idle = if is_used { None } else { owned.idle.filter(|since| *since <= now).or(Some(now)) };
            let is_due = owned.idle.is_some_and(|since| owned.is_single() || now - since >= offline);
            let set = self.cluster.base.sets.iter().position(|set| set.range_of(owned.last).is_some());
            let is_spare = !is_used && !owned.is_single() && spare.insert(set);
            if is_due && !is_spare { gone.push(owned) } else { self.share.owned.push(owned) }
        }
        self.save()?;
        drop(store);
        for owned in gone {
            let keys = &self.session.keys;
            let name = &self.share.identity.name;
            let key = if owned.is_single() { keys.single(owned.first) } else { keys.block(owned.first) };
            let list = keys.owned(name, owned.first);
            let conditions = vec![
                is(list.clone(), self.share.identity.instance.clone()),
                is(keys.node(name), self.record.clone()),
            ];
            self.session
                .commit(conditions, vec![TxnOp::delete(key, None), TxnOp::delete(list, None)])
                .await?;
        }
        Ok(())
    }
}

fn refused(cluster: &Cluster, why: &str) -> BlocksError {
    let file = cluster.base.store.join(share::SHARE);
    let what = format!("{why}; when no pod with its addresses runs here any more, remove {}", file.display());
    BlocksError::Identity { name: cluster.node.clone(), why: what }
}

/// Fails unless the record in etcd is this node's.
fn check(cluster: &Cluster, known: &Identity, ours: &Identity, wanted: &Identity) -> Result<()> {
    let refuse = |why: &str| Err(BlocksError::Identity { name: cluster.node.clone(), why: why.to_owned() });
    if known.machine != ours.machine {
        return refuse("another machine has this name; `cnimble ipam release` if it is gone for good");
    }
    if known.instance != ours.instance {
        return refuse(
            "another machine has this name and machine ID, or this one has lost its share; \
             `cnimble ipam release` if no pod with its addresses runs",
        );
    }
    if known.boot != wanted.boot && known.boot != ours.boot {
        return refuse(
            "another machine runs with a copy of this one's disk, or has since this one's last boot",
        );
    }
    Ok(())
}

/// How many addresses of set `n` the node could give.
pub fn free(cluster: &Cluster, share: &Share, n: usize) -> Result<usize> {
    let Some(Some(part)) = share.sets(&cluster.base.sets).into_iter().nth(n) else { return Ok(0) };
    let dir = Directory::open(&cluster.base.store).map_err(Error::from)?;
    let leases = dir.map(|dir| dir.addresses().map_err(Error::from)).transpose()?.unwrap_or_default();
    let leases: BTreeSet<IpAddr> = leases.into_iter().collect();
    let gateways: BTreeSet<IpAddr> = RangeSet::gateways(&cluster.base.sets).collect();
    let usable = part.cycle(None).filter(|(ip, range)| !gateways.contains(ip) && !range.leaves_out(*ip));
    Ok(usable.filter(|(ip, _)| !leases.contains(ip)).count())
}

fn fresh(cluster: &Cluster) -> Result<Share> {
    let read = |path: &str| {
        let text = std::fs::read_to_string(path);
        text.map(|text| text.trim().to_owned()).map_err(|err| Error::io("reading", path.as_ref(), &err))
    };
    let identity = Identity {
        machine: read("/etc/machine-id").unwrap_or_default(),
        name: cluster.node.clone(),
        instance: read("/proc/sys/kernel/random/uuid")?,
        boot: share::this_boot()?,
        offline: 0,
        turn: 0,
    };
    Ok(Share {
        identity,
        registered: false,
        revision: 0,
        confirmed: 0,
        owned: Vec::new(),
        announced: Vec::new(),
    })
}

async fn lock(dir: &std::path::Path) -> Result<Flock<File>> {
    let path = dir.join(LOCK);
    let failed = |err: std::io::Error| BlocksError::Local(Error::io("locking", &path, &err));
    let mut file = File::options().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => {
                let _ = lock.set_modified(std::time::SystemTime::now());
                return Ok(lock);
            }
            Err((again, Errno::EWOULDBLOCK | Errno::EINTR)) => file = again,
            Err((_, err)) => return Err(failed(err.into())),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
