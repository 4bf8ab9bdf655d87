//! A node's part in one boot: its identity in etcd, and its share of the addresses.
//!
//! One process of a node works at a time, under a lock. The file of the share never has more than etcd: a claim is
//! written to etcd first, a return to the file first.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use etcd_client::{Compare, CompareOp, KeyValue, TxnOp};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use cnimble_cni::Error;
use cnimble_leases::boot::is_shared;
use cnimble_leases::cluster::config::Cluster;
use cnimble_leases::cluster::share::{self, Identity, Other, Owned, Share};
use cnimble_leases::range::RangeSet;
use cnimble_leases::store::{Directory, Store};

use crate::boots::{Records, known_before};
use crate::claim::{self, Candidate};
use crate::record::{Again, Fence, Owner};
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
    /// The key and the value of this boot's record in etcd, which every transaction compares.
    pub(crate) key: String,
    pub(crate) record: Vec<u8>,
    _lock: Flock<File>,
}

impl<'c> Node<'c> {
    /// Takes the node's lock, and confirms.
    pub async fn open(cluster: &'c Cluster) -> Result<Self> {
        let dir = cluster.base.store.clone();
        std::fs::create_dir_all(&dir).map_err(|err| Error::io("making", &dir, &err))?;
        let lock = lock(&dir).await?;
        let share = of_this_boot(cluster, &dir)?;
        let opened = Session::begin(cluster, share.seen()).await;
        let session = opened.map_err(|err| match err {
            BlocksError::Away(why) if !share.registered => {
                BlocksError::Away(format!("{why}; after a boot the node has no address until etcd answers"))
            }
            err => err,
        })?;
        let (key, record) = (String::new(), Vec::new());
        let mut node = Node { cluster, dir, share, session, key, record, _lock: lock };
        node.tell_offline().await?;
        if node.session.fence.suspect.is_some() {
            node.claim_again().await?;
        }
        node.confirm().await?;
        Ok(node)
    }

    /// All wait for the longest time `offline` after a restored backup, which may have forgotten this node's.
    async fn tell_offline(&mut self) -> Result<()> {
        let fence = self.session.fence.clone();
        self.share.longest = fence.offline.max(self.share.longest).max(self.cluster.offline_ms());
        match self.share.longest > fence.offline {
            true => self.session.seal(Fence { offline: self.share.longest, ..fence }).await,
            false => Ok(()),
        }
    }

    /// Has etcd confirm the share, or register this boot.
    pub(crate) async fn confirm(&mut self) -> Result<()> {
        let asked = share::now()?;
        self.share.enter(self.session.fence.epoch);
        self.share.restored = None;
        let records = self.register().await?;
        self.share.others = records.others(&self.share.identity.instance, &self.share.others);
        self.share.confirmed = asked;
        let listed = self.reconcile().await?;
        self.save()?;
        match records.expire(&mut self.session, self.cluster, &mut self.share.others, &listed).await {
            // This boot is confirmed. A later process goes on.
            Ok(()) | Err(BlocksError::Away(_)) => Ok(()),
            err => err,
        }
    }

    /// Writes this boot's record. Returns the records before.
    pub(crate) async fn register(&mut self) -> Result<Records> {
        let records = Records::read(&mut self.session, &self.cluster.node).await?;
        let is_known = records.has(&self.share.identity.instance) || self.session.fence.suspect.is_some();
        if self.share.registered && !is_known {
            let why = "the operator has released its addresses (or etcd has lost them), \
                       or it has confirmed nothing for too long";
            self.lose(why, |_| true)?;
            // Its next addresses are those of another instance.
            let boot = self.share.identity.boot.clone();
            self.share = fresh(self.cluster, boot, Some(self.share.clone()))?;
        }
        let step = records.confirm(self.cluster, &self.session, &self.share)?;
        if !self.session.commit(step.conditions, step.operations).await? {
            return Err(BlocksError::Contended);
        }
        if step.key != self.session.keys.node(&self.cluster.node) {
            // The latest boot tells its own addresses.
            self.share.announced = Vec::new();
        }
        self.share.identity = step.identity;
        self.share.registered = true;
        (self.key, self.record) = (step.key, step.record);
        Ok(records)
    }

    /// Removes addresses from the file that etcd doesn't have as this boot's. Fails if one has a lease: its pod may run.
    pub(crate) fn lose(&mut self, why: &str, is_lost: impl Fn(&Owned) -> bool) -> Result<()> {
        if !self.share.owned.iter().any(&is_lost) {
            return Ok(());
        }
        // No ADD chooses an address meanwhile.
        let store = Store::lock(&self.dir).map_err(Error::from)?;
        let leases = store.as_ref().map(|store| store.addresses().map_err(Error::from)).transpose()?;
        let leases = leases.unwrap_or_default();
        let lost = self.share.owned.iter().filter(|owned| is_lost(owned));
        if let Some(ip) = lost.flat_map(|owned| leases.iter().filter(|ip| owned.contains(**ip))).next() {
            let why = format!("{why}; before it claims others its pods have to go, and {ip} has a lease");
            return Err(BlocksError::Identity { name: self.cluster.node.clone(), why });
        }
        self.share.owned.retain(|owned| !is_lost(owned));
        Ok(self.share.write(&self.dir)?)
    }

    pub(crate) fn save(&mut self) -> Result<()> {
        self.share.revision = self.share.revision.max(self.session.revision);
        Ok(self.share.write(&self.dir)?)
    }

