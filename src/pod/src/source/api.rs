//! An API server: the pods that are bound to this node, listed once and then watched.
//!
//! As client-go's reflector does it
//! (<https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes>):
//! list in pages; watch from the list's resourceVersion, with bookmarks; go on from the last
//! version that was seen when a watch ends; list again when the server has forgotten that
//! version (410 Gone); wait longer and longer while it fails.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use hyper::Response;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout};

use super::access::{Connection, encode};
use super::http;
use super::listed::{Event, Listed};
use super::merge::Change;
use super::page::{ITEM_LIMIT, SplitError, Splitter};
use super::{Complaint, HttpError, Reporter, SourceError, StartError};
use crate::PodId;
use crate::manifest::Manifest;

/// How many pods are listed in one answer, and how long that may take.
const PAGE: usize = 500;
const PAGE_TIME: Duration = Duration::from_secs(60);
/// A server that is asked for a list is believed so many pages and bytes …
const PAGES: usize = 1000;
const LIST_LIMIT: usize = 1 << 30;
/// … and so many pods, and so many bytes that are kept of them.
const PODS: usize = 20_000;
const KEPT: usize = 64 << 20;
/// Who has so many pods that can't be used speaks another language.
const BAD: usize = 1000;
/// How large one event of a watch may be.
const EVENT_LIMIT: usize = ITEM_LIMIT + (64 << 10);
/// What asks for the next page has a few hundred bytes.
const TOKEN_LIMIT: usize = 16 << 10;

/// The pods that an API server has for this node.
#[derive(Debug, Clone)]
pub struct ApiSource {
    /// Says how to reach the server. Token, tokenFile, client certificate, name and
    /// password, or a program (`exec`). It is read again, with the files that it names, for each list and
    /// each watch.
    pub kubeconfig: PathBuf,
    /// Instead of a kubeconfig: what the pod is told that we run in.
    pub in_cluster: bool,
    /// Which context of it, if not the current one.
    pub context: Option<String>,
    /// The node's name: pods with this `spec.nodeName` are ours.
    pub node: String,
    /// How long to wait after a failure, doubled each time …
    pub backoff: Duration,
    /// … up to this.
    pub max_backoff: Duration,
    /// How long one watch lasts.
    pub watch_limit: Duration,
    /// Whether plugins want all annotations of pods. While they don't, only those are kept that
    /// limit bandwidth or say whose a pod is. When it changes, [`PodConfig::reread`] brings what
    /// is missing.
    ///
    /// [`PodConfig::reread`]: super::PodConfig::reread
    pub annotations: Arc<AtomicBool>,
    /// Whether only pods are taken that are marked as ours, with [`MANAGED_ANNOTATION`]: beside a
    /// kubelet. When it changes, [`PodConfig::reread`] makes it count for those that are known.
    ///
    /// [`MANAGED_ANNOTATION`]: crate::manifest::MANAGED_ANNOTATION
    /// [`PodConfig::reread`]: super::PodConfig::reread
    pub only_managed: Arc<AtomicBool>,
}

impl ApiSource {
    /// With client-go's times: 0.8 s to 30 s between failures, five minutes for a watch.
    pub fn new(kubeconfig: impl Into<PathBuf>, node: impl Into<String>) -> Self {
        ApiSource {
            kubeconfig: kubeconfig.into(),
            in_cluster: false,
            context: None,
            node: node.into(),
            backoff: Duration::from_millis(800),
            max_backoff: Duration::from_secs(30),
            watch_limit: Duration::from_secs(300),
            annotations: Arc::new(AtomicBool::new(true)),
            only_managed: Arc::default(),
        }
    }
}

pub(super) struct Reader {
    connection: Connection,
    source: ApiSource,
    listed: Listed,
}

/// What has been done.
enum Step {
    /// All pods were listed, as of this version.
    Listed(String),
    /// A watch's time was over: go on from where it was.
    Over,
    /// The server has forgotten the version.
    Gone,
}

impl Reader {
    pub(super) fn new(source: ApiSource) -> Result<Reader, StartError> {
        if source.node.is_empty() {
            return Err(StartError::NoNode);
        }
        let connection = Connection::new(&source)?;
        let annotations = Arc::clone(&source.annotations);
        let only_managed = Arc::clone(&source.only_managed);
        let listed =
            Listed::new(connection.server().to_owned(), source.node.clone(), annotations, only_managed);
        Ok(Reader { connection, listed, source })
    }

