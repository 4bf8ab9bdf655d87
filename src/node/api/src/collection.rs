//! A collection of objects, which is listed in pages and then watched
//! (<https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes>).

use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Response, Version};
use tokio::time::timeout;

use crate::access::{Connection, encode};
use crate::page::{ITEM_LIMIT, SplitError, Splitter};
use crate::wire::EnvelopeMeta;
use crate::{Error, HttpError, http, tame};

/// How many objects one answer has at most.
pub const PAGE: usize = 500;
/// How long reading one page may take.
const PAGE_TIME: Duration = Duration::from_secs(60);
/// How many pages a list has at most.
const PAGES: usize = 1000;
/// The largest list in bytes, over all pages.
const LIST_LIMIT: usize = 1 << 30;
/// The largest event of a watch in bytes.
const EVENT_LIMIT: usize = ITEM_LIMIT + (64 << 10);
/// The longest token for the next page in bytes. A usual one has a few hundred.
const TOKEN_LIMIT: usize = 16 << 10;

/// The objects of one path, or a part of them.
#[derive(Debug, Clone)]
pub struct Collection {
    path: String,
    noun: String,
    /// The selector of the part with an `&` at its end. It is empty for all objects.
    query: String,
}

enum Stop<E> {
    Caller(E),
    Split(SplitError),
}

impl<E> From<SplitError> for Stop<E> {
    fn from(err: SplitError) -> Self {
        Stop::Split(err)
    }
}

impl Collection {
    /// Returns the collection of all objects of a path, such as `/api/v1/nodes`.
    pub fn new(path: &str) -> Self {
        let noun = path.rsplit('/').next().unwrap_or_default().to_owned();
        Collection { path: path.to_owned(), noun, query: String::new() }
    }

    /// Selects the objects with this value of a field. Replaces another selector.
    #[must_use]
    pub fn only(mut self, field: &str, value: &str) -> Self {
        self.query = format!("fieldSelector={}&", encode(&format!("{field}={value}")));
        self
    }

    /// Selects the objects with all of these labels, such as `app=web,tier=front`. Replaces another selector.
    #[must_use]
    pub fn labelled(mut self, labels: &str) -> Self {
        self.query = format!("labelSelector={}&", encode(labels));
        self
    }

    /// Returns the URL of the collection, without the selector.
    pub fn url(&self, connection: &Connection) -> String {
        format!("{}{}", connection.server(), self.path)
    }

    /// Sends a GET request. Returns `None` if the server has forgotten the version (410).
    async fn get(&self, connection: &Connection, query: &str) -> Result<Option<Response<Incoming>>, Error> {
        let response = connection.get(&format!("{}?{}{query}", self.path, self.query)).await?;
        match response.status().as_u16() {
            200 => Ok(Some(response)),
            410 => Ok(None),
            _ => Err(connection.error(&self.path, http::refused(response).await)),
        }
    }

    /// Returns the error of an unusable answer.
    fn answer(&self, connection: &Connection, reason: &str) -> Error {
        Error::Answer { url: self.url(connection), reason: tame(reason) }
    }

