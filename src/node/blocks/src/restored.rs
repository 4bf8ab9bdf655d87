//! An etcd that was restored from a backup: it has forgotten later claims, and has blocks for owners that returned them.
//!
//! The nodes' files still are right, and no two nodes with a right to give addresses have one address. So nothing is
//! claimed or returned for the longest time `offline` and a tenth more, while each node claims again what its file has.
//! A file may be of a node that has lost its addresses long ago. The node that has seen a later revision of the lost
//! etcd is the later owner.

use std::collections::BTreeSet;

use etcd_client::TxnOp;

use cnimble_leases::cluster::share::{self, Other, Owned};

use crate::node::Node;
use crate::record::{Again, Fence, Owner, patience};
use crate::session::{is, is_absent, parse};
use crate::{BlocksError, Result};

impl Node<'_> {
    /// Claims again what the file has, and fails until all nodes have had the time for it. A share that is valid stays
    /// so.
    pub(crate) async fn claim_again(&mut self) -> Result<()> {
        let now = share::now()?;
        let epoch = self.session.fence.epoch;
        if self.share.registered {
            let seen = self.share.seen();
            let seen = *self.share.before.get_or_insert(seen);
            let (is_valid, told) = (self.share.is_valid()?, self.share.announced.clone());
            self.register().await?;
            let mut ours = BTreeSet::new();
            for owned in self.share.owned.clone() {
                if self.reclaim(&owned, seen).await? {
                    ours.insert(owned.first);
                }
            }
            let why = "etcd was restored, and another node had some of its addresses later";
            self.lose(why, |owned| !ours.contains(&owned.first))?;
            self.share.enter(epoch);
            if is_valid {
                self.share.confirmed = now;
            }
            if !told.is_empty() {
                self.tell(&told).await?;
            }
        }
        self.share.enter(epoch);
        let other = Other::seen(self.share.restored.as_slice(), &epoch.to_string(), 0, now);
        let waited = other.before;
        self.share.restored = Some(other);
        self.save()?;
        // Nodes of an earlier build haven't written their time to the fence.
        let known = self.session.identities().await?;
        let longest = known.iter().map(|identity| identity.offline).fold(self.share.longest, u64::max);
        let wait = patience(longest);
        let fence = self.session.fence.clone();
        match fence.suspect {
            Some(why) if waited < wait => {
                let why = format!("{why}; for {} s nodes claim again what they own", wait.div_ceil(1000));
                Err(BlocksError::Restored(why))
            }
            _ => self.session.seal(Fence { suspect: None, ..fence }).await,
        }
    }

    /// Writes a block or address of the file to etcd again. Returns whether no later owner has done so.
    async fn reclaim(&mut self, owned: &Owned, seen: (u64, i64)) -> Result<bool> {
        let epoch = self.session.fence.epoch;
        let keys = &self.session.keys;
        let key = keys.of_owned(owned);
        let found = self.session.get(&key).await?;
        let known: Option<Owner> = found.as_ref().map(parse).transpose()?;
        let repeated =
            known.as_ref().and_then(|owner| owner.again.as_ref().filter(|again| again.epoch == epoch));
        if known.as_ref().is_some_and(|owner| owner.instance == self.share.identity.instance)
            && repeated.is_some()
        {
            return Ok(true);
        }
        // This node has claimed again before, or its claim is the earlier one.
        if self.share.epoch == epoch || repeated.is_some_and(|again| again.seen > seen) {
            return Ok(false);
        }
        let mut operations = self.puts(owned, Some(Again { epoch, seen }))?;
        if let Some(other) = known.filter(|owner| owner.node != self.share.identity.name) {
            operations.push(TxnOp::delete(self.session.keys.owned(&other.node, owned.first), None));
        }
        let unchanged = found.map_or_else(|| is_absent(key.clone()), |kv| is(key.clone(), kv.value()));
        match self.session.commit(vec![unchanged, self.is_confirmed()], operations).await? {
            true => Ok(true),
            false => Err(BlocksError::Contended),
        }
    }
}