    /// Lists and watches for ever.
    pub(super) async fn read(mut self, mut reporter: Reporter) {
        let mut wait = self.source.backoff;
        let mut version: Option<String> = None;
        let mut gone: Option<Instant> = None;
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
            let failed = match result {
                Ok(Step::Listed(from)) => {
                    version = Some(from);
                    continue;
                }
                // A watch that ends at once, again and again, is a failure, too.
                Ok(Step::Over) => begun.elapsed() < self.source.backoff,
                // To have forgotten is none, unless it happens again and again.
                Ok(Step::Gone) => {
                    version = None;
                    gone.replace(begun).is_some_and(|last| last.elapsed() < self.source.max_backoff)
                }
                Err(err) => {
                    let mut complaints = vec![Complaint::whole(&self.listed.origin, err)];
                    complaints.extend(self.listed.complaints());
                    reporter.complain(complaints);
                    true
                }
            };
            if failed {
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = reporter.wanted() => version = None,
                }
                wait = (wait * 2).min(self.source.max_backoff);
            } else {
                wait = self.source.backoff;
            }
        }
    }

    async fn step(&mut self, version: &mut Option<String>, reporter: &Reporter) -> Result<Step, SourceError> {
        // Tokens and certificates are replaced while we run.
        self.connection.renew().await?;
        match version.clone() {
            None => self.list(reporter).await,
            Some(from) => self.watch(&from, version, reporter).await,
        }
    }

    async fn get(&self, query: &str) -> Result<Option<Response<Incoming>>, SourceError> {
        let selector = encode(&format!("spec.nodeName={}", self.source.node));
        let response = self.connection.get(&format!("/api/v1/pods?fieldSelector={selector}&{query}")).await?;
        match response.status().as_u16() {
            200 => Ok(Some(response)),
            410 => Ok(None),
            _ => Err(self.http(http::refused(response).await)),
        }
    }

    fn http(&self, source: HttpError) -> SourceError {
        self.connection.error("/api/v1/pods", source)
    }

    fn too_much(&self, limit: String) -> SourceError {
        let what = "what the server has told of is not taken";
        SourceError::TooMuch { url: self.connection.server().to_owned(), limit, what }
    }

    /// All pods, page by page.
    async fn list(&mut self, reporter: &Reporter) -> Result<Step, SourceError> {
        let mut pods = Pods::default();
        let mut token = String::new();
        let mut left = LIST_LIMIT;
        self.listed.begin();
        for _ in 0..PAGES {
            let next = if token.is_empty() { String::new() } else { format!("&continue={}", encode(&token)) };
            let Some(response) = self.get(&format!("limit={PAGE}{next}")).await? else {
                return Ok(Step::Gone);
            };
            let page = self.page(response.into_body(), &mut pods, &mut left);
            let page = timeout(PAGE_TIME, page).await;
            let meta = page.unwrap_or_else(|_| Err(self.http(HttpError::Timeout(PAGE_TIME))))?;
            let next = meta.token.unwrap_or_default();
            if next.is_empty() {
                let none = || self.listed.answer("a list of pods without resourceVersion");
                let version = meta.resource_version.ok_or_else(none)?;
                reporter.set_but(pods.pods, &self.listed.bad()).await;
                reporter.complain(self.listed.complaints());
                self.listed.news();
                return Ok(Step::Listed(version));
            }
            if next == token || next.len() > TOKEN_LIMIT {
                return Err(self.listed.answer("a list of pods that never ends"));
            }
            token = next;
        }
        Err(self.too_much(format!("{PAGES} pages of pods")))
    }

    /// One page; what it says of itself.
    async fn page(
        &mut self,
        mut body: Incoming,
        pods: &mut Pods,
        left: &mut usize,
    ) -> Result<super::wire::EnvelopeMeta, SourceError> {
        let mut splitter = Splitter::default();
        loop {
            let piece = http::piece(&mut body, http::ANSWER_LIMIT).await.map_err(|err| self.http(err))?;
            let Some(piece) = piece else { break };
            *left =
                left.checked_sub(piece.len()).ok_or_else(|| self.http(HttpError::TooLarge(LIST_LIMIT)))?;
            let listed = &mut self.listed;
            let each = |item: &[u8]| {
                pods.seen += 1;
                if pods.seen > PODS {
                    return Err(Stop::TooMuch(format!("{PODS} pods")));
                }
                let pod = listed.item(item)?;
                if listed.bad_pods() > BAD {
                    return Err(Stop::TooMuch(format!("{BAD} pods that can't be used")));
                }
                pod.map_or(Ok(()), |pod| pods.push(pod))
            };
            splitter.take(&piece, each).map_err(|stop| match stop {
                Stop::Source(err) => err,
                Stop::Split(err) => self.listed.answer(err.to_string()),
                Stop::TooMuch(limit) => self.too_much(limit),
            })?;
        }
        let envelope = splitter.finish().map_err(|err| self.listed.answer(err))?;
        Ok(envelope.metadata)
    }

    /// One watch, until it ends; `version` follows what was seen.
    async fn watch(
        &mut self,
        from: &str,
        version: &mut Option<String>,
        reporter: &Reporter,
    ) -> Result<Step, SourceError> {
        let limit = self.source.watch_limit;
        let query = format!(
            "watch=true&allowWatchBookmarks=true&resourceVersion={}&timeoutSeconds={}",
            encode(from),
            limit.as_secs().max(1),
        );
        let Some(response) = self.get(&query).await? else { return Ok(Step::Gone) };
        // It works again: what was wrong before isn't any more.
        reporter.complain(self.listed.complaints());
        let mut body = response.into_body();
        let mut buffer: Vec<u8> = Vec::new();
        loop {
            // The server ends it in time; if not even that comes, the connection is dead.
            let piece = http::piece(&mut body, limit + http::ANSWER_LIMIT).await;
            let Some(piece) = piece.map_err(|err| self.http(err))? else { return Ok(Step::Over) };
            if buffer.len() + piece.len() > EVENT_LIMIT {
                return Err(self.http(HttpError::TooLarge(EVENT_LIMIT)));
            }
            // Only the new piece can hold the end of a line: a long one isn't searched again.
            let mut searched = buffer.len();
            let mut begin = 0;
            buffer.extend_from_slice(&piece);
            while let Some(length) = buffer.iter().skip(searched).position(|byte| *byte == b'\n') {
                let end = searched + length;
                let event = self.listed.event(buffer.get(begin..end).unwrap_or_default(), version)?;
                (begin, searched) = (end + 1, end + 1);
                match event {
                    Event::Nothing => {}
                    Event::Pod(change) => self.change(change, reporter).await,
                    Event::Gone => return Ok(Step::Gone),
                }
                if self.listed.bad_pods() > BAD {
                    *version = None;
                    return Err(self.too_much(format!("{BAD} pods that can't be used")));
                }
                if let Some(complaints) = self.listed.news() {
                    reporter.complain(complaints);
                }
            }
            buffer.drain(..begin);
            buffer.shrink_to(buffer.len().max(64 << 10));
        }
    }

    /// Passes on what has happened to a pod, unless it is one too many.
    async fn change(&mut self, change: Change, reporter: &Reporter) {
        if let Change::Put(pod) = &change {
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

/// The pods of a list, within limits.
#[derive(Default)]
struct Pods {
    pods: Vec<Arc<Manifest>>,
    weight: usize,
    /// How many there were, those that can't be used among them.
    seen: usize,
}

impl Pods {
    fn push(&mut self, pod: Arc<Manifest>) -> Result<(), Stop> {
        self.weight += pod.weight();
        if self.weight > KEPT {
            return Err(Stop::TooMuch(format!("{KEPT} bytes of pods")));
        }
        self.pods.push(pod);
        Ok(())
    }
}

/// Why a page is read no further.
enum Stop {
    Source(SourceError),
    Split(SplitError),
    TooMuch(String),
}

impl From<SourceError> for Stop {
    fn from(err: SourceError) -> Self {
        Stop::Source(err)
    }
}

impl From<SplitError> for Stop {
    fn from(err: SplitError) -> Self {
        Stop::Split(err)
    }
}
