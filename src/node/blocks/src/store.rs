//! A store of a cluster's blocks. [`Etcd`](crate::etcd::Etcd) and [`Kubernetes`](crate::kubernetes::Kubernetes) have
//! the same records of nodes, and the same blocks and single addresses with an owner each.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use cnimble_leases::cluster::config::Cluster;
use cnimble_leases::cluster::share::{Identity, Owned};

use crate::record::{Change, Fence, Owner, unix_now};
use crate::{BlocksError, Result};

/// The record of a boot.
#[derive(Debug, Clone)]
pub(crate) struct Record<E> {
    pub(crate) identity: Identity,
    /// The record as the store has it. Writes compare it.
    pub(crate) entry: E,
    /// Whether no later boot has the node's name.
    pub(crate) is_latest: bool,
    /// The time at which an operator or another node ended the record, in milliseconds since 1970. It is `None` while
    /// it is open.
    pub(crate) closed: Option<u64>,
}

/// A block or a single address in the list of a node.
#[derive(Debug, Clone)]
pub(crate) struct Listed<E> {
    /// The first address.
    pub(crate) first: IpAddr,
    /// The instance of the boot that owns it.
    pub(crate) instance: String,
    pub(crate) entry: E,
    /// Whether its owner must return it as soon as it has no lease, because its object was deleted.
    pub(crate) is_unwanted: bool,
}

/// Owners from one address on.
pub(crate) struct Window<E> {
    pub(crate) owners: BTreeMap<IpAddr, (Owner, E)>,
    /// Whether no address behind the last one has an owner.
    pub(crate) is_last: bool,
}

/// A session with the store. After the first failed request it is not used any more.
pub(crate) trait Store: Sized {
    /// A record, block or address as it was read.
    type Entry: Clone;
    /// Reports changes of owners and hosts.
    type Watch: Watch;
    /// The store's name in messages.
    const NAME: &'static str;
    /// Whether each write compares the fence, and each one for a boot also that boot's record. Then a turn voids late
    /// writes of dead processes, and a session notices a restored backup. A new fence, and a release by the operator,
    /// compare no record. Without transactions a node notices a restored backup when it misses something of its own.
    const HAS_TRANSACTIONS: bool;

    /// Connects, and reads nothing yet. Callers use [`Store::open`] or [`Store::begin`].
    async fn connect(cluster: &Cluster) -> Result<Self>;

    /// Sets a network up with a fence of this state. Returns false if it is set up already.
    async fn init(&mut self, cluster: &Cluster, fence: Fence) -> Result<bool>;

    /// Reads the fence. It returns `None` if the network isn't set up.
    async fn read_fence(&mut self) -> Result<Option<Fence>>;

    /// Returns the fence as this session has read or written it last.
    fn fence(&self) -> &Fence;

    /// Returns the latest revision that this session has seen.
    fn revision(&self) -> i64;

    /// Returns why this is not the store of the fence, or not one that has had the revision `seen` in its epoch at the
    /// time `at`. It returns `None` if nothing shows that it was restored.
    async fn difference(&mut self, seen: (u64, i64), at: u64) -> Result<Option<String>>;

    /// Adds what identifies this store to a fence.
    async fn identified(&mut self, fence: Fence) -> Result<Fence> {
        Ok(fence)
    }

    /// Writes the fence. Fails with [`BlocksError::Contended`] if it has changed since this session has read it.
    async fn seal(&mut self, fence: Fence) -> Result<()>;

    /// Returns the records of all boots with a name, also closed ones.
    async fn records(&mut self, name: &str) -> Result<Vec<Record<Self::Entry>>>;

    /// Returns the identities of all boots of all nodes.
    async fn identities(&mut self) -> Result<Vec<Identity>>;

    /// Writes the record of a boot, a new one if it is not in `known`, the records of its name. Returns `None` if the
    /// boot's record has changed meanwhile. etcd also compares the latest record for a new boot.
    async fn put_record(
        &mut self,
        known: &[Record<Self::Entry>],
        identity: &Identity,
    ) -> Result<Option<Record<Self::Entry>>>;

    /// Publishes the addresses of the latest boot. Returns false if its record has changed. The caller has checked that
    /// `own` is the latest.
    async fn announce(&mut self, own: &mut Record<Self::Entry>, ips: &[IpAddr]) -> Result<bool>;

    /// Publishes how many blocks a boot owns, and how many of its addresses are in use. etcd does not store this.
    async fn report(&mut self, own: &mut Record<Self::Entry>, blocks: usize, used: usize) -> Result<()>;

    /// Ends all records of a name before their blocks are released, so that their boots confirm nothing any more.
    /// Returns false if one has changed.
    async fn banish(&mut self, name: &str, records: &mut [Record<Self::Entry>]) -> Result<bool>;

    /// Prepares the release of what a silent boot owns. Returns false if the record has changed, because its boot has
    /// confirmed it. etcd compares the record in each later transaction instead, and always returns true here.
    async fn close(&mut self, record: &mut Record<Self::Entry>) -> Result<bool>;

    /// Removes a record whose boot owns nothing any more. Returns false if it has changed.
    async fn forget(&mut self, record: &Record<Self::Entry>) -> Result<bool>;

    /// Returns the blocks and addresses of all boots with a name.
    async fn owned_by(&mut self, name: &str) -> Result<Vec<Listed<Self::Entry>>>;

    /// Returns the owner of one block or single address with its entry. A released owner counts, too.
    async fn owner(&mut self, owned: &Owned) -> Result<Option<(Owner, Self::Entry)>>;

    /// Returns the owners from one block on, or from one single address on.
    async fn owners(&mut self, from: &Owned) -> Result<Window<Self::Entry>>;

