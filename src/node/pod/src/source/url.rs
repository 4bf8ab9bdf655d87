use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper::header::{
    ACCEPT, ACCEPT_LANGUAGE, CONTENT_TYPE, ETAG, HOST, HeaderMap, HeaderName, HeaderValue, IF_NONE_MATCH,
    LOCATION, USER_AGENT,
};
use hyper::{StatusCode, Uri};

use cnimble_api::http::{self, Client, Tls};
use cnimble_api::{HttpError, Secret, StartError};
use cnimble_os::files::{self as files, Links};

use super::directory::keep_last_good;
use super::{Condition, Reporter, SourceError, SourceKind};
use crate::manifest::{Defaults, MAX_SIZE, Manifest, Origin};

const REDIRECTIONS: usize = 10;
/// The largest file of headers in bytes. Servers accept less.
const HEADERS: usize = 64 << 10;

/// A URL that is asked for manifests in each period. An empty answer means no pods. After a failure, an invalid or too
/// large answer the pods stay. The system's certificate authorities are trusted, and proxies are not used.
#[derive(Clone)]
pub struct UrlSource {
    /// The URL. Its query may contain a password, which is hidden.
    pub url: String,
    /// Headers of the form `NAME: VALUE`. After a redirection to another host or scheme none is sent.
    pub headers: Vec<String>,
    /// Files with one header in a line. They are read for each request, because secrets may be replaced.
    pub header_files: Vec<PathBuf>,
    pub defaults: Defaults,
    /// The time between two requests. The kubelet's default is 20 s.
    pub period: Duration,
}

impl fmt::Debug for UrlSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = Origin::Url(self.url.clone());
        f.debug_struct("UrlSource").field("url", &url).finish_non_exhaustive()
    }
}

impl UrlSource {
    /// Returns a URL that is asked every 20 s, without headers.
    pub fn new(url: impl Into<String>) -> Self {
        UrlSource {
            url: url.into(),
            headers: Vec::new(),
            header_files: Vec::new(),
            defaults: Defaults::default(),
            period: Duration::from_secs(20),
        }
    }
}

/// Reads the manifests at a URL.
pub(super) struct Reader {
    url: Uri,
    origin: Origin,
    headers: HeaderMap,
    header_files: Vec<PathBuf>,
    client: Client,
    defaults: Defaults,
    period: Duration,
}

/// An answer of the server.
enum ListResponse {
    Same,
    Text { bytes: Vec<u8>, tag: Option<HeaderValue> },
}

impl Reader {
    /// Prepares the reading, and sends nothing yet. From now on the parts of the URL's query are hidden in all texts.
    ///
    /// # Errors
    /// Fails if the URL or a header is invalid, and if a file with headers can't be read.
    pub(super) fn new(source: UrlSource) -> Result<Reader, StartError> {
        let url = http::parse_url(&source.url)?;
        // The parts of the query are hidden in all texts, because one may be a password.
        url.query()
            .into_iter()
            .flat_map(|query| query.split(['&', '=']))
            .for_each(|part| drop(Secret::new(part)));
        let mut headers = HeaderMap::new();
        source.headers.iter().try_for_each(|text| add(&mut headers, text))?;
        // An unreadable file is an error now, before the first request.
        from_files(&source.header_files, &mut headers.clone())?;
        let client = Client::new(&url, &Tls::default())?;
        let origin = Origin::Url(source.url.clone());
        let UrlSource { header_files, defaults, period, .. } = source;
        Ok(Reader { url, origin, headers, header_files, client, defaults, period })
    }

    /// Asks forever, and reports the pods.
    pub(super) async fn read(self, mut reporter: Reporter) {
        let mut tag: Option<HeaderValue> = None;
        let mut last: Option<Vec<u8>> = None;
        let mut pods: Vec<Arc<Manifest>> = Vec::new();
        // Complaints about the last valid text.
        let mut complaints: Vec<Condition> = Vec::new();
        loop {
            match self.send_request(tag.as_ref()).await {
                Ok(ListResponse::Same) => reporter.complain(complaints.clone()),
                Ok(ListResponse::Text { bytes, tag: new }) => {
                    tag = new;
                    if last.as_ref() != Some(&bytes) {
                        if bytes.is_empty() {
                            (pods, complaints) = (Vec::new(), Vec::new());
                        } else {
                            let parsed = Manifest::parse_each(&bytes, &self.origin, &self.defaults);
                            let errors = parsed.errors.iter().cloned().map(SourceError::Manifest);
                            complaints = errors
                                .map(|err| Condition::new(SourceKind::Http, &self.origin, err))
                                .collect();
                            pods = keep_last_good(pods, parsed);
                        }
                        // If the first answer is invalid, nothing is known about pods, so the source counts as unread.
                        if complaints.is_empty() || !pods.is_empty() {
                            reporter.set(pods.clone()).await;
                        } else {
                            complaints.iter_mut().for_each(|complaint| complaint.whole = true);
                        }
                        last = Some(bytes);
                    }
                    reporter.complain(complaints.clone());
                }
                Err(source) => {
                    let err = SourceError::Http { url: http::without_query(&self.url), source };
                    reporter.complain(vec![Condition::whole(SourceKind::Http, &self.origin, err)]);
                }
            }
            tokio::select! {
                () = tokio::time::sleep(self.period) => {}
                () = reporter.wanted() => {}
            }
        }
    }