    /// Passes the JSON of every object to `each`, page by page, and stops at its first error. Returns the version to
    /// watch from, or `None` if the server has forgotten the list in the meantime.
    pub async fn list<E: From<Error>>(
        &self,
        connection: &Connection,
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Option<String>, E> {
        let mut token = String::new();
        let mut left = LIST_LIMIT;
        for _ in 0..PAGES {
            let next = if token.is_empty() { String::new() } else { format!("&continue={}", encode(&token)) };
            let Some(response) = self.get(connection, &format!("limit={PAGE}{next}")).await? else {
                return Ok(None);
            };
            let page = self.page(connection, response.into_body(), &mut left, &mut each);
            let Ok(meta) = timeout(PAGE_TIME, page).await else {
                return Err(connection.error(&self.path, HttpError::Timeout(PAGE_TIME)).into());
            };
            let meta = meta?;
            let next = meta.token.unwrap_or_default();
            if next.is_empty() {
                let version = meta.resource_version.ok_or_else(|| {
                    self.answer(connection, &format!("a list of {} without resourceVersion", self.noun))
                });
                return Ok(Some(version?));
            }
            if next == token || next.len() > TOKEN_LIMIT {
                let why = format!("a list of {} that never ends", self.noun);
                return Err(self.answer(connection, &why).into());
            }
            token = next;
        }
        let limit = format!("{PAGES} pages of {}", self.noun);
        Err(Error::TooMuch { url: connection.server().to_owned(), limit }.into())
    }

    /// Reads one page, and returns its metadata. `left` is how many bytes of the list may still come.
    async fn page<E: From<Error>>(
        &self,
        connection: &Connection,
        mut body: Incoming,
        left: &mut usize,
        each: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<EnvelopeMeta, E> {
        let mut splitter = Splitter::default();
        while let Some(piece) = http::piece(&mut body, http::ANSWER_LIMIT)
            .await
            .map_err(|err| connection.error(&self.path, err))?
        {
            *left = left
                .checked_sub(piece.len())
                .ok_or_else(|| connection.error(&self.path, HttpError::TooLarge(LIST_LIMIT)))?;
            let taken = splitter.take_piece(&piece, |item| each(item).map_err(Stop::Caller));
            taken.map_err(|stop| match stop {
                Stop::Caller(err) => err,
                Stop::Split(err) => self.answer(connection, &err.to_string()).into(),
            })?;
        }
        let envelope = splitter.finish().map_err(|err| self.answer(connection, &err))?;
        Ok(envelope.metadata)
    }

    /// Watches for the time `limit`, with bookmarks, from a version on. Returns `None` if the server has forgotten that
    /// version. The objects must then be listed again.
    pub async fn watch(
        &self,
        connection: &Connection,
        from: &str,
        limit: Duration,
    ) -> Result<Option<Lines>, Error> {
        let query = format!(
            "watch=true&allowWatchBookmarks=true&resourceVersion={}&timeoutSeconds={}",
            encode(from),
            limit.as_secs().max(1),
        );
        let response = self.get(connection, &query).await?;
        Ok(response.map(|response| Lines {
            url: self.url(connection),
            notices_silence: response.version() == Version::HTTP_2,
            body: response.into_body(),
            limit: limit + http::ANSWER_LIMIT,
            buffer: Vec::new(),
            searched: 0,
        }))
    }
}

/// The lines of a watch, with one event each. See [`notice`](crate::notice).
#[derive(Debug)]
pub struct Lines {
    url: String,
    notices_silence: bool,
    body: Incoming,
    limit: Duration,
    buffer: Vec<u8>,
    /// How many bytes at the front have no end of a line, so that they are not searched again.
    searched: usize,
}

impl Lines {
    /// Returns whether the watch ends by itself if the server falls silent. HTTP/2 asks it for signs of life.
    pub fn notices_silence(&self) -> bool {
        self.notices_silence
    }

    /// Waits for the next line. Returns `None` at the end of the watch. It is safe to drop this future while it waits.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        loop {
            if let Some(length) = self.buffer.iter().skip(self.searched).position(|byte| *byte == b'\n') {
                let line = self.buffer.drain(..=self.searched + length).collect();
                self.searched = 0;
                return Ok(Some(line));
            }
            self.searched = self.buffer.len();
            self.buffer.shrink_to(self.searched.max(64 << 10));
            // The server ends the watch in time. If it does not, the connection is dead.
            let piece = http::piece(&mut self.body, self.limit).await.map_err(|err| self.error(err))?;
            let Some(piece) = piece else { return Ok(None) };
            if self.buffer.len() + piece.len() > EVENT_LIMIT {
                return Err(self.error(HttpError::TooLarge(EVENT_LIMIT)));
            }
            self.buffer.extend_from_slice(&piece);
        }
    }

    fn error(&self, source: HttpError) -> Error {
        Error::Http { url: self.url.clone(), source }
    }
}
