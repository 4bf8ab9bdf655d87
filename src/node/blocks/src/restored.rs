//! A store that was restored from a backup: it has forgotten later claims, and has blocks for owners that returned them.
//!
//! The nodes' files still are right, and no two nodes with a right to give addresses have one address. So nothing is
//! claimed or returned for the longest time `offline` and a tenth more, while each node claims again what its file has.
//! A file may be of a node that has lost its addresses long ago. The node that has seen a later revision of the lost
//! store is the later owner.

use std::collections::BTreeSet;

use cnimble_leases::cluster::share::{self, Other, Owned};

use crate::boots::Records;
use crate::node::Node;
use crate::record::{Again, Fence, patience};
use crate::store::Store;
use crate::{BlocksError, Result};

impl<S: Store> Node<'_, S> {
    /// Claims again what the share has, and fails with [`BlocksError::Restored`] until all nodes have had time to do
    /// so. Then it ends the suspicion in the fence. A valid share stays valid.
    pub(crate) async fn claim_again(&mut self) -> Result<()> {
        let now = share::now()?;
        let epoch = self.session.fence().epoch;
        if self.share.registered {
            let seen = self.share.seen();
            let seen = *self.share.before.get_or_insert(seen);
            let (is_valid, told) = (self.share.is_valid()?, self.share.announced.clone());
            let records = Records::read(&mut self.session, &self.cluster.node).await?;
            self.register(&records).await?;
            let mut ours = BTreeSet::new();
            for owned in self.share.owned.clone() {
                if self.reclaim(&owned, seen).await? {
                    ours.insert(owned.first);
                }
            }
            let why = format!("{} was restored, and another node had some of its addresses later", S::NAME);
            self.lose(&why, |owned| !ours.contains(&owned.first))?;
            self.share.enter(epoch);
            if is_valid {
                self.share.confirmed = now;
            }
            if !told.is_empty() {
                self.announce(&told).await?;
            }
        }
        self.share.enter(epoch);
        let other = Other::seen(self.share.restored.as_slice(), &epoch.to_string(), 0, now);
        let waited = other.before;
        self.share.restored = Some(other);
        self.save()?;
        // Nodes with an earlier version of cnimble have not written their time to the fence.
        let known = self.session.identities().await?;
        let longest = known.iter().map(|identity| identity.offline).fold(self.share.longest, u64::max);
        let wait = patience(longest);
        let fence = self.session.fence().clone();
        match fence.suspect {
            Some(why) if waited < wait => {
                let why = format!("{why}; for {} s nodes claim again what they own", wait.div_ceil(1000));
                Err(self.session.restored(&why))
            }
            _ => self.session.seal(Fence { suspect: None, ..fence }).await,
        }
    }

    /// Writes a block or address of the share to the store again. Returns false if a later owner has it.
    async fn reclaim(&mut self, owned: &Owned, seen: (u64, i64)) -> Result<bool> {
        let epoch = self.session.fence().epoch;
        let known = self.session.owner(owned).await?;
        let owner = known.as_ref().map(|(owner, _)| owner);
        let repeated = owner.and_then(|owner| owner.again.as_ref().filter(|again| again.epoch == epoch));
        if owner.is_some_and(|owner| owner.instance == self.share.identity.instance) && repeated.is_some() {
            return Ok(true);
        }
        // This node has claimed it again in this epoch before, no later owner has, and nothing is returned meanwhile.
        // So the store has forgotten the claim.
        if self.share.epoch == epoch && repeated.is_none() && !S::HAS_TRANSACTIONS {
            return Err(self.misses(owned.first).await);
        }
        // This node has claimed again before and lost this one, or another owner has seen a later revision.
        if self.share.epoch == epoch || repeated.is_some_and(|again| again.seen > seen) {
            return Ok(false);
        }
        let (own, again) = (self.confirmed_record()?, self.owner(Some(Again { epoch, seen })));
        if self.session.claim(&own, owned, &again, known.as_ref()).await? {
            Ok(true)
        } else {
            Err(BlocksError::Contended)
        }
    }
}
