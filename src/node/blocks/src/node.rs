//! A node's part in one boot: its identity in the store, and its share of the addresses.
//!
//! One process of a node works at a time, under a lock. The file of the share never has more than the store: a claim is
//! written to the store first, a return to the file first.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::IpAddr;
use std::path::PathBuf;

use nix::fcntl::Flock;

use cnimble_cni::Error;
use cnimble_leases::cluster::config::Cluster;
use cnimble_leases::cluster::share::{self, Asker, Identity, Owned, Share};
use cnimble_leases::store::Store as Leases;

use crate::boots::Records;
use crate::claim::{self, Candidate};
use crate::file::{fresh, lock, of_this_boot};
use crate::record::{Again, Fence, Owner, unix_now};
use crate::store::{Listed, Record, Store};
use crate::{BlocksError, Result};

/// How often another node may be faster.
const TRIES: u32 = 30;

/// Whether a process confirms the share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The share is confirmed if the store needs it, or the time has come.
    Due,
    Always,
}

pub(crate) struct Node<'c, S: Store> {
    pub(crate) cluster: &'c Cluster,
    dir: PathBuf,
    pub(crate) share: Share,
    pub(crate) session: S,
    /// This boot's record in the store, once it is confirmed.
    pub(crate) own: Option<Record<S::Entry>>,
    /// Owned blocks that are to be returned as soon as they have no lease.
    unwanted: BTreeSet<IpAddr>,
    turn: Turn,
    _lock: Flock<File>,
}

impl<'c, S: Store> Node<'c, S> {
    /// Takes the node's lock, and has the store confirm the share if this is due.
    pub(crate) async fn open(cluster: &'c Cluster) -> Result<Self> {
        Self::open_with(cluster, Turn::Due).await
    }

    /// Does what `open` does, with this rule for the confirmation.
    pub(crate) async fn open_with(cluster: &'c Cluster, turn: Turn) -> Result<Self> {
        let dir = cluster.base.store.clone();
        std::fs::create_dir_all(&dir).map_err(|err| Error::io("making", &dir, &err))?;
        let lock = lock(&dir).await?;
        let share = of_this_boot(cluster, &dir)?;
        let opened = S::begin(cluster, share.seen(), share.answered).await;
        let session = opened.map_err(|err| match err {
            BlocksError::Away(name, why) if !share.registered => {
                let why = format!("{why}; after a boot the node has no address until {name} answers");
                BlocksError::Away(name, why)
            }
            err => err,
        })?;
        let mut node =
            Node { cluster, dir, share, session, own: None, unwanted: BTreeSet::new(), turn, _lock: lock };
        node.tell_offline().await?;
        if node.session.fence().suspect.is_some() {
            node.claim_again().await?;
        }
        node.confirm().await?;
        Ok(node)
    }

    /// All wait for the longest time `offline` after a restored backup, which may have forgotten this node's.
    async fn tell_offline(&mut self) -> Result<()> {
        let fence = self.session.fence().clone();
        self.share.longest = fence.offline.max(self.share.longest).max(self.cluster.offline_ms());
        if self.share.longest > fence.offline {
            self.session.seal(Fence { offline: self.share.longest, ..fence }).await
        } else {
            Ok(())
        }
    }

    /// Has the store confirm the share, or register this boot.
    pub(crate) async fn confirm(&mut self) -> Result<()> {
        let asked = share::now()?;
        let records = Records::read(&mut self.session, &self.cluster.node).await?;
        self.check_turn(&records).await?;
        let epoch = self.share.epoch;
        self.share.enter(self.session.fence().epoch);
        (self.share.restored, self.share.before) = (None, None);
        let before = self.share.identity.clone();
        self.register(&records).await?;
        self.share.others = records.others(&self.share.identity.instance, &self.share.others);
        if self.share.identity != before {
            self.share.confirmed = asked;
        }
        let listed = self.reconcile(epoch).await?;
        self.save()?;
        match records.expire(&mut self.session, &mut self.share.others, &listed).await {
            // This boot is confirmed. A later process goes on.
            Ok(()) | Err(BlocksError::Away(..)) => Ok(()),
            err => err,
        }
    }

    /// Fails if the store has forgotten turns of this boot: it was restored.
    async fn check_turn(&mut self, records: &Records<S::Entry>) -> Result<()> {
        let own = records.of(&self.share.identity.instance);
        let is_behind = own.is_some_and(|own| own.identity.turn < self.share.identity.turn);
        if !is_behind || self.share.epoch != self.session.fence().epoch {
            return Ok(());
        }
        let what = format!("the latest record of node {}", self.cluster.node);
        Err(self.session.misses(&what, self.share.seen()).await)
    }

