//! Access to an API server by a kubeconfig, read repeatedly: tokens and certificates are replaced meanwhile.

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

/// The longest token. Servers accept headers of 1 MiB at most.
const TOKEN_LIMIT: usize = 1 << 20;
/// A request waits in all as long for a busy server.
const BUSY_LIMIT: Duration = Duration::from_secs(3);

/// The source of a server's address and credentials.
#[derive(Debug, Clone, Default)]
pub struct Server {
    pub kubeconfig: PathBuf,
    pub in_cluster: bool,
}

impl Server {
    /// Returns the server of a kubeconfig's current context.
    pub fn kubeconfig(path: impl Into<PathBuf>) -> Self {
        Server { kubeconfig: path.into(), ..Server::default() }
    }

    fn read(&self) -> Result<Access, StartError> {
        if self.in_cluster { kubeconfig::in_cluster() } else { kubeconfig::read(&self.kubeconfig) }
    }
}

/// A server with its current address and credentials.
pub struct Connection {
    way: Server,
    access: Access,
    given: Option<Credential>,
    refused: AtomicBool,
    server: String,
    client: Client,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("server", &self.server).finish()
    }
}

impl Connection {
    /// The credential of a program is available only after [`Connection::renew`].
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

    pub fn server(&self) -> &str {
        &self.server
    }

    /// The set is empty if the server's name cannot be resolved now.
    pub async fn addresses(&self) -> BTreeSet<IpAddr> {
        let host = self.access.server.host().unwrap_or_default().trim_matches(['[', ']']);
        let found = tokio::net::lookup_host((host, 0)).await;
        found.into_iter().flatten().map(|address| address.ip()).collect()
    }

    /// Reads the kubeconfig and its files again. If their content has changed, earlier connections are not used again.
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
        let build = move || Client::new(&access.server, &access.tls).map(|client| (access, client));
        let (access, client) = blocking(build).await.map_err(Error::Access)?;
        self.server = address(&access);
        (self.access, self.client) = (access, client);
        Ok(())
    }

    /// Sends a GET request for a path and query.
    ///
    /// # Errors
    /// Fails if the server cannot be reached.
    pub async fn get(&self, target: &str) -> Result<Response<Incoming>, Error> {
        self.ask(Method::GET, target, self.headers().await?, Vec::new()).await
    }

    /// Sends JSON, or content of the type `kind`, to a path.
    ///
    /// # Errors
    /// Fails if the server cannot be reached.
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

    /// Sends a request, and again while a busy server tells to wait, as client-go does.
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
                    // The server has refused the credential.
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
        let misfit = || self.unusable("the credentials don't fit into a header".to_owned());
        let mut value = HeaderValue::from_str(&text).map_err(|_| misfit())?;
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

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StartError> + Send + 'static,
) -> Result<T, StartError> {
    let cut =
        |err: tokio::task::JoinError| StartError::Tls { what: "TLS".to_owned(), reason: err.to_string() };
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|err| Err(cut(err)))
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
