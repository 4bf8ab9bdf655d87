//! The store in etcd. Each change is one transaction, which compares the fence. The changes of a boot also compare its
//! record, and the release of a silent boot's block compares that boot's. Two changes compare no record: a new fence
//! (`seal`), and the release of a block by the operator.

use std::collections::BTreeMap;
use std::net::IpAddr;

use etcd_client::{Compare, CompareOp, DeleteOptions, GetOptions, TxnOp};

use cnimble_leases::cluster::config::{self, Cluster};
use cnimble_leases::cluster::share::{Identity, Owned};

use super::keys::ip;
use super::watch::Streams;
use super::{Entry, Etcd, LOOKS, NAME, is, is_absent, json, parse};
use crate::record::{Change, Fence, Host, Owner, patience, text, unix_now};
use crate::store::{Listed, Record, Store, Window};
use crate::{BlocksError, Result};

/// How many owners are read at once in the search for a free block.
const WINDOW: i64 = 512;

/// Returns the condition that a key still has the value that was read.
fn is_unchanged(entry: &Entry) -> Compare {
    is(entry.key.clone(), entry.value.clone())
}

impl Etcd {
    fn record(&self, entry: Entry) -> Result<Record<Entry>> {
        let identity: Identity = parse(&entry)?;
        let is_latest = entry.key == self.keys.node(&identity.name);
        Ok(Record { identity, entry, is_latest, closed: None })
    }

    /// Returns the key for the record of `identity`, and what else the transaction compares and does. A new boot moves
    /// the record of the latest one aside and takes its key.
    fn steps(&self, known: &[Record<Entry>], identity: &Identity) -> (String, Vec<Compare>, Vec<TxnOp>) {
        let own = known.iter().find(|record| record.identity.instance == identity.instance);
        let latest = known.iter().find(|record| record.is_latest);
        let node = self.keys.node(&identity.name);
        let mut conditions: Vec<Compare> = own.map(|own| is_unchanged(&own.entry)).into_iter().collect();
        match (latest, own) {
            (Some(_), Some(own)) if own.is_latest => (node, conditions, Vec::new()),
            (Some(_), Some(_)) => {
                (self.keys.boot(&identity.name, &identity.instance), conditions, Vec::new())
            }
            (None, Some(_)) => {
                conditions.push(is_absent(node.clone()));
                let aside = self.keys.boot(&identity.name, &identity.instance);
                (node, conditions, vec![TxnOp::delete(aside, None)])
            }
            (Some(latest), None) => {
                conditions.push(is_unchanged(&latest.entry));
                let superseded = self.keys.boot(&identity.name, &latest.identity.instance);
                (node, conditions, vec![TxnOp::put(superseded, latest.entry.value.clone(), None)])
            }
            (None, None) => {
                conditions.push(is_absent(node.clone()));
                (node, conditions, Vec::new())
            }
        }
    }
}

impl Store for Etcd {
    type Entry = Entry;
    type Watch = Streams;
    const NAME: &'static str = NAME;
    const HAS_TRANSACTIONS: bool = true;

    async fn connect(cluster: &Cluster) -> Result<Self> {
        match &cluster.store {
            config::Store::Etcd(etcd) => Self::connect_to_any(cluster, etcd).await,
            config::Store::Kubernetes(_) => Err(BlocksError::Uninitialised(NAME, cluster.network.clone())),
        }
    }

    async fn init(&mut self, _cluster: &Cluster, fence: Fence) -> Result<bool> {
        let fence = self.identified(fence).await?;
        match self.seal(fence).await {
            Ok(()) => Ok(true),
            Err(BlocksError::Contended) => Ok(false),
            Err(err) => Err(err),
        }
    }

    async fn read_fence(&mut self) -> Result<Option<Fence>> {
        let Some(entry) = self.get(&self.keys.fence()).await? else { return Ok(None) };
        (self.sealed, self.fence) = (entry.value.clone(), parse(&entry)?);
        self.created = entry.created;
        Ok(Some(self.fence.clone()))
    }

    fn fence(&self) -> &Fence {
        &self.fence
    }

    fn revision(&self) -> i64 {
        self.revision
    }