    /// Returns the first address of each block, and each single address, with whether it is a single one and its owner.
    async fn all_owners(&mut self) -> Result<Vec<(IpAddr, bool, Owner)>>;

    /// Makes `owner` the owner if the entry is still `known`, where `None` is no entry. Returns false if another was
    /// faster. With transactions it also compares the record `own`.
    async fn claim(
        &mut self,
        own: &Record<Self::Entry>,
        owned: &Owned,
        owner: &Owner,
        known: Option<&(Owner, Self::Entry)>,
    ) -> Result<bool>;

    /// Takes over a block of this boot that the share lacks, so that a late return by a dead process fails. Returns
    /// false if the share must not get it. Then either its object was deleted, and this has returned it, or it has
    /// changed since it was listed.
    async fn adopt(&mut self, listed: &Listed<Self::Entry>) -> Result<bool>;

    /// Gives a block or address back. It is no failure if another process has changed it.
    async fn give_back(&mut self, own: &Record<Self::Entry>, owned: &Owned) -> Result<()>;

    /// Releases a block or address of a boot that has confirmed nothing for `waited` milliseconds. Others may claim it
    /// when the owner's right to give addresses without the store has ended. Returns that time in milliseconds since
    /// 1970, or `None` if there is no such block.
    ///
    /// # Errors
    /// Fails with [`BlocksError::Contended`] if the block has changed. With transactions also if the `record` has
    /// changed.
    async fn release(
        &mut self,
        listed: &Listed<Self::Entry>,
        waited: u64,
        record: Option<&Record<Self::Entry>>,
    ) -> Result<Option<u64>>;

    /// Releases blocks that no boot owns, because its record was removed without a release. With transactions there
    /// are none.
    async fn release_orphans(&mut self) -> Result<()> {
        Ok(())
    }

    /// Passes all owners and hosts to `take`, and watches from there on.
    async fn watch(&mut self, take: impl FnMut(Change)) -> Result<Self::Watch>;

    /// Connects, and checks that the store is the one that the network was set up in. `seen` is the latest epoch and
    /// revision that the caller knows of, at the time `at` or later, in milliseconds since 1970; zeros check nothing.
    ///
    /// # Errors
    /// Fails if the network is not set up, if its blocks have another size, and while a restored store lets nodes claim
    /// again.
    async fn open(cluster: &Cluster, seen: (u64, i64), at: u64) -> Result<Self> {
        let session = Self::begin(cluster, seen, at).await?;
        match &session.fence().suspect {
            Some(why) => Err(session.restored(why)),
            None => Ok(session),
        }
    }

    /// Does what [`Store::open`] does, but succeeds for a store that was restored. The first session that notices this
    /// writes it to the fence.
    async fn begin(cluster: &Cluster, seen: (u64, i64), at: u64) -> Result<Self> {
        let mut session = Self::connect(cluster).await?;
        let fence = session.read_fence().await?;
        let fence = fence.ok_or_else(|| {
            let network = cluster.network.clone();
            if seen > (0, 0) {
                BlocksError::Lost(Self::NAME, network)
            } else {
                BlocksError::Uninitialised(Self::NAME, network)
            }
        })?;
        if fence.host_bits != cluster.host_bits {
            return Err(BlocksError::BlockSize {
                cluster: 32 - fence.host_bits,
                ours: 32 - cluster.host_bits,
            });
        }
        let why = if (fence.epoch, session.revision()) < seen {
            Some(format!("its revision {} is before {}, which was seen", session.revision(), seen.1))
        } else {
            session.difference(seen, at).await?
        };
        if let Some(why) = why {
            session.suspect(why, seen).await?;
        }
        Ok(session)
    }

    /// Writes to the fence that a backup was restored, with a new epoch.
    async fn suspect(&mut self, why: String, seen: (u64, i64)) -> Result<()> {
        let epoch = unix_now().max(self.fence().epoch.max(seen.0) + 1);
        let fence = self.identified(self.fence().clone()).await?;
        self.seal(Fence { suspect: Some(why), epoch, ..fence }).await
    }

    /// Checks that the store answers, and that the fence is unchanged but for a longer time `offline`.
    async fn check_fence(&mut self, cluster: &Cluster) -> Result<()> {
        let before = self.fence().clone();
        match self.read_fence().await? {
            None => Err(BlocksError::Lost(Self::NAME, cluster.network.clone())),
            Some(fence) => {
                let is_same = Fence { offline: before.offline, ..fence } == before;
                if is_same { Ok(()) } else { Err(self.restored("the fence has changed")) }
            }
        }
    }

    /// Writes to the fence that the store lacks `what`, which a node has written, so it was restored. Returns the error
    /// for the caller.
    async fn misses(&mut self, what: &str, seen: (u64, i64)) -> BlocksError {
        let why = format!("it lacks {what}");
        match self.suspect(why.clone(), seen).await {
            Ok(()) => self.restored(&why),
            Err(err) => err,
        }
    }

    /// Returns the error of a restored store.
    fn restored(&self, why: &str) -> BlocksError {
        BlocksError::Restored(Self::NAME, why.to_owned())
    }
}

/// The changes after a list was read. It is safe to drop the future of `next` while it waits.
pub(crate) trait Watch {
    /// Returns the time after which the fence has to be read again. It is short if nothing reports its changes, or
    /// that the store has fallen silent.
    fn read_again(&self) -> Duration;

    /// Waits for the next changes. Returns them with the revision to which they lead, if it is known.
    async fn next(&mut self) -> Result<(Vec<Change>, Option<i64>)>;
}

/// Returns the instances of these identities.
pub(crate) fn instances(identities: &[Identity]) -> BTreeSet<&str> {
    identities.iter().map(|identity| identity.instance.as_str()).collect()
}
