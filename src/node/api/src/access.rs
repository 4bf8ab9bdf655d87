//! Access to an API server by a kubeconfig, which is read repeatedly because tokens and certificates are replaced.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, Response, Uri};

use cnimble_os::files::{self as files, Links};

use crate::exec::Credential;
use crate::http::{self, Client};
use crate::kubeconfig::{self, Access, Credentials};
use crate::{Error, HttpError, Secret, StartError};

/// The longest token in bytes. Servers accept headers of 1 MiB at most.
const TOKEN_LIMIT: usize = 1 << 20;
/// How long one request waits in all for a busy server.
const BUSY_LIMIT: Duration = Duration::from_secs(3);

/// The source of a server's address and credentials.
#[derive(Debug, Clone, Default)]
pub struct Server {
    /// The path of the kubeconfig.
    pub kubeconfig: PathBuf,
    /// Whether the pod's service account is used instead of the kubeconfig.
    pub in_cluster: bool,
}

impl Server {
    /// Returns the server of a kubeconfig's current context.
    pub fn kubeconfig(path: impl Into<PathBuf>) -> Self {
        Server { kubeconfig: path.into(), ..Server::default() }
    }

    /// Reads address and credentials, with the files that the kubeconfig names.
    fn read(&self) -> Result<Access, StartError> {
        if self.in_cluster { kubeconfig::in_cluster() } else { kubeconfig::read(&self.kubeconfig) }
    }
}

/// A server with its current address and credentials.
pub struct Connection {
    /// The source that is read again.
    way: Server,
    access: Access,
    /// The credential that a program has given.
    given: Option<Credential>,
    /// Whether the server has refused the credential (401) since the last renewal.
    refused: AtomicBool,
    /// The URL without a slash at its end.
    server: String,
    client: Client,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("server", &self.server).finish()
    }
}

impl Connection {
    /// Reads the source, and sends nothing yet. If the kubeconfig names a program for credentials, it first runs in
    /// [`Connection::renew`].
    pub fn new(way: &Server) -> Result<Self, StartError> {
        let way = way.clone();
        let access = way.read()?;
        Ok(Connection {
            way,
            given: None,
            refused: AtomicBool::new(false),
            server: address(&access),
            client: Client::new(&access.server, &access.tls)?,
            access,
        })
    }

    /// Returns the server's URL without a slash at its end.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Returns the addresses of the server. The set is empty if its name cannot be resolved now.
    pub async fn addresses(&self) -> BTreeSet<IpAddr> {
        let host = self.access.server.host().unwrap_or_default().trim_matches(['[', ']']);
        let found = tokio::net::lookup_host((host, 0)).await;
        found.into_iter().flatten().map(|address| address.ip()).collect()
    }

    /// Reads the kubeconfig and its files again, and runs its program if its credential has expired or was refused. If
    /// anything has changed, earlier connections are not used again. Call this before each list or watch.
    pub async fn renew(&mut self) -> Result<(), Error> {
        let way = self.way.clone();
        let mut access = blocking(move || way.read()).await.map_err(Error::Access)?;
        let given = match &access.credentials {
            Credentials::Exec(program) => {
                let same = access.credentials == self.access.credentials;
                let refused = self.refused.swap(false, Ordering::Relaxed);
                Some(match self.given.take().filter(|given| same && !refused && given.is_fresh()) {
                    Some(given) => given,
                    None => program.run().await.map_err(|reason| self.unusable(reason))?,
                })
            }
            _ => None,
        };
        if let Some(client) = given.as_ref().and_then(|given| given.client.clone()) {
            access.tls.client = Some(client);
        }
        self.given = given;
        if access == self.access {
            return Ok(());
        }
        // The system's certificates may have to be read for the client.
        let (access, client) =
            blocking(move || Client::new(&access.server, &access.tls).map(|client| (access, client)))
                .await
                .map_err(Error::Access)?;
        self.server = address(&access);
        (self.access, self.client) = (access, client);
        Ok(())
    }

