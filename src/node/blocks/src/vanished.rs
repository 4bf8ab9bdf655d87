//! Nodes that have left the cluster. The API server has listed them before, and does not any more.

use std::collections::BTreeSet;

use crate::Result;
use crate::boots::Records;
use crate::node::Node;
use crate::store::Store;

impl<S: Store> Node<'_, S> {
    /// Releases the blocks of nodes that aren't `listed` any more, once they have confirmed nothing for too long. Does
    /// nothing if this node itself is not listed.
    pub(crate) async fn return_vanished(&mut self, listed: &BTreeSet<String>) -> Result<()> {
        // A machine that the API server does not list, or lists under another name, cannot judge others.
        if !listed.contains(&self.share.identity.name) {
            return Ok(());
        }
        if !self.share.identity.listed {
            self.share.identity.listed = true;
            self.confirm().await?;
        }
        let all = self.session.identities().await?;
        let gone = all.into_iter().filter(|identity| identity.listed && !listed.contains(&identity.name));
        let gone: BTreeSet<String> = gone.map(|identity| identity.name).collect();
        let mut watched = Vec::new();
        for name in gone {
            let records = Records::read(&mut self.session, &name).await?;
            let mut others = records.list_others(&self.share.identity.instance, &self.share.vanished);
            let owned = self.session.owned_by(&name).await?;
            records.expire(&mut self.session, &mut others, &owned).await?;
            watched.append(&mut others);
        }
        self.share.vanished = watched;
        self.save()
    }
}
