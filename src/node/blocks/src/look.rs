//! Checks whether an ADD that needs the store would succeed. A node with a valid share gives addresses without the
//! store. So neither its plugin nor its agent would notice a fault for most of the time `offline`.

use cnimble_leases::cluster::config::Cluster;
use cnimble_leases::cluster::share::Share;

use crate::store::Store;
use crate::{BlocksError, Result, claim};

/// Fails with the error that such an ADD would have. Claims and writes nothing for the node.
pub(crate) async fn check_add<S: Store>(cluster: &Cluster) -> Result<()> {
    let share = Share::read(&cluster.base.store)?;
    let (seen, at) = share.as_ref().map_or(((0, 0), 0), |share| (share.seen(), share.answered));
    let mut session = S::open(cluster, seen, at).await?;
    if let Some(share) = &share {
        check(cluster, &mut session, share).await?;
    }
    for n in 0..cluster.pools.usual {
        let free = share.as_ref().map_or(Ok(0), |share| share.free(cluster, n))?;
        let Some(set) = cluster.base.sets.get(n).filter(|_| free == 0) else { continue };
        if claim::block(&mut session, cluster, set, &[]).await?.is_none()
            && claim::single(&mut session, cluster, set, &[]).await?.is_none()
        {
            return Err(BlocksError::Full(set.to_string()));
        }
    }
    Ok(())
}

/// Fails if the store lacks the record of this boot, or an address that the share has.
async fn check<S: Store>(cluster: &Cluster, session: &mut S, share: &Share) -> Result<()> {
    let ours = &share.identity.instance;
    let records = session.records(&cluster.node).await?;
    let is_known = !share.registered || records.iter().any(|record| record.identity.instance == *ours);
    let listed = session.owned_by(&cluster.node).await?;
    let lacks = share
        .owned
        .iter()
        .find(|owned| !listed.iter().any(|listed| listed.instance == *ours && listed.first == owned.first));
    // Another process of the node may have changed share and store meanwhile.
    let is_same = Share::read(&cluster.base.store)?.as_ref() == Some(share);
    let why = match lacks {
        Some(owned) if is_same => format!("{} doesn't have {} as its address any more", S::NAME, owned.first),
        None if is_same && !is_known => format!("{} has no record of this boot any more", S::NAME),
        _ => return Ok(()),
    };
    Err(BlocksError::Identity { name: cluster.node.clone(), why })
}
