//! The way to an API server: by a kubeconfig that is read again and again, as tokens and
//! certificates are replaced while we run.

use std::io;
use std::path::{Path, PathBuf};

use hyper::body::Incoming;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, Response, Uri};

use cnimble_files::{self as files, Links};

use super::http::Client;
use super::kubeconfig::{self, Access, Credentials};
use super::{HttpError, SourceError, StartError};

/// Servers take headers of 1 MiB at most.
const TOKEN_LIMIT: usize = 1 << 20;

/// A server, and how to speak to it now.
pub(super) struct Connection {
    kubeconfig: PathBuf,
    context: Option<String>,
    access: Access,
    server: String,
    client: Client,
}

impl Connection {
    pub(super) fn new(kubeconfig: &Path, context: Option<&str>) -> Result<Self, StartError> {
        let access = kubeconfig::read(kubeconfig, context)?;
        Ok(Connection {
            kubeconfig: kubeconfig.to_owned(),
            context: context.map(str::to_owned),
            server: address(&access),
            client: Client::new(&access.server, &access.tls)?,
            access,
        })
    }

    /// The server's URL.
    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// Reads the kubeconfig and the files that it names again. If they say something else than
    /// before, no connection from before is used any more.
    pub(super) async fn renew(&mut self) -> Result<(), SourceError> {
        let (kubeconfig, context) = (self.kubeconfig.clone(), self.context.clone());
        let read = move || {
            let access = kubeconfig::read(&kubeconfig, context.as_deref())?;
            Ok(access)
        };
        let access = blocking(read).await.map_err(SourceError::Access)?;
        if access == self.access {
            return Ok(());
        }
        // The system's certificates may have to be read for it.
        let build = move || Client::new(&access.server, &access.tls).map(|client| (access, client));
        let (access, client) = blocking(build).await.map_err(SourceError::Access)?;
        self.server = address(&access);
        (self.access, self.client) = (access, client);
        Ok(())
    }

    /// Asks for a path and query.
    pub(super) async fn get(&self, target: &str) -> Result<Response<Incoming>, SourceError> {
        let url = self.url(target)?;
        let headers = self.headers().await?;
        self.client.get(&url, &headers).await.map_err(|err| self.error(target, err))
    }

    /// Sends JSON (or what `kind` says) to a path.
    pub(super) async fn send(
        &self,
        method: Method,
        target: &str,
        kind: &'static str,
        body: Vec<u8>,
    ) -> Result<Response<Incoming>, SourceError> {
        let url = self.url(target)?;
        let mut headers = self.headers().await?;
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        self.client.send(method, &url, &headers, body).await.map_err(|err| self.error(target, err))
    }

    /// What is wrong with a request; its query is not shown.
    pub(super) fn error(&self, target: &str, source: HttpError) -> SourceError {
        let path = target.split('?').next().unwrap_or_default();
        SourceError::Http { url: format!("{}{path}", self.server), source }
    }

    fn url(&self, target: &str) -> Result<Uri, SourceError> {
        let url = format!("{}{target}", self.server).parse();
        url.map_err(|err: hyper::http::uri::InvalidUri| {
            self.error(target, HttpError::Connect(err.to_string()))
        })
    }

    async fn headers(&self) -> Result<HeaderMap, SourceError> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        let text = match &self.access.credentials {
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
        let mut value = HeaderValue::from_str(&text).map_err(|_| {
            let reason = "the credentials don't fit into a header".to_owned();
            SourceError::Access(StartError::Kubeconfig { path: self.kubeconfig.clone(), reason })
        })?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
        Ok(headers)
    }
}

fn address(access: &Access) -> String {
    access.server.to_string().trim_end_matches('/').to_owned()
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StartError> + Send + 'static,
) -> Result<T, StartError> {
    let cut =
        |err: tokio::task::JoinError| StartError::Tls { what: "TLS".to_owned(), reason: err.to_string() };
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|err| Err(cut(err)))
}

/// For a query or a path: everything but letters, digits and `-_.~` in per cent.
pub(super) fn encode(text: &str) -> String {
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
