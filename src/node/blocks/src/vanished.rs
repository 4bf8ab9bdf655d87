//! Nodes that have left the cluster: the API server had them, and lists them no more.

use std::collections::BTreeSet;

use crate::Result;
use crate::boots::Records;
use crate::node::Node;
use crate::store::Store;

impl<S: Store> Node<'_, S> {
    /// Returns blocks of nodes that aren't `listed` any more, once they have confirmed nothing for too long.
    pub(crate) async fn return_vanished(&mut self, listed: &BTreeSet<String>) -> Result<()> {
        // A machine that no API server knows, or that has another name there, can't judge others.
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
            let mut others = records.others(&self.share.identity.instance, &self.share.vanished);
            let owned = self.session.owned_by(&name).await?;
            records.expire(&mut self.session, &mut others, &owned).await?;
            watched.append(&mut others);
        }
        self.share.vanished = watched;
        self.save()
    }
}
