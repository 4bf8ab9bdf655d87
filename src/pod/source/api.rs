//! An API server: the pods that are bound to this node, listed once and then watched.
//!
//! As client-go's reflector does it
//! (<https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes>):
//! list in pages; watch from the list's resourceVersion, with bookmarks; go on from the last
//! version that was seen when a watch ends; list again when the server has forgotten that
//! version (410 Gone); wait longer and longer while it fails.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use hyper::Uri;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;
use tokio::time::Instant;

use super::http::{self, Client};
use super::kubeconfig::{self, Credentials};
use super::{Complaint, HttpError, Reporter, SourceError, StartError};
use crate::pod::PodId;
use crate::pod::manifest::{Manifest, Origin};

/// How many pods are listed in one answer, and how large it may be.
const PAGE: usize = 500;
const PAGE_LIMIT: usize = 64 << 20;
/// How large one event of a watch may be.
const EVENT_LIMIT: usize = 16 << 20;
/// A pod that the kubelet made in the API to show a static pod there. It is no pod to run.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The pods that an API server has for this node.
#[derive(Debug, Clone)]
pub struct ApiSource {
    /// Says how to reach the server. Token, tokenFile, client certificate, or name and
    /// password; not `exec`.
    pub kubeconfig: PathBuf,
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
}

impl ApiSource {
    /// With client-go's times: 0.8 s to 30 s between failures, five minutes for a watch.
    pub fn new(kubeconfig: impl Into<PathBuf>, node: impl Into<String>) -> Self {
        ApiSource {
            kubeconfig: kubeconfig.into(),
            context: None,
            node: node.into(),
            backoff: Duration::from_millis(800),
            max_backoff: Duration::from_secs(30),
            watch_limit: Duration::from_secs(300),
        }
    }
}

pub(super) struct Reader {
    client: Client,
    server: String,
    origin: Origin,
    credentials: Credentials,
    source: ApiSource,
    pods: BTreeMap<PodId, Manifest>,
    /// Pods that can't be used.
    bad: BTreeMap<PodId, Complaint>,
}

/// How a watch ended.
enum End {
    /// Its time was over: go on from here.
    Over,
    /// The server has forgotten the version.
    Gone,
}

impl Reader {
    pub(super) fn new(source: ApiSource) -> Result<Reader, StartError> {
        if source.node.is_empty() {
            return Err(StartError::NoNode);
        }
        let access = kubeconfig::read(&source.kubeconfig, source.context.as_deref())?;
        let server = access.server.to_string().trim_end_matches('/').to_owned();
        Ok(Reader {
            client: Client::new(&access.server, access.tls)?,
            origin: Origin::Api(server.clone()),
            server,
            credentials: access.credentials,
            source,
            pods: BTreeMap::new(),
            bad: BTreeMap::new(),
        })
    }