    /// Writes to the fence that the store lacks an address of this node. Returns the error.
    pub(crate) async fn misses(&mut self, first: IpAddr) -> BlocksError {
        let what = format!("{first} as the address of node {}", self.cluster.node);
        self.session.misses(&what, self.share.seen()).await
    }

    /// Fails if the store has forgotten this boot. A release writes to a block when others may claim it. Until the boot's
    /// right to its addresses has ended, no other node does so.
    async fn check_release(&mut self, records: &Records<S::Entry>) -> Result<()> {
        if S::HAS_TRANSACTIONS
            || records.is_closed(&self.share.identity.instance)
            || !self.share.is_valid()?
        {
            return Ok(());
        }
        let ours = self.share.owned.clone();
        for owned in &ours {
            let owner = self.session.owner(owned).await?.map(|(owner, _)| owner);
            if owner
                .is_some_and(|owner| owner.instance == self.share.identity.instance && owner.free.is_some())
            {
                return Ok(());
            }
        }
        match ours.first() {
            Some(owned) => Err(self.misses(owned.first).await),
            None => Ok(()),
        }
    }

    /// Writes this boot's record.
    pub(crate) async fn register(&mut self, records: &Records<S::Entry>) -> Result<()> {
        let known = records.of(&self.share.identity.instance);
        let is_known = known.is_some() || self.session.fence().suspect.is_some();
        if self.share.registered && !is_known {
            self.check_release(records).await?;
            let why = format!(
                "the operator has released its addresses (or {} has lost them), \
                 or it has confirmed nothing for too long",
                S::NAME
            );
            self.lose(&why, |_| true)?;
            // Its next addresses are those of another instance. The file has it before the store, which may answer late.
            let boot = self.share.identity.boot.clone();
            self.share = fresh(self.cluster, boot, Some(self.share.clone()))?;
            self.share.write(&self.dir)?;
        }
        let identity = records.confirmed(self.cluster, &self.share)?;
        let known = records.of(&identity.instance);
        let own = match known.filter(|own| own.identity == self.share.identity && !self.needs_turn()) {
            Some(own) => Some(own.clone()),
            None => self.session.put_record(records.open(), &identity).await?,
        };
        let own = own.ok_or(BlocksError::Contended)?;
        if !own.is_latest {
            // The latest boot tells its own addresses.
            self.share.announced = Vec::new();
        }
        self.share.identity = own.identity.clone();
        self.share.registered = true;
        self.own = Some(own);
        Ok(())
    }

    /// Whether this process has to write the record before it claims or returns anything.
    fn needs_turn(&self) -> bool {
        let is_due = || self.share.is_due(self.cluster, Asker::Agent);
        S::HAS_TRANSACTIONS
            || self.turn == Turn::Always
            || !self.share.is_valid().unwrap_or(false)
            || is_due().unwrap_or(true)
    }

    /// This boot's record as it was confirmed. A later process confirms it again, and voids writes of this one.
    pub(crate) fn own(&self) -> Result<Record<S::Entry>> {
        self.own.clone().ok_or(BlocksError::Contended)
    }

    /// Removes addresses from the file that the store doesn't have as this boot's. Fails if one has a lease: its pod may run.
    pub(crate) fn lose(&mut self, why: &str, is_lost: impl Fn(&Owned) -> bool) -> Result<()> {
        if !self.share.owned.iter().any(&is_lost) {
            return Ok(());
        }
        // No ADD chooses an address meanwhile.
        let store = Leases::lock(&self.dir).map_err(Error::from)?;
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
        self.share.revision = self.share.revision.max(self.session.revision());
        self.share.answered = unix_now();
        Ok(self.share.write(&self.dir)?)
    }

    /// Takes over the claims and returns that a killed process left unfinished. The file is of this `epoch`. Returns the
    /// list of all boots with the node's name.
    async fn reconcile(&mut self, epoch: u64) -> Result<Vec<Listed<S::Entry>>> {
        let listed = self.session.owned_by(&self.cluster.node).await?;
        let instance = self.share.identity.instance.clone();
        let ours = listed.iter().filter(|listed| listed.instance == instance);
        let known: BTreeSet<IpAddr> = ours.clone().map(|listed| listed.first).collect();
        let lacks = self.share.owned.iter().find(|owned| !known.contains(&owned.first));
        let lacks = lacks.map(|owned| owned.first);
        if let Some(first) = lacks.filter(|_| !S::HAS_TRANSACTIONS && epoch == self.session.fence().epoch) {
            return Err(self.misses(first).await);
        }
        let why = format!("{} doesn't have all of its addresses as its own any more", S::NAME);
        self.lose(&why, |owned| !known.contains(&owned.first))?;
        for found in ours {
            let is_in_file = self.share.owned.iter().any(|owned| owned.first == found.first);
            if found.is_unwanted {
                self.unwanted.insert(found.first);
            }
            if !is_in_file && self.session.adopt(found).await? {
                self.share.owned.push(self.owned(found.first));
            }
        }
        Ok(listed)
    }

