use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::{Value, json};

use cnimble_api::{Connection, Server};
use cnimble_cni::Error;
use cnimble_leases::cluster::config::{self, Cluster};
use cnimble_leases::cluster::share::{Identity, Owned};
use cnimble_leases::range::RangeSet;

use super::objects::{self, Block, Claim, NODE, POOL, block_name, claim_name, deleted, set, set_spec, spec};
use super::request::{Deleted, failed, in_time};
use super::watch::Lists;
use super::{Kind, Kubernetes, NAME, Owners};
use crate::record::{Change, Fence, Owner, patience, unix_now};
use crate::store::{Listed, Record, Store, Window, instances};
use crate::{BlocksError, Result};

/// The least rise of the revision that counts as a jump. `etcdutl snapshot restore --bump-revision` adds as many.
const JUMP: i64 = 500_000_000;
/// More revisions in a millisecond than an etcd makes for long.
const RATE: i64 = 10;
/// How many blocks whose boots have no record one process releases at most.
const ORPHANS: usize = 8;

impl Kubernetes {
    /// Returns the selector of the pool's objects, or of those of a node in it.
    fn labels(&self, node: Option<&str>) -> String {
        match node {
            None => format!("{POOL}={}", self.pool),
            Some(node) => format!("{POOL}={},{NODE}={node}", self.pool),
        }
    }

    /// Returns a new Block for an owner.
    fn block(&self, owned: &Owned, owner: &Owner) -> Value {
        let Owned { first, last, .. } = *owned;
        let (pool, claimed) = (self.pool.clone(), unix_now());
        let block = Block { owner: owner.clone(), pool, first, last, claimed };
        objects::new(Kind::Block, &block_name(&self.pool, first), &self.pool, &owner.node, &block)
    }

    /// Returns the owners of all blocks and addresses. Releases some of the blocks whose boots have no record.
    async fn list_owners(&mut self) -> Result<Owners> {
        let mut owners = BTreeMap::new();
        let blocks = self.all(Kind::Block, &self.labels(None)).await?;
        let identities = self.identities().await?;
        let known = instances(&identities);
        let mut batch = ORPHANS;
        for entry in blocks {
            let Block { owner, first, .. } = spec(&entry)?;
            let instance = owner.instance.clone();
            // A dead process has claimed the block after its boot's release, or its record was removed without a
            // release.
            if owner.free.is_none() && !known.contains(instance.as_str()) && batch > 0 {
                batch -= 1;
                let orphan = Listed { first, instance, entry: entry.clone(), is_unwanted: false };
                match self.release(&orphan, 0, None).await {
                    // A node's account may not write the blocks of others. Then another account reclaims them.
                    Ok(_) | Err(BlocksError::Contended | BlocksError::Forbidden(..)) => {}
                    Err(err) => return Err(err),
                }
            }
            owners.insert(first, (owner, entry));
        }
        Ok(owners)
    }

    /// Writes another `spec` and other labels into a block that was read. Returns false if it has changed meanwhile.
    async fn rewrite(&mut self, entry: &Value, with: &Value) -> Result<bool> {
        let mut block = entry.clone();
        set(&mut block, "spec", with.get("spec").cloned().unwrap_or_default());
        if let (Some(metadata), Some(labels)) = (block.get_mut("metadata"), with.pointer("/metadata/labels"))
        {
            set(metadata, "labels", labels.clone());
        }
        let written = self.update(Kind::Block, &block).await?;
        self.keep(written)
    }

    /// Writes this boot's record with other content. Returns false if it has changed meanwhile.
    async fn amend(&mut self, own: &mut Record<Value>, object: Value) -> Result<bool> {
        let Some(entry) = self.update(Kind::NodeClaim, &object).await? else { return Ok(false) };
        own.entry = entry;
        Ok(true)
    }