    async fn difference(&mut self, seen: (u64, i64), _at: u64) -> Result<Option<String>> {
        // The network was set up after the revision that was seen. So the operator took the cluster for a new one.
        if seen.0 == self.fence.epoch && seen.1 > 0 && seen.1 < self.created {
            return Ok(Some(format!(
                "its network was set up at revision {}, and {} was seen before",
                self.created, seen.1
            )));
        }
        let mut why = None;
        for _ in 0..LOOKS {
            let (id, offset) = self.offset().await?;
            if id != self.fence.cluster {
                return Ok(Some(format!("the cluster's ID is {id:x}, it was {:x}", self.fence.cluster)));
            }
            if offset >= self.fence.offset {
                return Ok(None);
            }
            let missing = self.fence.offset - offset;
            why = Some(format!("its log is shorter than its revisions tell, by {missing}"));
        }
        Ok(why)
    }

    async fn identified(&mut self, fence: Fence) -> Result<Fence> {
        let (cluster, offset) = self.least_offset().await?;
        Ok(Fence { cluster, offset, ..fence })
    }

    async fn seal(&mut self, fence: Fence) -> Result<()> {
        let sealed = json(&fence)?;
        let put = TxnOp::put(self.keys.fence(), sealed.clone(), None);
        if !self.commit(Vec::new(), vec![put]).await? {
            return Err(BlocksError::Contended);
        }
        (self.sealed, self.fence) = (sealed, fence);
        Ok(())
    }

    async fn records(&mut self, name: &str) -> Result<Vec<Record<Entry>>> {
        let (latest, superseded) = (self.keys.node(name), self.keys.boots(name));
        let latest = self.get(&latest).await?;
        let superseded = self.list(&superseded).await?;
        latest.into_iter().chain(superseded).map(|entry| self.record(entry)).collect()
    }

    async fn identities(&mut self) -> Result<Vec<Identity>> {
        let mut found = Vec::new();
        for prefix in self.keys.records() {
            found.extend(self.list(&prefix).await?);
        }
        found.iter().map(parse).collect()
    }

    async fn put_record(
        &mut self,
        known: &[Record<Entry>],
        identity: &Identity,
    ) -> Result<Option<Record<Entry>>> {
        let (key, conditions, mut operations) = self.steps(known, identity);
        let value = json(identity)?;
        operations.push(TxnOp::put(key.clone(), value.clone(), None));
        if !self.commit(conditions, operations).await? {
            return Ok(None);
        }
        let (revision, created) = (self.revision, self.revision);
        self.record(Entry { key, value, revision, created }).map(Some)
    }

    async fn announce(&mut self, own: &mut Record<Entry>, ips: &[IpAddr]) -> Result<bool> {
        let key = self.keys.host(&own.identity.name);
        let wanted = Host { ips: ips.to_vec() };
        let known = self.get(&key).await?;
        if known.and_then(|entry| parse::<Host>(&entry).ok()).as_ref() == Some(&wanted) {
            return Ok(true);
        }
        self.commit(vec![is_unchanged(&own.entry)], vec![TxnOp::put(key, json(&wanted)?, None)]).await
    }

    async fn report(&mut self, _own: &mut Record<Entry>, _blocks: usize, _used: usize) -> Result<()> {
        Ok(())
    }

    async fn banish(&mut self, name: &str, records: &mut [Record<Entry>]) -> Result<bool> {
        let (node, boots) = (self.keys.node(name), self.keys.boots(name));
        let latest = records.iter().find(|record| record.is_latest);
        let condition = latest.map_or_else(|| is_absent(node.clone()), |latest| is_unchanged(&latest.entry));
        let all = Some(DeleteOptions::new().with_prefix());
        let host = TxnOp::delete(self.keys.host(name), None);
        let gone = vec![TxnOp::delete(node, None), host, TxnOp::delete(boots, all)];
        Ok(records.is_empty() || self.commit(vec![condition], gone).await?)
    }

    async fn close(&mut self, _record: &mut Record<Entry>) -> Result<bool> {
        Ok(true)
    }

    async fn forget(&mut self, record: &Record<Entry>) -> Result<bool> {
        let mut gone = vec![TxnOp::delete(record.entry.key.clone(), None)];
        if record.is_latest {
            gone.push(TxnOp::delete(self.keys.host(&record.identity.name), None));
        }
        self.commit(vec![is_unchanged(&record.entry)], gone).await
    }

