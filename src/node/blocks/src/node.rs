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

/// How often another node may claim a candidate first, before a task gives up.
const TRIES: u32 = 30;

/// The occasions on which a process confirms the share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// A share in a store without transactions is confirmed if it has no valid confirmation, or the next one is due.
    /// Other stores need one from each process.
    Due,
    /// The share is confirmed in any case.
    Always,
}

/// This node with its lock, its share and a session. The share in the file is locked until this is dropped.
pub(crate) struct Node<'c, S: Store> {
    pub(crate) cluster: &'c Cluster,
    dir: PathBuf,
    pub(crate) share: Share,
    pub(crate) session: S,
    /// This boot's record in the store, once it is confirmed.
    pub(crate) own: Option<Record<S::Entry>>,
    /// The first addresses of owned blocks that are to be returned as soon as they have no lease.
    unwanted: BTreeSet<IpAddr>,
    turn: Turn,
    _lock: Flock<File>,
}

impl<'c, S: Store> Node<'c, S> {
    /// Takes the node's lock, connects to the store, and has it confirm the share if this is due. Fails while a
    /// restored store lets nodes claim their blocks again.
    pub(crate) async fn open(cluster: &'c Cluster) -> Result<Self> {
        Self::open_with(cluster, Turn::Due).await
    }

    /// Does what [`Node::open`] does, with this rule for the confirmation.
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

    /// Writes this node's time `offline` to the fence if it is the longest. After a restored backup all nodes wait for
    /// the longest, and the backup may have forgotten this node's record.
    async fn tell_offline(&mut self) -> Result<()> {
        let fence = self.session.fence().clone();
        self.share.longest = fence.offline.max(self.share.longest).max(self.cluster.offline_ms());
        if self.share.longest > fence.offline {
            self.session.seal(Fence { offline: self.share.longest, ..fence }).await
        } else {
            Ok(())
        }
    }

    /// Has the store confirm the share, or register this boot, and brings the share in line with the store.
    pub(crate) async fn confirm(&mut self) -> Result<()> {
        let asked = share::now()?;
        let records = Records::read(&mut self.session, &self.cluster.node).await?;
        self.check_turn(&records).await?;
        let epoch = self.share.epoch;
        self.share.enter(self.session.fence().epoch);
        (self.share.restored, self.share.before) = (None, None);
        let before = self.share.identity.clone();
        self.register(&records).await?;
        self.share.others = records.list_others(&self.share.identity.instance, &self.share.others);
        if self.share.identity != before {
            self.share.confirmed = asked;
        }
        let listed = self.reconcile(epoch).await?;
        self.save()?;
        match records.expire(&mut self.session, &mut self.share.others, &listed).await {
            // This boot is confirmed all the same. A later process goes on with the others.
            Ok(()) | Err(BlocksError::Away(..)) => Ok(()),
            err => err,
        }
    }

    /// Fails if the store's record has an earlier turn than the share, in the same epoch. Then the store was restored.
    async fn check_turn(&mut self, records: &Records<S::Entry>) -> Result<()> {
        let own = records.find(&self.share.identity.instance);
        let is_behind = own.is_some_and(|own| own.identity.turn < self.share.identity.turn);
        if !is_behind || self.share.epoch != self.session.fence().epoch {
            return Ok(());
        }
        let what = format!("the latest record of node {}", self.cluster.node);
        Err(self.session.misses(&what, self.share.seen()).await)
    }

    /// Writes to the fence that the store lacks an address of this node, so it was restored. Returns the error for the
    /// caller.
    pub(crate) async fn misses(&mut self, first: IpAddr) -> BlocksError {
        let what = format!("{first} as the address of node {}", self.cluster.node);
        self.session.misses(&what, self.share.seen()).await
    }

    /// Fails if a store without transactions has forgotten this boot, rather than released it. A release is written to
    /// a block before others may claim it. No other node does so while the boot has a right to its addresses.
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

    /// Writes this boot's record, unless it is there and no new turn is needed. A boot whose record was released begins
    /// again with a new instance and an empty share.
    ///
    /// # Errors
    /// Fails with [`BlocksError::Contended`] if another process has changed the record. Fails with
    /// [`BlocksError::Identity`] if a lost address has a lease.
    pub(crate) async fn register(&mut self, records: &Records<S::Entry>) -> Result<()> {
        let known = records.find(&self.share.identity.instance);
        let is_known = known.is_some() || self.session.fence().suspect.is_some();
        if self.share.registered && !is_known {
            self.check_release(records).await?;
            let why = format!(
                "the operator has released its addresses (or {} has lost them), \
                 or it has confirmed nothing for too long",
                S::NAME
            );
            self.lose(&why, |_| true)?;
            // Its next addresses belong to a new instance. The file has the instance before the store, whose answer may
            // get lost.
            let boot = self.share.identity.boot.clone();
            self.share = fresh(self.cluster, boot, Some(self.share.clone()))?;
            self.share.write(&self.dir)?;
        }
        let identity = records.confirmed(self.cluster, &self.share)?;
        let known = records.find(&identity.instance);
        let own = match known.filter(|own| own.identity == self.share.identity && !self.needs_turn()) {
            Some(own) => Some(own.clone()),
            None => self.session.put_record(records.open(), &identity).await?,
        };
        let own = own.ok_or(BlocksError::Contended)?;
        if !own.is_latest {
            // The latest boot publishes its own addresses.
            self.share.announced = Vec::new();
        }
        self.share.identity = own.identity.clone();
        self.share.registered = true;
        self.own = Some(own);
        Ok(())
    }