    /// Remembers a written block as this boot's. Returns false if nothing was written.
    fn keep(&mut self, written: Option<Value>) -> Result<bool> {
        let Some(block) = written else { return Ok(false) };
        self.own.insert(spec::<Block>(&block)?.first, block);
        Ok(true)
    }
}

impl Store for Kubernetes {
    type Entry = Value;
    type Watch = Lists;
    const NAME: &'static str = NAME;
    const HAS_TRANSACTIONS: bool = false;

    async fn connect(cluster: &Cluster) -> Result<Self> {
        let pool = cluster.network.clone();
        let config::Store::Kubernetes(given) = &cluster.store else {
            return Err(BlocksError::Uninitialised(NAME, pool));
        };
        let connected = Connection::new(&Server::kubeconfig(&given.kubeconfig));
        let mut connection = connected.map_err(|err| failed(&cnimble_api::Error::Access(err)))?;
        in_time(async { connection.renew().await.map_err(|err| failed(&err)) }).await?;
        let (fence, object, own) = (Fence::default(), Value::Null, BTreeMap::new());
        let connection = Arc::new(connection);
        Ok(Kubernetes { connection, pool, fence, object, own, listed: None, revision: 0 })
    }

    async fn init(&mut self, cluster: &Cluster, fence: Fence) -> Result<bool> {
        for entry in self.all(Kind::Block, &self.labels(None)).await? {
            let Block { first, last, .. } = spec(&entry)?;
            let is_block = cluster.block_of(first) == first && cluster.last_of(first) == last;
            if !(is_block || first == last && cluster.is_in_tail(first)) {
                let why = format!(
                    "ipam.blockSize: Block {} is of another size: set that of the network before",
                    objects::name(&entry)
                );
                return Err(BlocksError::Local(Error::config(why)));
            }
        }
        let subnets =
            cluster.base.sets.iter().flat_map(RangeSet::ranges).map(|range| range.subnet.to_string());
        let mut pool = json!({
            "apiVersion": "ipam.cnimble.dev/v1alpha1", "kind": Kind::Pool.name(),
            "metadata": {"name": self.pool},
            "spec": {"blockSize": 32 - cluster.host_bits, "subnets": subnets.collect::<Vec<_>>()},
        });
        objects::set_fence(&mut pool, &fence);
        Ok(self.create(Kind::Pool, &pool).await?.is_some())
    }

    async fn read_fence(&mut self) -> Result<Option<Fence>> {
        let Some(pool) = self.list(&self.own_pool()).await?.pop() else { return Ok(None) };
        self.fence = objects::fence(&pool)?;
        self.object = pool;
        Ok(Some(self.fence.clone()))
    }

    fn fence(&self) -> &Fence {
        &self.fence
    }

    fn revision(&self) -> i64 {
        self.revision
    }

    async fn difference(&mut self, seen: (u64, i64), at: u64) -> Result<Option<String>> {
        let is_same = seen.0 == self.fence.epoch && seen.1 > 0;
        let usual = i64::try_from(unix_now().saturating_sub(at)).unwrap_or(i64::MAX).saturating_mul(RATE);
        let jumped = is_same && self.revision - seen.1 > JUMP.max(usual);
        Ok(jumped.then(|| format!("its revision rose from {} to {}", seen.1, self.revision)))
    }

    async fn seal(&mut self, fence: Fence) -> Result<()> {
        let mut pool = self.object.clone();
        objects::set_fence(&mut pool, &fence);
        self.object = self.update(Kind::Pool, &pool).await?.ok_or(BlocksError::Contended)?;
        self.fence = fence;
        Ok(())
    }

