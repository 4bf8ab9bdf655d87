//! Follows the nodes that own blocks of a shared subnet. The program that speaks to the store reports them line by
//! line.

use std::path::PathBuf;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use cnimble_agent::conflist::Conflist;
use cnimble_agent::{Known, Shared, shares};
use cnimble_api::spread;
use cnimble_cni::{Code, Error, NetworkList};

use super::super::etcd;
use super::configured::{self, Network};

/// The first pause between an exit of the program and the next start.
const BACKOFF: Duration = Duration::from_secs(1);
/// The longest such pause.
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// The time without a line after which the program counts as stuck. It prints one every ten seconds.
const SILENCE: Duration = Duration::from_secs(40);
/// The greatest length of an error of the program.
const LIMIT: usize = 1 << 20;

/// When to stop reading the program's lines.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// After the first report of the nodes.
    Nodes,
    /// When the program ends.
    End,
}

/// The follower of a network's nodes.
pub(super) struct Shares {
    network: Network,
    path: Vec<PathBuf>,
    shared: Shared,
    changed: watch::Sender<()>,
    /// The latest epoch and revision of etcd.
    seen: (u64, i64),
}

impl Shares {
    /// Creates a follower for the network of that file. `path` are the directories that may have the program.
    ///
    /// # Errors
    /// Fails if the file can't be used.
    pub(super) fn new(conflist: &Conflist, path: &[PathBuf]) -> Result<Self, String> {
        let text = conflist.text(&[], None)?;
        let list = NetworkList::parse(text.as_bytes()).map_err(|err| err.to_string())?;
        let network =
            configured::read(&list).ok_or("the network does not use the IPAM plugin cluster-local")?;
        Ok(Shares {
            network,
            path: path.to_vec(),
            shared: Shared::default(),
            changed: watch::Sender::new(()),
            seen: (0, 0),
        })
    }

    /// Returns the network whose nodes are followed.
    pub(super) fn network(&self) -> &Network {
        &self.network
    }

    /// Returns the known nodes, and a signal of their changes. The signal also comes when the source fails.
    pub(super) fn subscribe(&self) -> (Shared, watch::Receiver<()>) {
        (self.shared.clone(), self.changed.subscribe())
    }

    /// Runs the program again and again, and never ends. Known nodes stay while etcd is unreachable.
    pub(super) async fn run(mut self) {
        let mut wait = BACKOFF;
        loop {
            let begun = Instant::now();
            let why = match self.follow(Until::End).await {
                Ok(()) => Error::new(Code::TRY_AGAIN_LATER, "the program has ended"),
                Err(why) => why,
            };
            self.shared.known().refused = why.code == Code::NOT_AVAILABLE;
            if self.shared.troubled(why.to_string()) {
                self.changed.send_replace(());
            }
            sleep(spread(wait)).await;
            wait = if begun.elapsed() > MAX_BACKOFF * 2 { BACKOFF } else { (wait * 2).min(MAX_BACKOFF) };
        }
    }

    /// Asks etcd once for the nodes.
    ///
    /// # Errors
    /// Fails if etcd can't be asked.
    pub(super) async fn once(&mut self) -> Result<(), String> {
        self.follow(Until::Nodes).await.map_err(|err| err.to_string())
    }

    /// Runs the program and takes the nodes that it reports. It returns after the first report if `until` is
    /// [`Until::Nodes`].
    ///
    /// # Errors
    /// Fails when the program ends, with its error if it has printed one. It fails with [`Code::TRY_AGAIN_LATER`] if
    /// the program is silent for [`SILENCE`].
    async fn follow(&mut self, until: Until) -> Result<(), Error> {
        let program = etcd::must_have(&self.path)?;
        let failed = |why: &dyn std::fmt::Display| {
            Error::new(Code::TRY_AGAIN_LATER, format!("{}: {why}", program.display()))
        };
        let (epoch, revision) = self.seen;
        let args = ["watch".to_owned(), epoch.to_string(), revision.to_string()];
        let child = etcd::start(&program, args, &self.network.config).await;
        let mut child = child.map_err(|err| failed(&err))?;
        let stdout = child.stdout.take().ok_or_else(|| failed(&"no output"))?;
        let mut lines = BufReader::new(stdout).lines();
        // An error is JSON of several lines.
        let mut rest = String::new();
        loop {
            let line =
                timeout(SILENCE, lines.next_line()).await.map_err(|_| failed(&"no output for too long"))?;
            let Some(line) = line.map_err(|err| failed(&err))? else { break };
            match shares::nodes(&line) {
                Ok((nodes, seen)) => {
                    self.seen = self.seen.max(seen);
                    self.take(nodes);
                    if until == Until::Nodes {
                        return Ok(());
                    }
                }
                Err(_) if rest.len() + line.len() < LIMIT => rest.push_str(&line),
                Err(_) => return Err(failed(&"too much output")),
            }
        }
        let status = child.wait().await.map_err(|err| failed(&err))?;
        Err(Error::from_json(rest.as_bytes()).unwrap_or_else(|| failed(&status)))
    }

    /// Stores the reported nodes, and signals a change if they differ or the source works again.
    fn take(&self, nodes: cnimble_agent::Nodes) {
        let mut known = self.shared.known();
        if known.trouble.take().is_some() {
            log::info!("the cluster's store reports nodes again");
        } else if known.listed && known.nodes == nodes {
            return;
        }
        *known = Known { nodes, listed: true, ..Known::default() };
        drop(known);
        self.changed.send_replace(());
    }
}