    /// Sends a GET request for a path and query. A failure that the server reports is a response with its status.
    ///
    /// # Errors
    /// Fails if the server cannot be reached, or if the token cannot be read.
    pub async fn get(&self, target: &str) -> Result<Response<Incoming>, Error> {
        self.ask(Method::GET, target, self.headers().await?, Vec::new()).await
    }

    /// Sends a body of the content type `kind` to a path. A failure that the server reports is a response with its
    /// status.
    ///
    /// # Errors
    /// Fails if the server cannot be reached, or if the token cannot be read.
    pub async fn send(
        &self,
        method: Method,
        target: &str,
        kind: &'static str,
        body: Vec<u8>,
    ) -> Result<Response<Incoming>, Error> {
        let mut headers = self.headers().await?;
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        self.ask(method, target, headers, body).await
    }

    /// Sends a request. Sends it again while a busy server asks to wait, as client-go does, for [`BUSY_LIMIT`] in all.
    async fn ask(
        &self,
        method: Method,
        target: &str,
        headers: HeaderMap,
        body: Vec<u8>,
    ) -> Result<Response<Incoming>, Error> {
        let url = self.url(target)?;
        let mut left = BUSY_LIMIT;
        loop {
            let answer = self.client.send(method.clone(), &url, &headers, body.clone()).await;
            let answer = answer.map_err(|err| self.error(target, err))?;
            match http::retry_after(&answer).and_then(|wait| Some((wait, left.checked_sub(wait)?))) {
                None => {
                    // The server has refused the credential, so the next renewal replaces it.
                    self.refused.fetch_or(answer.status().as_u16() == 401, Ordering::Relaxed);
                    return Ok(answer);
                }
                Some((wait, rest)) => {
                    left = rest;
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }

    /// Returns the error of unusable credentials.
    fn unusable(&self, reason: String) -> Error {
        Error::Access(StartError::Kubeconfig { path: self.way.kubeconfig.clone(), reason })
    }

    /// Returns the error of a request without its query, which may contain a secret.
    pub fn error(&self, target: &str, source: HttpError) -> Error {
        let path = target.split('?').next().unwrap_or_default();
        Error::Http { url: format!("{}{path}", self.server), source }
    }

    fn url(&self, target: &str) -> Result<Uri, Error> {
        let url = format!("{}{target}", self.server).parse();
        url.map_err(|err: hyper::http::uri::InvalidUri| {
            self.error(target, HttpError::Connect(err.to_string()))
        })
    }

    /// Returns the headers of a request, with the credential.
    async fn headers(&self) -> Result<HeaderMap, Error> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        let text = match &self.access.credentials {
            Credentials::None => return Ok(headers),
            Credentials::Token(token) => bearer(token),
            Credentials::Basic(encoded) => format!("Basic {}", encoded.expose()),
            Credentials::Exec(_) => match self.given.as_ref().and_then(|given| given.token.as_ref()) {
                Some(token) => bearer(token),
                None => return Ok(headers),
            },
            Credentials::TokenFile(path) => {
                let file = path.clone();
                let token =
                    tokio::task::spawn_blocking(move || files::read(&file, TOKEN_LIMIT, Links::Follow));
                let token = token.await.unwrap_or_else(|err| Err(io::Error::other(err)));
                let token = token.map_err(|source| Error::Read { path: path.clone(), source })?;
                let token = String::from_utf8_lossy(&token);
                bearer(&Secret::new(token.trim()))
            }
        };
        let mut value = HeaderValue::from_str(&text)
            .map_err(|_| self.unusable("the credentials don't fit into a header".to_owned()))?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
        Ok(headers)
    }
}

fn bearer(token: &Secret) -> String {
    format!("Bearer {}", token.expose())
}

fn address(access: &Access) -> String {
    access.server.to_string().trim_end_matches('/').to_owned()
}

/// Runs work that reads files on a thread that may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StartError> + Send + 'static,
) -> Result<T, StartError> {
    let outcome = tokio::task::spawn_blocking(work).await;
    outcome.unwrap_or_else(|err| Err(StartError::Tls { what: "TLS".to_owned(), reason: err.to_string() }))
}

/// Encodes text for a query or a path. All characters except letters, digits and `-_.~` become percent codes.
pub fn encode(text: &str) -> String {
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