    fn owned(&self, first: IpAddr) -> Owned {
        let last = if self.cluster.block_of(first) == first { self.cluster.last_of(first) } else { first };
        Owned { first, last, idle: None }
    }

    /// Makes sure that set `n` has as many free addresses: claims a block, else a single address.
    pub(crate) async fn more(&mut self, n: usize, at_least: usize) -> Result<()> {
        let Some(set) = self.cluster.base.sets.get(n) else { return Ok(()) };
        if self.share.free(self.cluster, n)? >= at_least {
            return Ok(());
        }
        let mut taken = self.share.owned.clone();
        for _ in 0..TRIES {
            let session = &mut self.session;
            let found = match claim::block(session, self.cluster, set, &taken).await? {
                Some(found) => Some(found),
                None if at_least > 1 => return Ok(()),
                None => claim::single(session, self.cluster, set, &taken).await?,
            };
            let found = found.ok_or_else(|| BlocksError::Full(set.to_string()))?;
            taken.push(found.owned.clone());
            if self.claim(found).await? {
                return Ok(());
            }
        }
        Err(BlocksError::Contended)
    }

    /// Makes sure that the node may give `ip`. Fails if another node gives it.
    pub(crate) async fn address(&mut self, ip: IpAddr) -> Result<()> {
        for _ in 0..TRIES {
            if self.share.owned.iter().any(|owned| owned.contains(ip)) {
                return Ok(());
            }
            let owned = if self.cluster.is_in_tail(ip) {
                Owned { first: ip, last: ip, idle: None }
            } else {
                self.owned(self.cluster.block_of(ip))
            };
            let left = self.session.owner(&owned).await?;
            if let Some((owner, entry)) = left.as_ref().filter(|(owner, _)| !owner.is_free()) {
                self.release_orphan(owned.first, owner, entry).await?;
                let node = if owner.node == self.cluster.node {
                    format!("{} in another boot", owner.node)
                } else {
                    owner.node.clone()
                };
                return Err(BlocksError::Taken { ip: ip.to_string(), node });
            }
            self.claim(Candidate { owned, left }).await?;
        }
        Err(BlocksError::Contended)
    }

    /// Releases a block without a release whose boot has no record: others wait from now on.
    async fn release_orphan(&mut self, first: IpAddr, owner: &Owner, entry: &S::Entry) -> Result<()> {
        if S::HAS_TRANSACTIONS || owner.free.is_some() {
            return Ok(());
        }
        let records = self.session.records(&owner.node).await?;
        if records.iter().any(|record| record.identity.instance == owner.instance) {
            return Ok(());
        }
        let (instance, entry) = (owner.instance.clone(), entry.clone());
        self.session.release(&Listed { first, instance, entry, is_unwanted: false }, 0, None).await.map(drop)
    }

    /// Returns whether no other node was faster.
    async fn claim(&mut self, found: Candidate<S::Entry>) -> Result<bool> {
        let (own, owner) = (self.own()?, self.owner(None));
        if !self.session.claim(&own, &found.owned, &owner, found.left.as_ref()).await? {
            return Ok(false);
        }
        self.share.owned.push(found.owned);
        self.save()?;
        Ok(true)
    }

    /// This boot as the owner of a block.
    pub(crate) fn owner(&self, again: Option<Again>) -> Owner {
        let Identity { name, instance, offline, .. } = self.share.identity.clone();
        Owner { node: name, instance, offline, free: None, again }
    }

    /// Returns single addresses without a lease, and blocks long without one, but for one in a set. If it fails, the
    /// next process of this node takes the block over again.
    pub(crate) async fn tidy(&mut self) -> Result<()> {
        let Some(store) = Leases::lock(&self.dir).map_err(Error::from)? else { return Ok(()) };
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
            let is_unwanted = !is_used && self.unwanted.contains(&owned.first);
            let is_pools = set.is_some_and(|set| set >= self.cluster.pools.usual);
            let is_needed = !is_used && !owned.is_single() && !is_unwanted && !is_pools;
            let is_spare = is_needed && spare.insert(set);
            if is_unwanted || is_due && !is_spare { gone.push(owned) } else { self.share.owned.push(owned) }
        }
        self.save()?;
        drop(store);
        let own = self.own()?;
        for owned in gone {
            self.session.give_back(&own, &owned).await?;
        }
        Ok(())
    }
}