    async fn records(&mut self, name: &str) -> Result<Vec<Record<Value>>> {
        let mut records = Vec::new();
        for entry in self.all(Kind::NodeClaim, &self.labels(Some(name))).await? {
            let Claim { identity, sequence, .. } = spec(&entry)?;
            let closed = deleted(&entry);
            records.push((closed.is_none(), sequence, Record { identity, entry, is_latest: false, closed }));
        }
        records.sort_by(|a, b| {
            (a.0, a.1, objects::name(&a.2.entry)).cmp(&(b.0, b.1, objects::name(&b.2.entry)))
        });
        if let Some((true, _, latest)) = records.last_mut() {
            latest.is_latest = true;
        }
        Ok(records.into_iter().map(|(_, _, record)| record).collect())
    }

    async fn identities(&mut self) -> Result<Vec<Identity>> {
        let all = self.all(Kind::NodeClaim, &self.labels(None)).await?;
        all.iter().map(|object| Ok(spec::<Claim>(object)?.identity)).collect()
    }

    async fn put_record(
        &mut self,
        known: &[Record<Value>],
        identity: &Identity,
    ) -> Result<Option<Record<Value>>> {
        let own = known.iter().find(|record| record.identity.instance == identity.instance);
        let mut sequence = 0;
        for record in known {
            sequence = sequence.max(spec::<Claim>(&record.entry)?.sequence);
        }
        let written = match own {
            Some(own) => {
                let claim: Claim = spec(&own.entry)?;
                let mut object = own.entry.clone();
                set(&mut object, "spec", json!(Claim { identity: identity.clone(), ..claim }));
                self.update(Kind::NodeClaim, &object).await?
            }
            None => {
                let (pool, addresses) = (self.pool.clone(), Vec::new());
                let claim = Claim { identity: identity.clone(), pool, addresses, sequence: sequence + 1 };
                let name = claim_name(&self.pool, identity);
                let object = objects::new(Kind::NodeClaim, &name, &self.pool, &identity.name, &claim);
                self.create(Kind::NodeClaim, &object).await?
            }
        };
        let is_latest = own.is_none_or(|own| own.is_latest);
        Ok(written.map(|entry| Record { identity: identity.clone(), entry, is_latest, closed: None }))
    }

    async fn announce(&mut self, own: &mut Record<Value>, ips: &[IpAddr]) -> Result<bool> {
        if spec::<Claim>(&own.entry)?.addresses == ips {
            return Ok(true);
        }
        let mut object = own.entry.clone();
        set_spec(&mut object, "addresses", json!(ips));
        self.amend(own, object).await
    }

    async fn report(&mut self, own: &mut Record<Value>, blocks: usize, used: usize) -> Result<()> {
        let mut object = own.entry.clone();
        set(&mut object, "status", json!({"blocks": blocks, "inUse": used}));
        if object != own.entry {
            self.amend(own, object).await?;
        }
        Ok(())
    }

