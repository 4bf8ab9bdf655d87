//! `/metrics`, `/healthz` and a page of what is looked after over HTTP, on a Unix socket or a loopback port.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::{AbortHandle, JoinSet};

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Listen {
    /// Nowhere.
    Off,
    /// A socket in the file system.
    Unix(PathBuf),
    /// A port of a loopback address.
    Tcp(SocketAddr),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Off => f.write_str("off"),
            Listen::Unix(path) => write!(f, "{}", path.display()),
            Listen::Tcp(address) => write!(f, "{address}"),
        }
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Listen::Off);
        }
        if text.starts_with('/') {
            return Ok(Listen::Unix(text.into()));
        }
        let address: SocketAddr =
            text.parse().map_err(|_| "expected a path (/run/…), ADDRESS:PORT or off".to_owned())?;
        match address.ip().is_loopback() {
            // Any process that can reach it can read it.
            false => Err(format!("{} is no loopback address", address.ip())),
            true => Ok(Listen::Tcp(address)),
        }
    }
}

/// What can be asked for.
pub(crate) trait Pages: Send + Sync + 'static {
    /// The metrics, and their content type.
    fn metrics(&self) -> (String, &'static str);
    /// What to say while all is well, or why it isn't.
    fn health(&self) -> Result<String, String>;
    /// The page of what is looked after: `/pods`.
    fn name(&self) -> &'static str;
    /// What is looked after, as JSON.
    fn list(&self) -> String;
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// Removes the socket's file in the end.
struct Remove(PathBuf);

impl Drop for Remove {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// At most so many conversations at once; each may take so long. Whoever is one too many takes the
/// place of who is here longest: an answer takes milliseconds, and so slow clients, however many, keep
/// none from his.
const CLIENTS: usize = 64;
const PATIENCE: Duration = Duration::from_secs(10);

/// A socket that listens.
pub(crate) struct Server {
    listener: Listener,
    _remove: Option<Remove>,
}

impl Server {
    /// Begins to listen, if it is to be. A socket that a process left behind is replaced.
    pub(crate) async fn bind(address: &Listen) -> io::Result<Option<Self>> {
        let mut remove = None;
        let listener = match address {
            Listen::Off => return Ok(None),
            Listen::Tcp(address) => Listener::Tcp(TcpListener::bind(address).await?),
            Listen::Unix(path) => {
                remove_stale(path).await?;
                if let Some(dir) = path.parent() {
                    fs::create_dir_all(dir)?;
                }
                let listener = UnixListener::bind(path)?;
                fs::set_permissions(path, fs::Permissions::from_mode(0o660))?;
                remove = Some(Remove(path.clone()));
                Listener::Unix(listener)
            }
        };
        Ok(Some(Server { listener, _remove: remove }))
    }

    /// Answers until it is dropped.
    pub(crate) async fn run(self, pages: Arc<impl Pages>) {
        let mut talks = JoinSet::new();
        // The oldest first.
        let mut clients: VecDeque<AbortHandle> = VecDeque::new();
        loop {
            let accepted = match &self.listener {
                Listener::Tcp(listener) => {
                    listener.accept().await.map(|(stream, _)| talks.spawn(talk(stream, Arc::clone(&pages))))
                }
                Listener::Unix(listener) => {
                    listener.accept().await.map(|(stream, _)| talks.spawn(talk(stream, Arc::clone(&pages))))
                }
            };
            while talks.try_join_next().is_some() {}
            clients.retain(|client| !client.is_finished());
            match accepted {
                Ok(client) => clients.push_back(client),
                Err(err) => {
                    log::warn!("can't accept a connection: {err}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
            if clients.len() > CLIENTS
                && let Some(slow) = clients.pop_front()
            {
                slow.abort();
                // It may be a burst: who came just before gets his turn to ask.
                tokio::task::yield_now().await;
            }
        }
    }
}

/// Removes a socket file without a listener; anything else stays.
async fn remove_stale(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => match tokio::net::UnixStream::connect(path).await {
            Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there")),
            Err(_) => fs::remove_file(path),
        },
        Ok(_) => Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file that is no socket is there")),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(err) => Err(err),
    }
}

async fn talk(stream: impl AsyncRead + AsyncWrite + Unpin, pages: Arc<impl Pages>) {
    let service = service_fn(|request| {
        let pages = Arc::clone(&pages);
        async move { Ok::<_, Infallible>(answer(&request, pages).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(PATIENCE).keep_alive(false);
    let conversation = http.serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(PATIENCE, conversation).await {
        Ok(Err(err)) => log::debug!("a client was cut off: {err}"),
        Err(_) => log::debug!("a client took too long"),
        Ok(Ok(())) => {}
    }
}

async fn answer(request: &Request<Incoming>, pages: Arc<impl Pages>) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    const JSON: &str = "application/json";
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = page(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET\n".to_owned());
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/metrics" => {
            // Files are read for it.
            match tokio::task::spawn_blocking(move || pages.metrics()).await {
                Ok((text, kind)) => page(StatusCode::OK, kind, text),
                Err(err) => page(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{err}\n")),
            }
        }
        "/healthz" => match pages.health() {
            Ok(text) => page(StatusCode::OK, TEXT, text),
            Err(why) => page(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n")),
        },
        path if path == pages.name() => page(StatusCode::OK, JSON, pages.list()),
        _ => {
            let text = format!("there are /metrics, /healthz and {}\n", pages.name());
            page(StatusCode::NOT_FOUND, TEXT, text)
        }
    }
}

fn page(status: StatusCode, kind: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sockets_and_loopback_ports() {
        assert_eq!("/run/x".parse(), Ok(Listen::Unix("/run/x".into())));
        assert!(matches!("127.0.0.1:9100".parse(), Ok(Listen::Tcp(_))));
        assert!(matches!("[::1]:9100".parse(), Ok(Listen::Tcp(_))));
        for bad in ["", "9100", ":9100", "0.0.0.0:9100", "192.0.2.1:9100", "localhost:9100", "run/x"] {
            assert!(bad.parse::<Listen>().is_err(), "{bad}");
        }
    }
}