    /// Asks once, and follows redirections. `tag` is the ETag of the last answer.
    async fn send_request(&self, tag: Option<&HeaderValue>) -> Result<ListResponse, HttpError> {
        let mut url = self.url.clone();
        let (files, mut headers) = (self.header_files.clone(), self.headers.clone());
        if !files.is_empty() {
            let read =
                tokio::task::spawn_blocking(move || from_files(&files, &mut headers).map(|()| headers)).await;
            headers = read.map_err(|err| HttpError::Connect(err.to_string()))??;
        }
        if let Some(tag) = tag {
            headers.insert(IF_NONE_MATCH, tag.clone());
        }
        for _ in 0..REDIRECTIONS {
            let response = self.client.get(&url, &headers).await?;
            match response.status() {
                StatusCode::OK => {
                    let tag = response.headers().get(ETAG).cloned();
                    let bytes = http::body(response.into_body(), MAX_SIZE).await?;
                    return Ok(ListResponse::Text { bytes, tag });
                }
                StatusCode::NOT_MODIFIED if tag.is_some() => return Ok(ListResponse::Same),
                status if status.is_redirection() && response.headers().contains_key(LOCATION) => {
                    let place =
                        response.headers().get(LOCATION).map(HeaderValue::as_bytes).unwrap_or_default();
                    let place = String::from_utf8_lossy(place).into_owned();
                    let Some(next) = follow(&url, &place) else {
                        let shown = place.split(['?', '#']).next().unwrap_or_default();
                        return Err(HttpError::Redirect(shown.to_owned()));
                    };
                    if next.authority() != url.authority() || next.scheme() != url.scheme() {
                        headers.clear();
                    }
                    url = next;
                }
                _ => return Err(http::refused(response).await),
            }
        }
        Err(HttpError::Redirect(http::without_query(&url)))
    }
}

fn add(headers: &mut HeaderMap, text: &str) -> Result<(), StartError> {
    let (name, value) = text.split_once(':').ok_or_else(|| header_error(text))?;
    let name = HeaderName::from_bytes(name.trim().as_bytes()).map_err(|_| header_error(text))?;
    // The server may repeat the value, or a word of it, in an error.
    if !is_public(&name) {
        drop(Secret::new(value.trim()));
    }
    let mut value = HeaderValue::from_str(value.trim()).map_err(|_| header_error(text))?;
    value.set_sensitive(true);
    headers.append(name, value);
    Ok(())
}

/// Returns the error of an invalid header. It has only the name, because the value may be a secret.
fn header_error(text: &str) -> StartError {
    StartError::Header(text.split_once(':').map_or("", |(name, _)| name).to_owned())
}

/// Returns whether the header's value is no secret. To hide `application/json` in texts would only confuse.
fn is_public(name: &HeaderName) -> bool {
    [ACCEPT, ACCEPT_LANGUAGE, CONTENT_TYPE, HOST, USER_AGENT].contains(name)
}

/// Adds the headers of these files.
fn from_files(files: &[PathBuf], headers: &mut HeaderMap) -> Result<(), StartError> {
    for path in files {
        add_file(headers, path).map_err(|reason| StartError::HeaderFile { path: path.clone(), reason })?;
    }
    Ok(())
}

fn add_file(headers: &mut HeaderMap, path: &Path) -> Result<(), String> {
    let bytes = files::read(path, HEADERS, Links::Follow).map_err(|err| err.to_string())?;
    let text = String::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".to_owned())?;
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        add(headers, line).map_err(|err| err.to_string())?;
    }
    Ok(())
}

/// Returns the URL of a redirection. It returns `None` if it is invalid, or leads from https to http.
pub(super) fn follow(from: &Uri, place: &str) -> Option<Uri> {
    let next = if place.starts_with('/') && !place.starts_with("//") {
        let base = from.clone().into_parts();
        http::parse_url(&format!("{}://{}{place}", base.scheme?, base.authority?))
    } else {
        http::parse_url(place)
    };
    next.ok().filter(|next| from.scheme_str() != Some("https") || next.scheme_str() == Some("https"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirections_stay_within_http_and_never_leave_tls() {
        let from: Uri = "https://a.example:8443/x?y".parse().unwrap();
        for (place, to) in [
            ("/z", Some("https://a.example:8443/z")),
            ("https://b.example/", Some("https://b.example/")),
            ("http://b.example/", None),
            ("//b.example/", None),
            ("file:///etc/passwd", None),
            ("", None),
        ] {
            assert_eq!(follow(&from, place).map(|url| url.to_string()).as_deref(), to, "{place}");
        }
    }

    #[test]
    fn a_source_that_is_printed_hides_its_secrets() {
        let mut source = UrlSource::new("http://a.example/pods?token=hunter22");
        source.headers.push("X-Key: hunter23".to_owned());
        let shown = format!("{source:?} {:?}", Origin::Url(source.url.clone()));
        assert!(shown.contains("http://a.example/pods") && !shown.contains("hunter"), "{shown}");
    }

    #[test]
    fn bad_urls_and_headers_are_refused_at_once() {
        for url in ["", "/x", "ftp://a/", "http://", "a.example", "https://me:secret@a/", "http://a b/"] {
            assert!(matches!(Reader::new(UrlSource::new(url)), Err(StartError::Url { .. })), "{url}");
        }
        for header in ["", "none", "a b: c", ": c", "a: b\nc: d"] {
            let mut source = UrlSource::new("http://127.0.0.1/");
            source.headers.push(header.to_owned());
            assert!(matches!(Reader::new(source), Err(StartError::Header(_))), "{header}");
        }
    }
}