    async fn banish(&mut self, _name: &str, records: &mut [Record<Value>]) -> Result<bool> {
        for record in records.iter_mut().filter(|record| record.closed.is_none()) {
            if !self.close(record).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn close(&mut self, record: &mut Record<Value>) -> Result<bool> {
        match self.delete(Kind::NodeClaim, &record.entry).await? {
            Some(Deleted::Kept(entry)) => record.entry = entry,
            Some(Deleted::Gone) => {}
            None => return Ok(false),
        }
        record.closed = Some(unix_now());
        Ok(true)
    }

    async fn forget(&mut self, record: &Record<Value>) -> Result<bool> {
        self.remove(Kind::NodeClaim, &record.entry).await
    }

    async fn owned_by(&mut self, name: &str) -> Result<Vec<Listed<Value>>> {
        let mut listed = Vec::new();
        for entry in self.all(Kind::Block, &self.labels(Some(name))).await? {
            let Block { owner, first, .. } = spec(&entry)?;
            if owner.free.is_none() {
                self.own.insert(first, entry.clone());
                let is_unwanted = deleted(&entry).is_some();
                listed.push(Listed { first, instance: owner.instance, entry, is_unwanted });
            }
        }
        Ok(listed)
    }

    async fn owner(&mut self, owned: &Owned) -> Result<Option<(Owner, Value)>> {
        let found = self.get(Kind::Block, &block_name(&self.pool, owned.first)).await?;
        found.map(|entry| Ok((spec::<Block>(&entry)?.owner, entry))).transpose()
    }

    /// Reads one block first. If it has an owner, this lists all of them, once for this call and later ones.
    async fn owners(&mut self, from: &Owned) -> Result<Window<Value>> {
        if self.listed.is_none() {
            if self.owner(from).await?.is_none() {
                return Ok(Window { owners: BTreeMap::new(), is_last: false });
            }
            self.listed = Some(self.list_owners().await?);
        }
        Ok(Window { owners: self.listed.clone().unwrap_or_default(), is_last: true })
    }

    async fn all_owners(&mut self) -> Result<Vec<(IpAddr, bool, Owner)>> {
        let all = self.all(Kind::Block, &self.labels(None)).await?;
        let mut owners = Vec::new();
        for entry in &all {
            let Block { owner, first, last, .. } = spec(entry)?;
            owners.push((first, first == last, owner));
        }
        Ok(owners)
    }

    /// Rewrites the object of a known owner, and makes a missing object. An object that was deleted, and that only its
    /// finalizer keeps, would soon be gone with its new owner. So it is removed and made anew.
    async fn claim(
        &mut self,
        _own: &Record<Value>,
        owned: &Owned,
        owner: &Owner,
        known: Option<&(Owner, Value)>,
    ) -> Result<bool> {
        let block = self.block(owned, owner);
        self.listed = None;
        match known {
            Some((_, entry)) if deleted(entry).is_none() => self.rewrite(entry, &block).await,
            Some((_, entry)) if !self.remove(Kind::Block, entry).await? => Ok(false),
            _ => {
                let written = self.create(Kind::Block, &block).await?;
                self.keep(written)
            }
        }
    }

    /// Also removes the objects of blocks that were released and then deleted, once others may claim them.
    async fn release_orphans(&mut self) -> Result<()> {
        for (owner, entry) in self.list_owners().await?.into_values() {
            if deleted(&entry).is_some() && owner.is_free() {
                self.remove(Kind::Block, &entry).await?;
            }
        }
        Ok(())
    }

    async fn adopt(&mut self, listed: &Listed<Value>) -> Result<bool> {
        if listed.is_unwanted {
            self.remove(Kind::Block, &listed.entry).await?;
            return Ok(false);
        }
        let mut block = listed.entry.clone();
        set_spec(&mut block, "adopted", json!(unix_now()));
        let written = self.update(Kind::Block, &block).await?;
        self.keep(written)
    }

    async fn give_back(&mut self, own: &Record<Value>, owned: &Owned) -> Result<()> {
        let Some(block) = self.own.remove(&owned.first) else { return Ok(()) };
        if spec::<Block>(&block)?.owner.instance == own.identity.instance {
            self.remove(Kind::Block, &block).await?;
        }
        Ok(())
    }

    async fn release(
        &mut self,
        listed: &Listed<Value>,
        waited: u64,
        _record: Option<&Record<Value>>,
    ) -> Result<Option<u64>> {
        let mut block: Block = spec(&listed.entry)?;
        let rest = patience(block.owner.offline).saturating_sub(waited);
        let free = unix_now().saturating_add(rest);
        let is_done = if rest == 0 {
            self.remove(Kind::Block, &listed.entry).await?
        } else {
            block.owner.free = Some(free);
            let mut object = listed.entry.clone();
            set(&mut object, "spec", json!(block));
            self.update(Kind::Block, &object).await?.is_some()
        };
        if is_done { Ok(Some(free)) } else { Err(BlocksError::Contended) }
    }

    async fn watch(&mut self, take: impl FnMut(Change)) -> Result<Lists> {
        Lists::begin(self, &self.labels(None), take).await
    }
}
