//! The boots with a node's name, each with a record and blocks of its own.
//!
//! A copy of a disk and a machine that has booted again look the same: both have the share of an earlier boot. So no
//! boot takes over anything of another. The latest boot publishes the node's addresses. Earlier ones keep their records
//! and blocks until they are released.

use cnimble_leases::cluster::config::Cluster;
use cnimble_leases::cluster::share::{self, Identity, Other, Share};

use crate::record::{patience, unix_now};
use crate::store::{Listed, Record, Store};
use crate::{BlocksError, Result};

/// How many blocks and addresses one call of [`Records::expire`] releases at most. A process calls it for its own
/// node's name and for each vanished name, so it may release more in all. An ADD may wait for it.
const BATCH: usize = 32;

/// The records of all boots with one name.
#[derive(Debug)]
pub(crate) struct Records<E> {
    open: Vec<Record<E>>,
    /// Records that were closed. Their boots confirm nothing any more, and their blocks are being released.
    closed: Vec<Record<E>>,
    /// The time at which the records were read, by [`share::now`].
    read: u64,
}

impl<E: Clone> Records<E> {
    /// Reads the records of all boots with this name.
    pub(crate) async fn read<S: Store<Entry = E>>(session: &mut S, name: &str) -> Result<Self> {
        let records = session.records(name).await?;
        let (open, closed) = records.into_iter().partition(|record| record.closed.is_none());
        Ok(Records { open, closed, read: share::now()? })
    }

    /// Returns the records that their boots may still confirm.
    pub(crate) fn open(&self) -> &[Record<E>] {
        &self.open
    }

    /// Returns the open record of an instance.
    pub(crate) fn find(&self, instance: &str) -> Option<&Record<E>> {
        self.open.iter().find(|record| record.identity.instance == instance)
    }

    /// Returns whether the record of an instance is closed, so that its blocks are being released.
    pub(crate) fn is_closed(&self, instance: &str) -> bool {
        self.closed.iter().any(|record| record.identity.instance == instance)
    }

    /// Returns the identity with which the boot of the share is confirmed or registered next. Its turn is higher than
    /// any before. Fails if another machine has the name.
    pub(crate) fn confirmed(&self, cluster: &Cluster, share: &Share) -> Result<Identity> {
        let ours = &share.identity;
        let offline = cluster.offline_ms();
        let mut identity = ours.clone();
        // Each block keeps the time `offline` of its claim. So that of a registered boot may become shorter, but not
        // longer.
        identity.offline = if share.registered { offline.min(ours.offline) } else { offline };
        match self.find(&ours.instance) {
            Some(Record { identity: own, .. }) => {
                check_boot(cluster, own, ours)?;
                identity.turn = own.turn.max(ours.turn) + 1;
                identity.offline = identity.offline.min(own.offline);
            }
            // A restored store has forgotten the record.
            None if share.registered => identity.turn += 1,
            None => self.check_new(cluster, share)?,
        }
        Ok(identity)
    }

    /// Fails unless a share without a record may be registered: no other machine may have the name, and no other
    /// instance this boot.
    fn check_new(&self, cluster: &Cluster, share: &Share) -> Result<()> {
        if self.open.iter().any(|record| record.identity.machine != share.identity.machine) {
            let why = "another machine has this name; `cnimble ipam release` if it is gone for good";
            return Err(identity_error(cluster, why));
        }
        if self.open.iter().any(|record| record.identity.boot == share.identity.boot) {
            let why = "another machine has this name, machine ID and boot, or this one has lost its share; \
                       `cnimble ipam release` if no pod with its addresses runs";
            return Err(identity_error(cluster, why));
        }
        Ok(())
    }

    /// Returns the states of the open boots other than `ours`. `known` are their states before, which show since when a
    /// boot has confirmed nothing.
    pub(crate) fn list_others(&self, ours: &str, known: &[Other]) -> Vec<Other> {
        // A later boot has taken the name, so it runs at the same time.
        let is_superseded = self.find(ours).is_some_and(|record| !record.is_latest);
        let mut others = Vec::new();
        for record in self.open.iter().filter(|record| record.identity.instance != *ours) {
            let Identity { instance, turn, .. } = &record.identity;
            let other = Other::seen(known, instance, *turn, self.read);
            let active = other.active || is_superseded && record.is_latest;
            others.push(Other { active, ..other });
        }
        others
    }

    /// Releases the blocks of closed boots, and of those `others` that have confirmed nothing for too long. `listed`
    /// has the blocks of all boots with the name. A record is removed once its boot owns nothing. One call, which is
    /// for one name, releases at most [`BATCH`] blocks; a later process goes on.
    pub(crate) async fn expire<S: Store<Entry = E>>(
        &self,
        session: &mut S,
        others: &mut Vec<Other>,
        listed: &[Listed<E>],
    ) -> Result<()> {
        let mut batch = BATCH;
        for record in self.open.iter().chain(&self.closed) {
            let Identity { instance, offline, .. } = &record.identity;
            let waited = match record.closed {
                Some(since) => unix_now().saturating_sub(since),
                None => match others.iter().find(|other| other.instance == *instance) {
                    Some(other) => other.before,
                    None => continue,
                },
            };
            let mut record = record.clone();
            if record.closed.is_none() && (waited < patience(*offline) || !session.close(&mut record).await?)
            {
                continue;
            }
            let mut theirs = listed.iter().filter(|listed| listed.instance == *instance);
            let mut is_over = true;
            for listed in theirs.by_ref().take(batch) {
                batch -= 1;
                match session.release(listed, waited, Some(&record)).await {
                    Ok(_) => {}
                    Err(err @ BlocksError::Away(..)) => return Err(err),
                    // The boot has confirmed its record meanwhile, or a later process tries again.
                    Err(_) => is_over = false,
                }
            }
            is_over = is_over && theirs.next().is_none();
            if is_over && session.forget(&record).await? {
                others.retain(|other| other.instance != *instance);
            }
        }
        Ok(())
    }
}

/// Returns the states of other boots for a boot that begins `now`, from an earlier share. Without them a node that
/// boots often would never see for long enough that another boot is silent.
pub(crate) fn known_before(earlier: Vec<Other>, now: u64) -> Vec<Other> {
    earlier.into_iter().map(|other| Other { since: now, active: false, ..other }).collect()
}

/// Fails if the store's record of this instance names another boot: a copy of this machine's disk runs elsewhere.
fn check_boot(cluster: &Cluster, known: &Identity, ours: &Identity) -> Result<()> {
    if known.boot == ours.boot {
        Ok(())
    } else {
        Err(identity_error(cluster, "another machine runs with a copy of this one's disk"))
    }
}

fn identity_error(cluster: &Cluster, why: &str) -> BlocksError {
    BlocksError::Identity { name: cluster.node.clone(), why: why.to_owned() }
}