    /// Returns whether this process must write the record before it claims or returns anything.
    fn needs_turn(&self) -> bool {
        S::HAS_TRANSACTIONS
            || self.turn == Turn::Always
            || !self.share.is_valid().unwrap_or(false)
            || self.share.is_due(self.cluster, Asker::Agent).unwrap_or(true)
    }

    /// Returns this boot's record as it was confirmed. Writes compare it, so a later process that confirms it again
    /// voids those of this one. Fails with [`BlocksError::Contended`] before the confirmation.
    pub(crate) fn confirmed_record(&self) -> Result<Record<S::Entry>> {
        self.own.clone().ok_or(BlocksError::Contended)
    }

    /// Removes the blocks and addresses that `is_lost` from the share and its file. Removes none if one has a lease,
    /// because its pod may run. Then it fails with [`BlocksError::Identity`], and `why` begins the text.
    pub(crate) fn lose(&mut self, why: &str, is_lost: impl Fn(&Owned) -> bool) -> Result<()> {
        if !self.share.owned.iter().any(&is_lost) {
            return Ok(());
        }
        // The lock keeps ADDs from choosing an address meanwhile.
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

    /// Writes the share to its file, with the revision that was seen.
    pub(crate) fn save(&mut self) -> Result<()> {
        self.share.revision = self.share.revision.max(self.session.revision());
        self.share.answered = unix_now();
        Ok(self.share.write(&self.dir)?)
    }

    /// Completes the claims and returns of a killed process, so that share and store agree. Blocks that only the store
    /// has are added to the share, and those that only the share has are removed from it. The caller must save the
    /// share. `epoch` is that of the file. Returns what all boots with the node's name own.
    ///
    /// # Errors
    /// Fails if a block that the store lacks has a lease ([`Node::lose`]). Fails in any case if such a block is missing
    /// in a store without transactions in the same epoch. Then the store was restored ([`Node::misses`]).
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

    /// Returns the block that begins at `first`, or the single address.
    fn owned(&self, first: IpAddr) -> Owned {
        let last = if self.cluster.block_of(first) == first { self.cluster.last_of(first) } else { first };
        Owned { first, last, idle: None }
    }

    /// Claims a block if set `n` has fewer than `at_least` free addresses. Without a free block it claims a single
    /// address, but only if one address is enough. Otherwise it then succeeds with too few.
    ///
    /// # Errors
    /// Fails with [`BlocksError::Full`] if no address is left, and with [`BlocksError::Contended`] after many attempts.
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

    /// Claims the block of `ip`, or the single address, unless the node owns it already. Fails with
    /// [`BlocksError::Taken`] if another node or another boot owns it. Fails with [`BlocksError::Contended`] after many
    /// attempts.
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

    /// Releases a block whose boot has no record, in a store without transactions. Others may claim it after a wait
    /// that begins now.
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

    /// Claims a candidate, and writes it to the share. Returns false if another node was faster.
    async fn claim(&mut self, found: Candidate<S::Entry>) -> Result<bool> {
        let (own, owner) = (self.confirmed_record()?, self.owner(None));
        if !self.session.claim(&own, &found.owned, &owner, found.left.as_ref()).await? {
            return Ok(false);
        }
        self.share.owned.push(found.owned);
        self.save()?;
        Ok(true)
    }

    /// Returns this boot as the owner of a block. `again` is for a claim that is repeated after a restored backup.
    pub(crate) fn owner(&self, again: Option<Again>) -> Owner {
        let Identity { name, instance, offline, .. } = self.share.identity.clone();
        Owner { node: name, instance, offline, free: None, again }
    }

    /// Returns single addresses without a lease, and blocks that have had none for the time `offline`. One unused block
    /// of each range set stays as a spare, except for pools. The file has the return before the store. If the store
    /// fails, the next process of this node takes the block over again.
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
        let own = self.confirmed_record()?;
        for owned in gone {
            self.session.give_back(&own, &owned).await?;
        }
        Ok(())
    }
}
