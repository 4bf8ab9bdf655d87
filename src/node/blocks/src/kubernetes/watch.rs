//! Watches of the pool's blocks and of its nodes.

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

const LIMIT: Duration = Duration::from_secs(300);
/// The shortest time from the start of a watch to the start of the next one.
const PAUSE: Duration = Duration::from_secs(1);

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

    /// Returns the next object that has changed. It is safe to drop this future while it waits.
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

/// The addresses of each boot of a node, by its sequence and the object's name.
type Boots = BTreeMap<(u64, String), Vec<IpAddr>>;

pub(crate) struct Lists {
    connection: Arc<Connection>,
    blocks: List,
    claims: List,
    nodes: BTreeMap<String, Boots>,
}

impl Lists {
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

    /// Takes in a changed claim, and returns its node's addresses. They are those of the claim of the latest boot.
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
