//! An API server's pods on this node, listed once in pages and then watched, as by client-go's reflector
//! (<https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes>). A new watch
//! continues from the last version, or with a new list if the server has forgotten that (410 Gone).

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::time::Instant;

use cnimble_api::{Collection, Connection, End, Pace, Server, StartError};

use super::listed::{Event, ServerPods};
use super::merge::PodChange;
use super::{Condition, Reporter, SourceError, SourceKind};
use crate::PodId;
use crate::manifest::Manifest;

/// The limits of a server's pods, and of their kept bytes.
const PODS: usize = 20_000;
const KEPT: usize = 64 << 20;
/// The limit of unusable pods. A server with more is no Kubernetes API server.
const BAD: usize = 1000;
/// How long one watch lasts, within client-go's limits.
const WATCH: Duration = Duration::from_secs(300);

/// An API server as a source of pods.
#[derive(Debug, Clone)]
pub struct ApiSource {
    /// The server. Its kubeconfig and the files that it names are read again for each list and watch.
    pub server: Server,
    /// The node's name. Pods with this `spec.nodeName` are wanted.
    pub node: String,
    /// The pause after the first failure. It doubles with each further one.
    pub backoff: Duration,
    /// The longest pause.
    pub max_backoff: Duration,
    /// Whether plugins need all annotations, not only bandwidth limits and a pod's manager. After a change
    /// [`PodConfig::reread`](super::PodConfig::reread) loads the rest.
    pub annotations: Arc<AtomicBool>,
    /// Whether only pods with [`MANAGED_ANNOTATION`](crate::manifest::MANAGED_ANNOTATION) are taken, beside a kubelet.
    /// After a change [`PodConfig::reread`](super::PodConfig::reread) applies it to known pods.
    pub only_managed: Arc<AtomicBool>,
}

impl ApiSource {
    /// Returns a source with client-go's pauses.
    pub fn new(kubeconfig: impl Into<PathBuf>, node: impl Into<String>) -> Self {
        ApiSource {
            server: Server::kubeconfig(kubeconfig),
            node: node.into(),
            backoff: Duration::from_millis(800),
            max_backoff: Duration::from_secs(30),
            annotations: Arc::new(AtomicBool::new(true)),
            only_managed: Arc::default(),
        }
    }
}

/// Reads the pods of an API server.
pub(super) struct Reader {
    connection: Connection,
    pods: Collection,
    source: ApiSource,
    listed: ServerPods,
}

impl Reader {
    /// Prepares the reading, and sends nothing yet.
    ///
    /// # Errors
    /// Fails without a node's name, and if the access to the server is not usable.
    pub(super) fn new(source: ApiSource) -> Result<Reader, StartError> {
        if source.node.is_empty() {
            return Err(StartError::NoNode);
        }
        let connection = Connection::new(&source.server)?;
        let annotations = Arc::clone(&source.annotations);
        let only_managed = Arc::clone(&source.only_managed);
        let listed =
            ServerPods::new(connection.server().to_owned(), source.node.clone(), annotations, only_managed);
        let pods = Collection::new("/api/v1/pods").only("spec.nodeName", &source.node);
        Ok(Reader { connection, pods, listed, source })
    }