    async fn owned_by(&mut self, name: &str) -> Result<Vec<Listed<Entry>>> {
        let listed = self.list(&self.keys.owned_by(name)).await?.into_iter().filter_map(|entry| {
            let instance = String::from_utf8_lossy(&entry.value).into_owned();
            Some(Listed { first: ip(&entry.key)?, instance, entry, is_unwanted: false })
        });
        Ok(listed.collect())
    }

    async fn owner(&mut self, owned: &Owned) -> Result<Option<(Owner, Entry)>> {
        let found = self.get(&self.keys.of_owned(owned)).await?;
        found.map(|entry| Ok((parse(&entry)?, entry))).transpose()
    }

    async fn owners(&mut self, from: &Owned) -> Result<Window<Entry>> {
        let prefix = if from.is_single() { self.keys.singles() } else { self.keys.blocks() };
        let options = GetOptions::new().with_range(format!("{prefix}~")).with_limit(WINDOW);
        let page = self.range(format!("{prefix}{}", text(from.first)), Some(options)).await?;
        let is_last = page.len() < usize::try_from(WINDOW).unwrap_or(usize::MAX);
        let mut owners = BTreeMap::new();
        for entry in page {
            if let Some(first) = ip(&entry.key) {
                owners.insert(first, (parse(&entry)?, entry));
            }
        }
        Ok(Window { owners, is_last })
    }

    async fn all_owners(&mut self) -> Result<Vec<(IpAddr, bool, Owner)>> {
        let mut all = Vec::new();
        for (prefix, is_single) in [(self.keys.blocks(), false), (self.keys.singles(), true)] {
            for entry in self.list(&prefix).await? {
                let Some(first) = ip(&entry.key) else { continue };
                all.push((first, is_single, parse(&entry)?));
            }
        }
        Ok(all)
    }

    async fn claim(
        &mut self,
        own: &Record<Entry>,
        owned: &Owned,
        owner: &Owner,
        known: Option<&(Owner, Entry)>,
    ) -> Result<bool> {
        let key = self.keys.of_owned(owned);
        let is_free = match known {
            None => is_absent(key.clone()),
            Some((_, entry)) => Compare::mod_revision(key.clone(), CompareOp::Equal, entry.revision),
        };
        let list = self.keys.owned(&owner.node, owned.first);
        let mut operations =
            vec![TxnOp::put(key, json(owner)?, None), TxnOp::put(list, owner.instance.clone(), None)];
        if let Some((before, _)) = known.filter(|(before, _)| before.node != owner.node) {
            operations.push(TxnOp::delete(self.keys.owned(&before.node, owned.first), None));
        }
        self.commit(vec![is_free, is_unchanged(&own.entry)], operations).await
    }

    async fn adopt(&mut self, _listed: &Listed<Entry>) -> Result<bool> {
        Ok(true)
    }

    async fn give_back(&mut self, own: &Record<Entry>, owned: &Owned) -> Result<()> {
        let key = self.keys.of_owned(owned);
        let list = self.keys.owned(&own.identity.name, owned.first);
        let conditions = vec![is(list.clone(), own.identity.instance.clone()), is_unchanged(&own.entry)];
        self.commit(conditions, vec![TxnOp::delete(key, None), TxnOp::delete(list, None)]).await.map(drop)
    }

    async fn release(
        &mut self,
        listed: &Listed<Entry>,
        waited: u64,
        record: Option<&Record<Entry>>,
    ) -> Result<Option<u64>> {
        let key = self.keys.of_listed(listed.first);
        let Some(found) = self.get(&key).await? else { return Ok(None) };
        let owner: Owner = parse(&found)?;
        let rest = patience(owner.offline).saturating_sub(waited);
        let free = unix_now().saturating_add(rest);
        let operation = match rest {
            0 => TxnOp::delete(key, None),
            _ => TxnOp::put(key, json(&Owner { free: Some(free), ..owner })?, None),
        };
        let mut conditions = vec![is_unchanged(&found), is_unchanged(&listed.entry)];
        conditions.extend(record.map(|record| is_unchanged(&record.entry)));
        let operations = vec![operation, TxnOp::delete(listed.entry.key.clone(), None)];
        if self.commit(conditions, operations).await? { Ok(Some(free)) } else { Err(BlocksError::Contended) }
    }

    async fn watch(&mut self, take: impl FnMut(Change)) -> Result<Streams> {
        Streams::begin(self, take).await
    }
}
