//! Connections: who is let in, and how it ends.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use cnimble_pod::sandbox::Sandboxes;

use crate::{Limits, Service, Socket, WORKS, cidr};

/// How long a client may take to say its first word, and how long an answer may take to be read in the end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Between two questions whether a client is still there.
const PING: Duration = Duration::from_secs(60);

/// The largest headers of a request, in bytes.
const HEADERS: u32 = 16 << 10;

/// What a client may send of one request, and in all, before it is read.
const WINDOW: u32 = 256 << 10;

/// A server of CRI.
#[derive(Debug, Clone)]
pub struct Server {
    service: Arc<Service>,
}

impl Server {
    /// A server of these sandboxes. What UpdateRuntimeConfig says of the pods' addresses is kept in `state_dir`, and
    /// holds from the next start on, too.
    pub fn new(sandboxes: Sandboxes, state_dir: &std::path::Path, limits: Limits) -> Self {
        let cidr_file = state_dir.join("pod-cidr");
        if let Some(cidrs) = cidr::load(&cidr_file) {
            sandboxes.network().set_pod_cidrs(cidrs);
        }
        let service = Service {
            sandboxes,
            limits,
            cidr_file,
            calls: Arc::new(Semaphore::new(limits.calls)),
            works: Arc::new(Semaphore::new(WORKS as usize)),
            making: Semaphore::new(limits.parallel.max(1)),
            ending: Semaphore::new(limits.parallel.max(1)),
        };
        Server { service: Arc::new(service) }
    }

    /// Serves until `stop` is done, and then until every change under way has ended, whoever waits for it. The
    /// sandboxes stay.
    pub async fn run(self, socket: Socket, stop: impl Future<Output = ()>) {
        let mut stop = pin!(stop);
        let (closing, closed) = watch::channel(false);
        let places = Arc::new(Semaphore::new(self.service.limits.connections));
        let mut talks = JoinSet::new();
        loop {
            let next = async {
                let place = Arc::clone(&places).acquire_owned().await.ok();
                (place, socket.listener.accept().await)
            };
            let (place, accepted) = tokio::select! {
                next = next => next,
                () = stop.as_mut() => break,
            };
            match accepted {
                Ok((stream, _)) => {
                    let talk = talk(Arc::clone(&self.service), stream, closed.clone());
                    talks.spawn(async move {
                        let _place = place;
                        talk.await;
                    });
                }
                Err(err) => {
                    log::warn!("can't accept a connection: {err}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
            while talks.try_join_next().is_some() {}
        }
        drop(socket);
        // No other begins once this waits.
        let _all = self.service.works.acquire_many(WORKS).await;
        closing.send_replace(true);
        let ended = async { while talks.join_next().await.is_some() {} };
        // A client that doesn't read isn't waited for.
        let _ = tokio::time::timeout(PATIENCE, ended).await;
    }
}

/// Talks with one client.
async fn talk(service: Arc<Service>, stream: UnixStream, mut closed: watch::Receiver<bool>) {
    // One that never speaks would keep its place for ever.
    match tokio::time::timeout(PATIENCE, stream.readable()).await {
        Ok(Ok(())) => {}
        _ => return,
    }
    let streams = u32::try_from(service.limits.calls).unwrap_or(u32::MAX);
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .max_concurrent_streams(streams)
        .max_header_list_size(HEADERS)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW * 4)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PATIENCE);
    let answer = service_fn(move |request| Arc::clone(&service).answer(request));
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), answer));
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = async { let _ = closed.wait_for(|closed| *closed).await; } => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(err) = outcome {
        log::debug!("a connection has ended: {err}");
    }
}
