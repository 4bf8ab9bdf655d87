//! Follows the nodes of an API server: lists them once, and then watches them.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use cnimble_api::{Collection, Connection, End, Error, Notice, Pace, Server, StartError, notice};

use crate::{Node, Nodes, node};

/// The first and the longest pause after a failure, as in client-go.
const BACKOFF: Duration = Duration::from_millis(800);
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// How long one watch lasts.
const WATCH: Duration = Duration::from_secs(300);
/// More nodes than this are an error. Kubernetes itself supports 5,000.
const NODES: usize = 20_000;

/// The cluster's nodes, as far as they are known.
#[derive(Debug, Default)]
pub struct Known {
    pub nodes: Nodes,
    /// Whether a complete list has been read. Before that no node is known, and nothing may be removed.
    pub listed: bool,
    /// The reason why the server cannot be asked now. It is `None` while it answers.
    pub trouble: Option<String>,
    /// Whether the store answers, but an ADD that needs it fails until somebody acts.
    pub refused: bool,
    /// The addresses of the API server, as last resolved.
    pub servers: BTreeSet<IpAddr>,
}

/// State that the follower and its users share.
#[derive(Debug, Clone, Default)]
pub struct Shared(Arc<Mutex<Known>>);

impl Shared {
    /// Locks the state. Do not hold the guard across an await.
    pub fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the names of all nodes. The list is empty while the server does not answer.
    pub fn names(&self) -> Vec<String> {
        let known = self.known();
        let is_told = known.listed && known.trouble.is_none();
        if is_told { known.nodes.keys().cloned().collect() } else { Vec::new() }
    }

    /// Records why the server cannot be asked. The known nodes stay. Logs the reason and returns true only if it is
    /// new.
    pub fn troubled(&self, why: String) -> bool {
        let mut known = self.known();
        let is_news = known.trouble.as_ref() != Some(&why);
        if is_news {
            log::warn!("nodes are as they were told of last: {why}");
            known.trouble = Some(why);
        }
        is_news
    }
}

/// Follows the nodes of one API server.
#[derive(Debug)]
pub struct Follower {
    connection: Connection,
    nodes: Collection,
    shared: Shared,
    changed: watch::Sender<()>,
}

impl Follower {
    /// Returns a follower that has not asked the server yet. Fails if the kubeconfig cannot be used.
    pub fn new(server: &Server) -> Result<Self, StartError> {
        let (connection, nodes) = (Connection::new(server)?, Collection::new("/api/v1/nodes"));
        Ok(Follower { connection, nodes, shared: Shared::default(), changed: watch::Sender::new(()) })
    }

    /// Returns the shared state, and a channel that reports each change of it.
    pub fn subscribe(&self) -> (Shared, watch::Receiver<()>) {
        (self.shared.clone(), self.changed.subscribe())
    }

    /// Lists and watches the nodes forever.
    pub async fn run(mut self) {
        let mut pace = Pace::new(BACKOFF, MAX_BACKOFF);
        let mut version: Option<String> = None;
        loop {
            let begun = Instant::now();
            let end = match self.step(&mut version).await {
                Ok(end) => end,
                Err(err) => {
                    self.shared.troubled(err.to_string());
                    self.changed.send_replace(());
                    End::Failed
                }
            };
            if end == End::Gone {
                version = None;
            }
            if let Some(wait) = pace.after(begun, end) {
                tokio::time::sleep(wait).await;
            }
        }
    }

    /// Reads the nodes once, instead of [`Follower::run`].
    pub async fn once(&mut self) -> Result<(), Error> {
        self.connection.renew().await?;
        // The server may forget the list once while it is read.
        for _ in 0..2 {
            if self.list().await?.is_some() {
                return Ok(());
            }
        }
        let url = self.nodes.url(&self.connection);
        Err(Error::Answer { url, reason: "the list was forgotten while it was read".to_owned() })
    }

    /// Lists the nodes if no `version` is known, and otherwise watches from it. Returns how that ended.
    async fn step(&mut self, version: &mut Option<String>) -> Result<End, Error> {
        self.connection.renew().await?;
        match version.clone() {
            None => {
                let Some(from) = self.list().await? else { return Ok(End::Gone) };
                *version = Some(from);
                Ok(End::Listed)
            }
            Some(from) => self.watch(&from, version).await,
        }
    }

    /// Reads all nodes. Returns the version to watch from, or `None` if the server has forgotten the list meanwhile.
    /// The known nodes stay until the list is complete. A list without any node is an error.
    async fn list(&mut self) -> Result<Option<String>, Error> {
        let mut nodes = Nodes::new();
        let url = self.nodes.url(&self.connection);
        let listing = self.nodes.list(&self.connection, |text| {
            put_node(&mut nodes, text);
            if nodes.len() > NODES {
                Err(Error::TooMuch { url: url.clone(), limit: format!("{NODES} nodes") })
            } else {
                Ok(())
            }
        });
        let version = listing.await?;
        if nodes.is_empty() && version.is_some() {
            // This host is a node, so the list cannot be empty. A server that has lost its store lists none. All routes
            // to pods would be removed.
            let reason = "it lists no node, so it has lost them".to_owned();
            return Err(Error::Answer { url, reason });
        }
        if version.is_some() {
            // If the server's name cannot be resolved now, the addresses known before stay.
            let servers = self.connection.addresses().await;
            let mut known = self.shared.known();
            let servers = if servers.is_empty() { std::mem::take(&mut known.servers) } else { servers };
            *known = Known { nodes, listed: true, servers, ..Known::default() };
            drop(known);
            self.changed.send_replace(());
        }
        Ok(version)
    }

    /// Watches the nodes from a version on, and updates `version`.
    async fn watch(&mut self, from: &str, version: &mut Option<String>) -> Result<End, Error> {
        let Some(mut lines) = self.nodes.watch(&self.connection, from, WATCH).await? else {
            return Ok(End::Gone);
        };
        if self.shared.known().trouble.take().is_some() {
            log::info!("the API server tells of nodes again");
            self.changed.send_replace(());
        }
        let url = self.nodes.url(&self.connection);
        while let Some(line) = lines.next().await? {
            let changed = match notice(&url, &line, version)? {
                Notice::Nothing => false,
                Notice::Gone => return Ok(End::Gone),
                Notice::Put(text) => {
                    let known = &mut self.shared.known().nodes;
                    let changed = put_node(known, text.as_bytes());
                    if known.len() > NODES {
                        *version = None;
                        return Err(Error::TooMuch { url, limit: format!("{NODES} nodes") });
                    }
                    changed
                }
                Notice::Drop(text) => match node::read(text.as_bytes()) {
                    Ok((name, _)) => self.shared.known().nodes.remove(&name).is_some(),
                    Err(_) => false,
                },
            };
            // A node's object is updated every few minutes as a sign of life. The fields that matter here stay the
            // same.
            if changed {
                self.changed.send_replace(());
            }
        }
        Ok(End::Over)
    }
}

/// Puts a node from its JSON. Returns whether that changed anything. An unreadable node is left out with a warning.
fn put_node(nodes: &mut Nodes, text: &[u8]) -> bool {
    let (name, node): (String, Node) = match node::read(text) {
        Ok(read) => read,
        Err(why) => {
            log::warn!("a node of the API server is left out: {why}");
            return false;
        }
    };
    nodes.insert(name, node.clone()).is_none_or(|before| before != node)
}
