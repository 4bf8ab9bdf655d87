//! The boots with a node's name, each with a record and blocks of its own.
//!
//! A copy of a disk and a machine that has booted again look the same: both have the share of an earlier boot. So no
//! boot takes over anything of another. The latest has the key of the node, and a boot that it has superseded keeps its
//! record under a key of its own.

use etcd_client::{Compare, KeyValue, TxnOp};

use cnimble_leases::cluster::config::Cluster;
use cnimble_leases::cluster::share::{self, Identity, Other, Share};

use crate::record::patience;
use crate::release::release;
use crate::session::{Session, is, is_absent, json, parse};
use crate::{BlocksError, Result};

/// How many blocks and addresses of earlier boots a process releases: an ADD may wait for it.
const BATCH: usize = 32;

/// The record of a boot in etcd.
#[derive(Debug)]
pub(crate) struct Record {
    kv: KeyValue,
    identity: Identity,
}

impl Record {
    fn read(kv: KeyValue) -> Result<Self> {
        Ok(Record { identity: parse(&kv)?, kv })
    }

    fn is_unchanged(&self) -> Compare {
        is(self.kv.key(), self.kv.value())
    }
}

/// The records of a name.
#[derive(Debug)]
pub(crate) struct Records {
    latest: Option<Record>,
    superseded: Vec<Record>,
    /// When they were read, by [`share::now`].
    read: u64,
}

/// A transaction that writes the record of this boot.
pub(crate) struct Step {
    /// The key that the record has then.
    pub(crate) key: String,
    pub(crate) record: Vec<u8>,
    pub(crate) identity: Identity,
    pub(crate) conditions: Vec<Compare>,
    pub(crate) operations: Vec<TxnOp>,
}

impl Records {
    pub(crate) async fn read(session: &mut Session, name: &str) -> Result<Self> {
        let (latest, superseded) = (session.keys.node(name), session.keys.boots(name));
        let latest = session.get(&latest).await?.map(Record::read).transpose()?;
        let superseded = session.list(&superseded).await?;
        let superseded = superseded.into_iter().map(Record::read).collect::<Result<_>>()?;
        Ok(Records { latest, superseded, read: share::now()? })
    }

    fn all(&self) -> impl Iterator<Item = &Record> {
        self.latest.iter().chain(&self.superseded)
    }

    fn is_latest(&self, instance: &str) -> bool {
        self.latest.as_ref().is_some_and(|record| record.identity.instance == instance)
    }

    /// Whether etcd has a record of this boot.
    pub(crate) fn has(&self, instance: &str) -> bool {
        self.all().any(|record| record.identity.instance == instance)
    }

    /// Confirms the record of the share, or registers it. Fails if another machine has the name.
    pub(crate) fn confirm(&self, cluster: &Cluster, session: &Session, share: &Share) -> Result<Step> {
        let ours = &share.identity;
        let offline = cluster.offline_ms();
        let own = self.all().find(|record| record.identity.instance == ours.instance);
        let mut identity = ours.clone();
        // Each block has the time that others wait for after a release.
        identity.offline = if share.registered { offline.min(ours.offline) } else { offline };
        match own {
            Some(own) => {
                check_boot(cluster, &own.identity, ours)?;
                identity.turn = own.identity.turn.max(ours.turn) + 1;
                identity.offline = identity.offline.min(own.identity.offline);
            }
            // A restored etcd has forgotten it.
            None if share.registered => identity.turn += 1,
            None => self.check_new(cluster, share)?,
        }
        let record = json(&identity)?;
        let (node, boot) = (session.keys.node(&ours.name), session.keys.boot(&ours.name, &ours.instance));
        let mut conditions: Vec<Compare> = own.map(Record::is_unchanged).into_iter().collect();
        let mut operations = Vec::new();
        let key = match (&self.latest, own) {
            (Some(latest), Some(_)) if latest.identity.instance != ours.instance => boot,
            (Some(_), Some(_)) => node,
            (None, Some(_)) => {
                conditions.push(is_absent(node.clone()));
                operations.push(TxnOp::delete(boot, None));
                node
            }
            (Some(latest), None) => {
                conditions.push(latest.is_unchanged());
                let boot = session.keys.boot(&ours.name, &latest.identity.instance);
                operations.push(TxnOp::put(boot, latest.kv.value(), None));
                node
            }
            (None, None) => {
                conditions.push(is_absent(node.clone()));
                node
            }
        };
        operations.push(TxnOp::put(key.clone(), record.clone(), None));
        Ok(Step { key, record, identity, conditions, operations })
    }