    /// Reads pods forever, and reports them.
    pub(super) async fn read(mut self, mut reporter: Reporter) {
        let mut pace = Pace::new(self.source.backoff, self.source.max_backoff);
        let mut version: Option<String> = None;
        loop {
            let begun = Instant::now();
            let mut reread = reporter.reread.clone();
            let result = tokio::select! {
                result = self.step(&mut version, &reporter) => result,
                Ok(()) = reread.changed() => {
                    reporter.reread.mark_unchanged();
                    version = None;
                    continue;
                }
            };
            let end = match result {
                Ok(end) => end,
                Err(err) => {
                    let mut complaints = vec![Condition::whole(SourceKind::Api, &self.listed.origin, err)];
                    complaints.extend(self.listed.complaints());
                    reporter.complain(complaints);
                    End::Failed
                }
            };
            if end == End::Gone {
                version = None;
            }
            if let Some(wait) = pace.after(begun, end) {
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = reporter.wanted() => version = None,
                }
            }
        }
    }

    /// Lists the pods if no `version` is known, and otherwise watches from it. Returns how that ended.
    async fn step(&mut self, version: &mut Option<String>, reporter: &Reporter) -> Result<End, SourceError> {
        // Tokens and certificates may have been replaced, so they are read again.
        self.connection.renew().await?;
        match version.clone() {
            None => {
                *version = self.list(reporter).await?;
                Ok(if version.is_some() { End::Listed } else { End::Gone })
            }
            Some(from) => self.watch(&from, version, reporter).await,
        }
    }

    /// Lists the pods and reports them. Returns the version to watch from, or `None` if the server has forgotten the
    /// list.
    async fn list(&mut self, reporter: &Reporter) -> Result<Option<String>, SourceError> {
        let mut pods = Pods::default();
        let server = self.connection.server().to_owned();
        self.listed.begin();
        let listed = &mut self.listed;
        let listing = self.pods.list(&self.connection, |item| {
            pods.seen += 1;
            if pods.seen > PODS {
                return Err(too_much(&server, format!("{PODS} pods")));
            }
            let pod = listed.item(item)?;
            if listed.bad_pods() > BAD {
                return Err(too_much(&server, format!("{BAD} pods that can't be used")));
            }
            match pod {
                Some(pod) => pods.push(pod).map_err(|limit| too_much(&server, limit)),
                None => Ok(()),
            }
        });
        let version = listing.await?;
        if version.is_none() {
            return Ok(None);
        }
        reporter.set_but(pods.pods, &self.listed.bad()).await;
        reporter.complain(self.listed.complaints());
        self.listed.news();
        Ok(version)
    }

    async fn watch(
        &mut self,
        from: &str,
        version: &mut Option<String>,
        reporter: &Reporter,
    ) -> Result<End, SourceError> {
        let watch = self.pods.watch(&self.connection, from, WATCH).await?;
        let Some(mut lines) = watch else { return Ok(End::Gone) };
        // The server answers again, so earlier problems of the source are over.
        reporter.complain(self.listed.complaints());
        while let Some(line) = lines.next().await? {
            match self.listed.event(&line, version)? {
                Event::Nothing => {}
                Event::Pod(change) => self.change(change, reporter).await,
                Event::Gone => return Ok(End::Gone),
            }
            if self.listed.bad_pods() > BAD {
                *version = None;
                return Err(too_much(self.connection.server(), format!("{BAD} pods that can't be used")));
            }
            if let Some(complaints) = self.listed.news() {
                reporter.complain(complaints);
            }
        }
        Ok(End::Over)
    }

    /// Reports a pod's change. A pod that exceeds the limits becomes a complaint instead.
    async fn change(&mut self, change: PodChange, reporter: &Reporter) {
        if let PodChange::Put(pod) = &change {
            let limit = match reporter.room(&pod.id) {
                (pods, _) if pods >= PODS => Some(format!("{PODS} pods")),
                (_, kept) if kept + pod.weight() > KEPT => Some(format!("{KEPT} bytes of pods")),
                _ => None,
            };
            if let Some(limit) = limit {
                let err = SourceError::TooMuch {
                    url: self.connection.server().to_owned(),
                    limit,
                    what: "this pod is not taken",
                };
                return self.listed.spoilt(PodId::clone(&pod.id), err);
            }
        }
        reporter.change(change).await;
    }
}

#[derive(Default)]
struct Pods {
    pods: Vec<Arc<Manifest>>,
    weight: usize,
    /// The number of pods in the list, with unusable ones.
    seen: usize,
}

impl Pods {
    fn push(&mut self, pod: Arc<Manifest>) -> Result<(), String> {
        self.weight += pod.weight();
        if self.weight > KEPT {
            return Err(format!("{KEPT} bytes of pods"));
        }
        self.pods.push(pod);
        Ok(())
    }
}

fn too_much(server: &str, limit: String) -> SourceError {
    let what = "what the server has told of is not taken";
    SourceError::TooMuch { url: server.to_owned(), limit, what }
}
