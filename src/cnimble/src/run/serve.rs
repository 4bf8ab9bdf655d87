//! Serves `/metrics`, `/livez`, `/readyz`, `/healthz` and a page of the managed objects over HTTP, on a Unix socket or
//! a loopback port.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Display;
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
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};

use cnimble_cri::server::Socket;

use crate::args::service::Listen;
use crate::report::{Exit, Report};

/// The contents of the pages.
pub(crate) trait Pages: Send + Sync + 'static {
    /// Returns the metrics and their media type. It may block.
    fn metrics(&self) -> (String, &'static str);
    /// Returns the page of `/readyz` and `/healthz`. The error says why the service isn't healthy, for the status 503.
    fn health(&self) -> Result<String, String>;
    /// Returns whether the process works. The error says why only a new process would help.
    fn life(&self) -> Result<(), String> {
        Ok(())
    }
    /// Returns the path of the page with the managed objects, such as `/pods`.
    fn name(&self) -> &'static str;
    /// Returns that page, which is JSON.
    fn list(&self) -> String;
}

enum Listener {
    Unix(Socket),
    Tcp(TcpListener),
}

/// The greatest number of connections. One more replaces the oldest. An answer takes milliseconds, so slow clients
/// can't block others.
const CLIENTS: usize = 64;
/// The longest time of a connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// A server that listens.
pub(crate) struct Server(Listener);

impl Server {
    /// Listens at the address. Returns `None` if it is off. The socket of a dead process is replaced.
    pub(crate) async fn bind(address: &Listen) -> Result<Option<Self>, Report> {
        let failed = |why: &dyn Display| {
            let report = Report::new(Exit::Files, "can't listen").row("address", address.to_string());
            report.row("why", why.to_string())
        };
        let listener = match address {
            Listen::Off => return Ok(None),
            Listen::Tcp(address) => {
                Listener::Tcp(TcpListener::bind(address).await.map_err(|err| failed(&err))?)
            }
            Listen::Unix(path) => Listener::Unix(Socket::bind(path).await.map_err(|err| failed(&err))?),
        };
        Ok(Some(Server(listener)))
    }

    /// Answers requests until the future is dropped.
    pub(crate) async fn run(self, pages: Arc<impl Pages>) {
        let mut talks = JoinSet::new();
        // The oldest connection comes first.
        let mut clients: VecDeque<AbortHandle> = VecDeque::new();
        loop {
            let accepted = match &self.0 {
                Listener::Tcp(listener) => {
                    listener.accept().await.map(|(stream, _)| talks.spawn(talk(stream, Arc::clone(&pages))))
                }
                Listener::Unix(socket) => {
                    socket.accept().await.map(|stream| talks.spawn(talk(stream, Arc::clone(&pages))))
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
                // In a burst the connections before this one get time to send their request.
                tokio::task::yield_now().await;
            }
        }
    }
}

/// Answers the request of a client.
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

const TEXT: &str = "text/plain; charset=utf-8";

/// Returns the page of a state, with the status 503 for an error.
fn build_state_page(state: Result<String, String>) -> Response<Full<Bytes>> {
    match state {
        Ok(text) => page(StatusCode::OK, TEXT, text),
        Err(why) => page(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n")),
    }
}

/// Returns the answer to a request.
async fn answer(request: &Request<Incoming>, pages: Arc<impl Pages>) -> Response<Full<Bytes>> {
    const JSON: &str = "application/json";
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = page(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET\n".to_owned());
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/metrics" => {
            // The metrics read files, so this may block.
            match tokio::task::spawn_blocking(move || pages.metrics()).await {
                Ok((text, kind)) => page(StatusCode::OK, kind, text),
                Err(err) => page(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{err}\n")),
            }
        }
        "/livez" => build_state_page(pages.life().map(|()| "ok\n".to_owned())),
        "/healthz" | "/readyz" => build_state_page(pages.health()),
        path if path == pages.name() => page(StatusCode::OK, JSON, pages.list()),
        _ => {
            let text = format!("there are /metrics, /livez, /readyz, /healthz and {}\n", pages.name());
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
