//! Watches the pool's blocks and the claims of its nodes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use cnimble_api::{Collection, Connection, Lines, Notice, notice};
use cnimble_cni::names;

use super::objects::{Block, Claim, deleted, name, spec};
use super::request::failed;
use super::{Kind, Kubernetes, away};
use crate::Result;
use crate::record::Change;
use crate::store::Watch;

/// How long one watch lasts.
const LIMIT: Duration = Duration::from_secs(300);
/// The shortest time from the start of a watch to the start of the next one.
const PAUSE: Duration = Duration::from_secs(1);

/// Whether a changed object exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Exists,
    Gone,
}

/// A collection that is watched from a version on.
struct List {
    objects: Collection,
    version: Option<String>,
    lines: Option<Lines>,
    /// The time from which the collection may be watched again.
    again: Instant,
}

impl List {
    fn new(kind: Kind, labels: &str, revision: i64) -> Self {
        let (objects, version) = (kind.labelled(labels), Some(revision.to_string()));
        List { objects, version, lines: None, again: Instant::now() }
    }

    /// Waits for the next changed object, and begins another watch when one ends. It is safe to drop this future while
    /// it waits.
    ///
    /// # Errors
    /// Fails if the server has forgotten the version. The objects must then be listed again.
    async fn next(&mut self, connection: &Connection) -> Result<(Value, Fate)> {
        loop {
            let Some(lines) = &mut self.lines else {
                tokio::time::sleep_until(self.again).await;
                let from = self.version.clone().unwrap_or_default();
                let lines = self.objects.watch(connection, &from, LIMIT).await.map_err(|err| failed(&err))?;
                self.again = Instant::now() + PAUSE;
                self.lines = Some(lines.ok_or_else(|| away("it has forgotten the version"))?);
                continue;
            };
            let Some(line) = lines.next().await.map_err(|err| failed(&err))? else {
                self.lines = None;
                continue;
            };
            let url = self.objects.url(connection);
            let (object, fate) = match notice(&url, &line, &mut self.version).map_err(|err| failed(&err))? {
                Notice::Put(object) => (object, Fate::Exists),
                Notice::Drop(object) => (object, Fate::Gone),
                Notice::Nothing => continue,
                Notice::Gone => return Err(away("it has forgotten the version")),
            };
            return Ok((serde_json::from_str(object).map_err(away)?, fate));
        }
    }

    fn revision(&self) -> Option<i64> {
        self.version.as_ref()?.parse().ok()
    }
}

/// The addresses of each boot of a node, by its sequence and the object's name. The last boot is the latest.
type Boots = BTreeMap<(u64, String), Vec<IpAddr>>;

/// The watches of one pool.
pub(crate) struct Lists {
    connection: Arc<Connection>,
    blocks: List,
    claims: List,
    nodes: BTreeMap<String, Boots>,
}

impl Lists {
    /// Passes the present state to `take`, and watches from there on.
    pub(super) async fn begin(
        session: &mut Kubernetes,
        labels: &str,
        mut take: impl FnMut(Change),
    ) -> Result<Self> {
        let blocks = session.all(Kind::Block, labels).await?;
        let blocks_at = session.revision;
        let claims = session.all(Kind::NodeClaim, labels).await?;
        let mut lists = Lists {
            connection: Arc::clone(&session.connection),
            blocks: List::new(Kind::Block, labels, blocks_at),
            claims: List::new(Kind::NodeClaim, labels, session.revision),
            nodes: BTreeMap::new(),
        };
        blocks.iter().filter_map(|block| of_block(block, Fate::Exists)).for_each(&mut take);
        claims.iter().filter_map(|claim| lists.of_claim(claim, Fate::Exists)).for_each(&mut take);
        Ok(lists)
    }

    /// Records a changed claim, and returns the addresses of its node. They are those of the latest boot's claim.
    /// Returns `None` for an invalid claim.
    fn of_claim(&mut self, object: &Value, fate: Fate) -> Option<Change> {
        let claim: Claim = spec(object).ok()?;
        let node = Some(claim.identity.name).filter(|name| names::is_identifier(name))?;
        let boots = self.nodes.entry(node.clone()).or_default();
        let key = (claim.sequence, name(object).to_owned());
        if fate == Fate::Exists && deleted(object).is_none() {
            drop(boots.insert(key, claim.addresses));
        } else {
            drop(boots.remove(&key));
        }
        let latest = boots.last_key_value().map(|(_, ips)| ips.clone());
        Some(Change::Host(node, latest.filter(|ips| !ips.is_empty())))
    }
}

/// Converts a changed block. Returns `None` for an invalid one.
fn of_block(object: &Value, fate: Fate) -> Option<Change> {
    let Block { owner, first, last, .. } = spec(object).ok()?;
    let owner = Some(owner).filter(|_| fate == Fate::Exists);
    Some(if first == last { Change::Single(first, owner) } else { Change::Block(first, owner) })
}

impl Watch for Lists {
    async fn next(&mut self) -> Result<(Vec<Change>, Option<i64>)> {
        let connection = &*self.connection;
        let (change, revision) = tokio::select! {
            next = self.blocks.next(connection) => {
                let (object, fate) = next?;
                (of_block(&object, fate), self.blocks.revision())
            }
            next = self.claims.next(connection) => {
                let (object, fate) = next?;
                (self.of_claim(&object, fate), self.claims.revision())
            }
        };
        Ok((change.into_iter().collect(), revision))
    }
}
