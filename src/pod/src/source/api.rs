//! An API server: the pods that are bound to this node, listed once and then watched.
//!
//! As client-go's reflector does it
//! (<https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes>):
//! list in pages; watch from the list's resourceVersion, with bookmarks; go on from the last
//! version that was seen when a watch ends; list again when the server has forgotten that
//! version (410 Gone); wait longer and longer while it fails.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use hyper::Uri;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use tokio::time::Instant;

use cnimble_files::{self as files, Links};

use super::http::{self, Client};
use super::kubeconfig::{self, Credentials};
use super::listed::{Event, Listed};
use super::{Complaint, HttpError, Reporter, SourceError, StartError};

/// How many pods are listed in one answer, and how large it may be.
const PAGE: usize = 500;
const PAGE_LIMIT: usize = 64 << 20;
/// How large one event of a watch may be.
const EVENT_LIMIT: usize = 16 << 20;
/// Servers take headers of 1 MiB at most.
const TOKEN_LIMIT: usize = 1 << 20;

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
    credentials: Credentials,
    source: ApiSource,
    listed: Listed,
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
            listed: Listed::new(server.clone()),
            server,
            credentials: access.credentials,
            source,
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
                let mut complaints = vec![Complaint::new(&self.listed.origin, err)];
                complaints.extend(self.listed.complaints());
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

    fn url(&self, query: &str) -> Result<Uri, SourceError> {
        let selector = encode(&format!("spec.nodeName={}", self.source.node));
        let url = format!("{}/api/v1/pods?fieldSelector={selector}&{query}", self.server);
        url.parse().map_err(|err: hyper::http::uri::InvalidUri| self.listed.answer(err.to_string()))
    }

    async fn headers(&self) -> Result<HeaderMap, SourceError> {
        let mut headers = HeaderMap::new();
        headers.insert(hyper::header::ACCEPT, HeaderValue::from_static("application/json"));
        let text = match &self.credentials {
            Credentials::None => return Ok(headers),
            Credentials::Header(text) => text.clone(),
            Credentials::TokenFile(path) => {
                let file = path.clone();
                let token =
                    tokio::task::spawn_blocking(move || files::read(&file, TOKEN_LIMIT, Links::Follow));
                let token = token.await.unwrap_or_else(|err| Err(io::Error::other(err)));
                let token = token.map_err(|source| SourceError::Read { path: path.clone(), source })?;
                let token = String::from_utf8_lossy(&token);
                format!("Bearer {}", token.trim())
            }
        };
        let mut value = HeaderValue::from_str(&text)
            .map_err(|_| self.listed.answer("the credentials don't fit into a header"))?;
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
            let page = self.listed.page(&bytes)?;
            items.extend(page.items);
            if page.token.is_empty() {
                let none = || self.listed.answer("a list of pods without resourceVersion");
                break page.version.ok_or_else(none)?;
            }
            next = format!("&continue={}", encode(&page.token));
        };
        self.listed.replace(items);
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
        reporter.complain(self.listed.complaints());
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
                match self.listed.event(&line, version)? {
                    Event::Nothing => {}
                    Event::Pods => self.tell(reporter).await,
                    Event::Gone => return Ok(End::Gone),
                }
            }
        }
    }

    async fn tell(&self, reporter: &Reporter) {
        reporter.complain(self.listed.complaints());
        reporter.set(self.listed.pods()).await;
    }
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
