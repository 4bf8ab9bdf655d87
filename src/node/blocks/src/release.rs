//! What a node doesn't use any more goes back to the cluster.

use etcd_client::{Compare, KeyValue, TxnOp};

use cnimble_leases::cluster::config::Cluster;

use crate::record::{Owner, patience, unix_now};
use crate::session::{Session, is, json, parse};
use crate::{BlocksError, Result, keys};

/// Releases the block or address of a key in a node's list, if the condition holds. Its owner has confirmed nothing for
/// `waited` milliseconds. Others may claim it when the owner's right to give addresses without etcd has ended: returns
/// when, in milliseconds since 1970. `None` if there is no such block.
pub(crate) async fn release(
    session: &mut Session,
    cluster: &Cluster,
    listed: &KeyValue,
    waited: u64,
    condition: Option<Compare>,
) -> Result<Option<u64>> {
    let Some(first) = keys::ip(&String::from_utf8_lossy(listed.key())) else { return Ok(None) };
    let key = match cluster.block_of(first) == first {
        true => session.keys.block(first),
        false => session.keys.single(first),
    };
    let Some(found) = session.get(&key).await? else { return Ok(None) };
    let owner: Owner = parse(&found)?;
    let rest = patience(owner.offline).saturating_sub(waited);
    let free = unix_now().saturating_add(rest);
    let operation = match rest {
        0 => TxnOp::delete(key.clone(), None),
        _ => TxnOp::put(key.clone(), json(&Owner { free: Some(free), ..owner })?, None),
    };
    let mut conditions = vec![is(key, found.value()), is(listed.key(), listed.value())];
    conditions.extend(condition);
    let operations = vec![operation, TxnOp::delete(listed.key(), None)];
    if !session.commit(conditions, operations).await? {
        return Err(BlocksError::Contended);
    }
    Ok(Some(free))
}