    /// Lists and watches for ever.
    pub(super) async fn read(mut self, mut reporter: Reporter) {
        let mut wait = self.source.backoff;
        let mut version: Option<String> = None;
        loop {
            let begun = Instant::now();
            let mut reread = reporter.reread.clone();
            let listing = version.is_none();
            let step = async {
                match version.clone() {
                    None => self.list(&reporter).await.map(|listed| version = Some(listed)),
                    Some(from) => match self.watch(from, &mut version, &reporter).await {
                        Ok(End::Over) => Ok(()),
                        Ok(End::Gone) => {
                            version = None;
                            Ok(())
                        }
                        Err(err) => Err(err),
                    },
                }
            };
            let result = tokio::select! {
                result = step => result,
                Ok(()) = reread.changed() => {
                    reporter.reread.mark_unchanged();
                    version = None;
                    continue;
                }
            };
            // A watch that ends at once, again and again, is a failure, too.
            let failed = match &result {
                Ok(()) => !listing && begun.elapsed() < self.source.backoff,
                Err(_) => true,
            };
            if let Err(err) = result {
                let mut complaints = vec![Complaint::new(&self.origin, err)];
                complaints.extend(self.bad.values().cloned());
                reporter.complain(complaints);
            }
            if failed {
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = reporter.wanted() => version = None,
                }
                wait = (wait * 2).min(self.source.max_backoff);
            } else if !listing {
                wait = self.source.backoff;
            }
        }
    }

    fn http(&self, source: HttpError) -> SourceError {
        SourceError::Http { url: format!("{}/api/v1/pods", self.server), source }
    }

    fn answer(&self, reason: impl Into<String>) -> SourceError {
        SourceError::Answer { url: format!("{}/api/v1/pods", self.server), reason: reason.into() }
    }

    fn url(&self, query: &str) -> Result<Uri, SourceError> {
        let selector = encode(&format!("spec.nodeName={}", self.source.node));
        let url = format!("{}/api/v1/pods?fieldSelector={selector}&{query}", self.server);
        url.parse().map_err(|err: hyper::http::uri::InvalidUri| self.answer(err.to_string()))
    }

    async fn headers(&self) -> Result<HeaderMap, SourceError> {
        let mut headers = HeaderMap::new();
        headers.insert(hyper::header::ACCEPT, HeaderValue::from_static("application/json"));
        let text = match &self.credentials {
            Credentials::None => return Ok(headers),
            Credentials::Header(text) => text.clone(),
            Credentials::TokenFile(path) => {
                let token = tokio::fs::read_to_string(path).await;
                let token = token.map_err(|source| SourceError::Read { path: path.clone(), source })?;
                format!("Bearer {}", token.trim())
            }
        };
        let mut value = HeaderValue::from_str(&text)
            .map_err(|_| self.answer("the credentials don't fit into a header"))?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
        Ok(headers)
    }

    /// All pods, page by page; the version to watch from.
    async fn list(&mut self, reporter: &Reporter) -> Result<String, SourceError> {
        let mut items = Vec::new();
        let mut next = String::new();
        let version = loop {
            let url = self.url(&format!("limit={PAGE}{next}"))?;
            let response =
                self.client.get(&url, &self.headers().await?).await.map_err(|err| self.http(err))?;
            if response.status() != 200 {
                return Err(self.http(http::refused(response).await));
            }
            let bytes = http::body(response.into_body(), PAGE_LIMIT).await.map_err(|err| self.http(err))?;
            let mut page: Value =
                serde_json::from_slice(&bytes).map_err(|err| self.answer(err.to_string()))?;
            let meta = |key: &str| page.pointer(&format!("/metadata/{key}")).and_then(Value::as_str);
            let (version, token) =
                (meta("resourceVersion").map(str::to_owned), meta("continue").unwrap_or_default());
            next = if token.is_empty() { String::new() } else { format!("&continue={}", encode(token)) };
            match page.get_mut("items").map(Value::take) {
                Some(Value::Array(more)) => items.extend(more),
                Some(Value::Null) => {}
                _ => return Err(self.answer("a list of pods without items")),
            }
            if next.is_empty() {
                break version.ok_or_else(|| self.answer("a list of pods without resourceVersion"))?;
            }
        };
        let mut before = std::mem::take(&mut self.pods);
        self.bad.clear();
        for item in items {
            self.take(item, &mut before);
        }
        self.tell(reporter).await;
        Ok(version)
    }

    /// One watch, until it ends; `version` follows what was seen.
    async fn watch(
        &mut self,
        from: String,
        version: &mut Option<String>,
        reporter: &Reporter,
    ) -> Result<End, SourceError> {
        let limit = self.source.watch_limit;
        let url = self.url(&format!(
            "watch=true&allowWatchBookmarks=true&resourceVersion={}&timeoutSeconds={}",
            encode(&from),
            limit.as_secs().max(1),
        ))?;
        let response = self.client.get(&url, &self.headers().await?).await.map_err(|err| self.http(err))?;
        match response.status().as_u16() {
            200 => {}
            410 => return Ok(End::Gone),
            _ => return Err(self.http(http::refused(response).await)),
        }
        // It works again: what was wrong before isn't any more.
        reporter.complain(self.bad.values().cloned().collect());
        let mut body = response.into_body();
        let mut buffer: Vec<u8> = Vec::new();
        loop {
            // The server ends it in time; if not even that comes, the connection is dead.
            let piece =
                http::piece(&mut body, limit + http::ANSWER_LIMIT).await.map_err(|err| self.http(err))?;
            let Some(piece) = piece else { return Ok(End::Over) };
            if buffer.len() + piece.len() > EVENT_LIMIT {
                return Err(self.http(HttpError::TooLarge(EVENT_LIMIT)));
            }
            // Only the new piece can hold the end of a line: a long one isn't searched again.
            let mut searched = buffer.len();
            buffer.extend_from_slice(&piece);
            while let Some(end) = buffer.iter().skip(searched).position(|byte| *byte == b'\n') {
                let rest = buffer.split_off(searched + end + 1);
                let line = std::mem::replace(&mut buffer, rest);
                searched = 0;
                if let Some(end) = self.event(&line, version, reporter).await? {
                    return Ok(end);
                }
            }
        }
    }

    /// One event of a watch; `Some` if it is the last.
    async fn event(
        &mut self,
        line: &[u8],
        version: &mut Option<String>,
        reporter: &Reporter,
    ) -> Result<Option<End>, SourceError> {
        if line.trim_ascii().is_empty() {
            return Ok(None);
        }
        let mut event: Value = serde_json::from_slice(line)
            .map_err(|err| self.answer(format!("an event that is no JSON: {err}")))?;
        let object = event.get_mut("object").map(Value::take).unwrap_or_default();
        let kind = event.get("type").and_then(Value::as_str).unwrap_or_default();
        let seen = object.pointer("/metadata/resourceVersion").and_then(Value::as_str).map(str::to_owned);
        match kind {
            "BOOKMARK" => {}
            "ADDED" | "MODIFIED" => {
                let mut before = id(&object).and_then(|id| self.pods.remove_entry(&id)).into_iter().collect();
                self.take(object, &mut before);
                self.tell(reporter).await;
            }
            "DELETED" => {
                if let Some(id) = id(&object) {
                    self.pods.remove(&id);
                    self.bad.remove(&id);
                }
                self.tell(reporter).await;
            }
            "ERROR" => {
                let code =
                    object.get("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
                let reason = object.get("reason").and_then(Value::as_str).unwrap_or_default();
                if code == Some(410) || matches!(reason, "Expired" | "Gone") {
                    return Ok(Some(End::Gone));
                }
                let message = object.get("message").and_then(Value::as_str).unwrap_or(reason);
                // From where this failed there is no going on.
                *version = None;
                return Err(SourceError::Watch {
                    url: self.server.clone(),
                    code: code.unwrap_or(0),
                    message: message.to_owned(),
                });
            }
            other => return Err(self.answer(format!("an event of type \"{}\"", other.escape_debug()))),
        }
        if seen.is_some() {
            *version = seen;
        }
        Ok(None)
    }

    /// Keeps a pod. One that can't be used leaves what there was of it before.
    fn take(&mut self, object: Value, before: &mut BTreeMap<PodId, Manifest>) {
        let id = id(&object);
        let result = serde_path_to_error::deserialize::<_, Pod>(object)
            .map_err(|err| self.answer(format!("{}: {}", err.path(), err.inner())))
            .and_then(|pod| Ok(Manifest::from_pod(pod, &self.origin)?));
        let Some(id) = id else {
            let nameless = PodId::new("", "");
            self.bad.insert(nameless, Complaint::new(&self.origin, self.answer("a pod without a name")));
            return;
        };
        match result {
            Ok(pod) => {
                self.bad.remove(&id);
                if pod.annotations().contains_key(MIRROR) {
                    self.pods.remove(&id);
                } else {
                    self.pods.insert(id, pod);
                }
            }
            Err(err) => {
                let mut complaint = Complaint::new(&self.origin, err);
                complaint.pod = Some(id.clone());
                self.bad.insert(id.clone(), complaint);
                if let Some(old) = before.remove(&id) {
                    self.pods.insert(id, old);
                }
            }
        }
    }

    async fn tell(&self, reporter: &Reporter) {
        reporter.complain(self.bad.values().cloned().collect());
        reporter.set(self.pods.values().cloned().collect()).await;
    }
}

/// Which pod an object is, whatever else is wrong with it.
fn id(object: &Value) -> Option<PodId> {
    let meta = |key: &str| object.pointer(&format!("/metadata/{key}")).and_then(Value::as_str);
    Some(PodId::new(meta("namespace").unwrap_or("default"), meta("name")?))
}

/// For a query: everything but letters, digits and `-_.~` in per cent.
fn encode(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_encoded() {
        assert_eq!(encode("spec.nodeName=a b&c/ä"), "spec.nodeName%3Da%20b%26c%2F%C3%A4");
    }
}
