//! Watches the pool's blocks and the claims of its nodes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use cnimble_api::{Collection, Connection, Lines, Notice, notice, spread};
use cnimble_cni::names;

use super::objects::{Block, Claim, deleted, name, spec};
use super::request::{failed, is_forbidden};
use super::{Kind, Kubernetes, away};
use crate::Result;
use crate::record::Change;
use crate::store::Watch;
use crate::watch::LOOK;

/// How long one watch lasts at least, and by how much it may be longer by chance. Watches of many nodes that began at once
/// do not end at once.
const LIMIT: Duration = Duration::from_secs(400);
const SPREAD: Duration = Duration::from_secs(200);
/// The time between two reads of a pool whose changes are reported, while each watch ends by itself if the server falls
/// silent. A server without etcd answers, and reports nothing.
const RARELY: Duration = Duration::from_secs(300);
/// The same for watches of HTTP/1. A stopped server reports nothing, and its kernel acknowledges what it receives.
const SELDOM: Duration = Duration::from_secs(30);
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
    /// Whether the server has forbidden the watch.
    is_forbidden: bool,
    /// The time from which the collection may be watched again.
    again: Instant,
}

impl List {
    fn new(objects: Collection, revision: i64) -> Self {
        let version = Some(revision.to_string());
        List { objects, version, lines: None, is_forbidden: false, again: Instant::now() }
    }

    /// Waits as [`List::next`] does, but forever if the server forbids the watch.
    async fn next_if_allowed(&mut self, connection: &Connection) -> Result<(Value, Fate)> {
        if !self.is_forbidden {
            let next = self.next(connection).await;
            if !self.is_forbidden {
                return next;
            }
        }
        std::future::pending().await
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
                let lines = self.objects.watch(connection, &from, limit()).await.map_err(|err| {
                    self.is_forbidden = is_forbidden(&err);
                    failed(&err)
                })?;
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

/// Returns how long the next watch lasts.
fn limit() -> Duration {
    LIMIT - SPREAD + spread(SPREAD)
}

/// The addresses of each boot of a node, by its sequence and the object's name. The last boot is the latest.
type Boots = BTreeMap<(u64, String), Vec<IpAddr>>;

/// The watches of one pool.
pub(crate) struct Lists {
    connection: Arc<Connection>,
    blocks: List,
    claims: List,
    /// The pool alone. A role of an earlier version does not allow to watch it.
    pool: List,
    nodes: BTreeMap<String, Boots>,
}

impl Lists {
    fn lists(&self) -> [&List; 3] {
        [&self.blocks, &self.claims, &self.pool]
    }

    /// Passes the present state to `take`, and watches from there on.
    pub(super) async fn begin(
        session: &mut Kubernetes,
        labels: &str,
        mut take: impl FnMut(Change),
    ) -> Result<Self> {
        // Thousands of objects are not kept, only what they say.
        let (blocks, claims) = (Kind::Block.labelled(labels), Kind::NodeClaim.labelled(labels));
        let each = |block: Value| of_block(&block, Fate::Exists).into_iter().for_each(&mut take);
        session.read_each(&blocks, each).await?;
        let blocks_at = session.revision;
        let mut nodes = BTreeMap::new();
        let each = |claim: Value| {
            of_claim(&mut nodes, &claim, Fate::Exists).into_iter().for_each(&mut take);
        };
        session.read_each(&claims, each).await?;
        Ok(Lists {
            connection: Arc::clone(&session.connection),
            blocks: List::new(blocks, blocks_at),
            claims: List::new(claims, session.revision),
            pool: List::new(session.own_pool(), session.revision),
            nodes,
        })
    }
}

/// Records a changed claim in `nodes`, and returns the addresses of its node. They are those of the latest boot's claim.
/// Returns `None` for an invalid claim.
fn of_claim(nodes: &mut BTreeMap<String, Boots>, object: &Value, fate: Fate) -> Option<Change> {
    let claim: Claim = spec(object).ok()?;
    let node = Some(claim.identity.name).filter(|name| names::is_identifier(name))?;
    let boots = nodes.entry(node.clone()).or_default();
    let key = (claim.sequence, name(object).to_owned());
    if fate == Fate::Exists && deleted(object).is_none() {
        drop(boots.insert(key, claim.addresses));
    } else {
        drop(boots.remove(&key));
    }
    let latest = boots.last_key_value().map(|(_, ips)| ips.clone());
    Some(Change::Host(node, latest.filter(|ips| !ips.is_empty())))
}

/// Converts a changed block. Returns `None` for an invalid one.
fn of_block(object: &Value, fate: Fate) -> Option<Change> {
    let Block { owner, first, last, .. } = spec(object).ok()?;
    let owner = Some(owner).filter(|_| fate == Fate::Exists);
    Some(if first == last { Change::Single(first, owner) } else { Change::Block(first, owner) })
}

impl Watch for Lists {
    fn read_again(&self) -> Duration {
        if self.pool.is_forbidden {
            LOOK
        } else if self.lists().iter().all(|list| list.lines.as_ref().is_none_or(Lines::notices_silence)) {
            RARELY
        } else {
            SELDOM
        }
    }

    async fn next(&mut self) -> Result<(Vec<Change>, Option<i64>)> {
        let connection = &*self.connection;
        let (change, revision) = tokio::select! {
            next = self.blocks.next(connection) => {
                let (object, fate) = next?;
                (of_block(&object, fate), self.blocks.revision())
            }
            next = self.claims.next(connection) => {
                let (object, fate) = next?;
                (of_claim(&mut self.nodes, &object, fate), self.claims.revision())
            }
            next = self.pool.next_if_allowed(connection) => {
                next?;
                (Some(Change::Fence), None)
            }
        };
        Ok((change.into_iter().collect(), revision))
    }
}