    /// Takes over the claims and returns that a killed process left unfinished. Returns the list of all boots with the
    /// node's name.
    async fn reconcile(&mut self) -> Result<Vec<KeyValue>> {
        let prefix = self.session.keys.owned_by(&self.cluster.node);
        let listed = self.session.list(&prefix).await?;
        let mut known = BTreeSet::new();
        for kv in &listed {
            let ours = kv.value() == self.share.identity.instance.as_bytes();
            known.extend(keys::ip(&String::from_utf8_lossy(kv.key())).filter(|_| ours));
        }
        let why = "etcd doesn't have all of its addresses as its own any more";
        self.lose(why, |owned| !known.contains(&owned.first))?;
        for first in known {
            if !self.share.owned.iter().any(|owned| owned.first == first) {
                self.share.owned.push(self.owned(first));
            }
        }
        Ok(listed)
    }

    /// Holds until the next process confirms this boot.
    pub(crate) fn is_confirmed(&self) -> Compare {
        is(self.key.clone(), self.record.clone())
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
                        let node = match owner.node == self.cluster.node {
                            true => format!("{} in another boot", owner.node),
                            false => owner.node,
                        };
                        return Err(BlocksError::Taken { ip: ip.to_string(), node });
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
        let owned = self.owned(found.ip);
        let key = self.session.keys.of_owned(&owned);
        let free = match found.left {
            None => is_absent(key),
            Some(revision) => Compare::mod_revision(key, CompareOp::Equal, revision),
        };
        let (node, operations) = (self.is_confirmed(), self.puts(&owned, None)?);
        if !self.session.commit(vec![free, node], operations).await? {
            return Ok(false);
        }
        self.share.owned.push(owned);
        self.save()?;
        Ok(true)
    }

    /// Writes a block or address as this boot's.
    pub(crate) fn puts(&self, owned: &Owned, again: Option<Again>) -> Result<Vec<TxnOp>> {
        let (keys, Identity { name, instance, offline, .. }) = (&self.session.keys, &self.share.identity);
        let (node, instance, offline) = (name.clone(), instance.clone(), *offline);
        let list = TxnOp::put(keys.owned(name, owned.first), instance.clone(), None);
        let owner = Owner { node, instance, offline, free: None, again };
        Ok(vec![TxnOp::put(keys.of_owned(owned), json(&owner)?, None), list])
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
            let is_pools = set.is_some_and(|set| set >= self.cluster.pools.usual);
            let is_spare = !is_used && !owned.is_single() && !is_pools && spare.insert(set);
            if is_due && !is_spare { gone.push(owned) } else { self.share.owned.push(owned) }
        }
        self.save()?;
        drop(store);
        for owned in gone {
            let keys = &self.session.keys;
            let name = &self.share.identity.name;
            let key = keys.of_owned(&owned);
            let list = keys.owned(name, owned.first);
            let conditions =
                vec![is(list.clone(), self.share.identity.instance.clone()), self.is_confirmed()];
            self.session
                .commit(conditions, vec![TxnOp::delete(key, None), TxnOp::delete(list, None)])
                .await?;
        }
        Ok(())
    }
}

/// How many addresses of set `n` the node could give.
pub fn free(cluster: &Cluster, share: &Share, n: usize) -> Result<usize> {
    let Some(Some(part)) = cluster.parts(share).into_iter().nth(n) else { return Ok(0) };
    let dir = Directory::open(&cluster.base.store).map_err(Error::from)?;
    let leases = dir.map(|dir| dir.addresses().map_err(Error::from)).transpose()?.unwrap_or_default();
    let leases: BTreeSet<IpAddr> = leases.into_iter().collect();
    let gateways: BTreeSet<IpAddr> = RangeSet::gateways(&cluster.base.sets).collect();
    let usable = part.cycle(None).filter(|(ip, range)| !gateways.contains(ip) && !range.leaves_out(*ip));
    Ok(usable.filter(|(ip, _)| !leases.contains(ip)).count())
}

/// Reads the share, or makes one: pods don't outlive a boot, and a copy of the disk has the share of the original.
fn of_this_boot(cluster: &Cluster, dir: &Path) -> Result<Share> {
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

/// The share of a boot that owns nothing yet.
fn fresh(cluster: &Cluster, boot: String, earlier: Option<Share>) -> Result<Share> {
    let read = |path: &str| {
        let text = std::fs::read_to_string(path);
        text.map(|text| text.trim().to_owned()).map_err(|err| Error::io("reading", path.as_ref(), &err))
    };
    let now = share::now()?;
    let (epoch, revision) = earlier.as_ref().map_or((0, 0), Share::seen);
    let longest = earlier.as_ref().map_or(0, |share| share.longest);
    let restored = earlier.as_ref().and_then(|share| share.restored.clone());
    let earlier = earlier.filter(|share| share.identity.name == cluster.node);
    // Some systems make the machine ID anew in each boot.
    let machine = earlier.as_ref().map(|share| share.identity.machine.clone());
    let identity = Identity {
        machine: machine.unwrap_or_else(|| read("/etc/machine-id").unwrap_or_default()),
        name: cluster.node.clone(),
        instance: read("/proc/sys/kernel/random/uuid")?,
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
        longest,
        confirmed: 0,
        owned: Vec::new(),
        announced: Vec::new(),
        others: earlier.map_or_else(Vec::new, |earlier| known_before(earlier.others, now)),
        vanished: Vec::new(),
        restored: restored.map(|other| Other { since: now, ..other }),
    })
}

async fn lock(dir: &Path) -> Result<Flock<File>> {
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