    /// Fails unless a share that etcd doesn't have may be registered.
    fn check_new(&self, cluster: &Cluster, share: &Share) -> Result<()> {
        let refuse =
            |why: &str| Err(BlocksError::Identity { name: cluster.node.clone(), why: why.to_owned() });
        if self.all().any(|record| record.identity.machine != share.identity.machine) {
            return refuse("another machine has this name; `cnimble ipam release` if it is gone for good");
        }
        if self.all().any(|record| record.identity.boot == share.identity.boot) {
            return refuse(
                "another machine has this name, machine ID and boot, or this one has lost its share; \
                 `cnimble ipam release` if no pod with its addresses runs",
            );
        }
        Ok(())
    }

    /// Returns the state of the boots other than `ours`, from the states before.
    pub(crate) fn others(&self, ours: &str, known: &[Other]) -> Vec<Other> {
        // Another boot has taken the name during this one.
        let is_superseded = self.superseded.iter().any(|record| record.identity.instance == *ours);
        let others = self.all().filter(|record| record.identity.instance != *ours);
        let other = |record: &Record| {
            let Identity { instance, turn, .. } = &record.identity;
            let other = Other::seen(known, instance, *turn, self.read);
            Other { active: other.active || is_superseded && self.is_latest(instance), ..other }
        };
        others.map(other).collect()
    }

    /// Releases what those of the `others` own that have confirmed nothing for too long, by the list of all boots with
    /// the name. Then their records go.
    pub(crate) async fn expire(
        &self,
        session: &mut Session,
        cluster: &Cluster,
        others: &mut Vec<Other>,
        listed: &[KeyValue],
    ) -> Result<()> {
        let mut batch = BATCH;
        for record in self.all() {
            let Identity { instance, offline, name, .. } = &record.identity;
            let Some(other) = others.iter().find(|other| other.instance == *instance) else { continue };
            let waited = other.before;
            if waited < patience(*offline) {
                continue;
            }
            let mut theirs = listed.iter().filter(|kv| kv.value() == instance.as_bytes());
            let mut is_over = true;
            for kv in theirs.by_ref().take(batch) {
                batch -= 1;
                match release(session, cluster, kv, waited, Some(record.is_unchanged())).await {
                    Ok(_) => {}
                    Err(err @ BlocksError::Away(_)) => return Err(err),
                    // It has confirmed its record meanwhile, or a later process tries again.
                    Err(_) => is_over = false,
                }
            }
            is_over = is_over && theirs.next().is_none();
            let mut gone = vec![TxnOp::delete(record.kv.key(), None)];
            if self.is_latest(instance) {
                gone.push(TxnOp::delete(session.keys.host(name), None));
            }
            if is_over && session.commit(vec![record.is_unchanged()], gone).await? {
                others.retain(|other| other.instance != *instance);
            }
        }
        Ok(())
    }
}

/// Returns the states of other boots for a boot that begins `now`, from an earlier share. Without it a node that boots
/// often would never see one that is over.
pub(crate) fn known_before(earlier: Vec<Other>, now: u64) -> Vec<Other> {
    earlier.into_iter().map(|other| Other { since: now, active: false, ..other }).collect()
}

/// Fails if an earlier build has taken the record over in another boot.
fn check_boot(cluster: &Cluster, known: &Identity, ours: &Identity) -> Result<()> {
    match known.boot == ours.boot {
        true => Ok(()),
        false => Err(BlocksError::Identity {
            name: cluster.node.clone(),
            why: "another machine runs with a copy of this one's disk".to_owned(),
        }),
    }
}
