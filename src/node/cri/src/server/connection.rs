//! The server's connections: how they begin, make room for others, and end.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::UnixStream;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

use cnimble_pod::sandbox::Sandboxes;

use crate::server::guest::{Guest, idlest};
use crate::server::{CALLS, CONNECTIONS, Service, Socket, WORKS, cidr};

/// How long a client may take to read the last answer, and to answer a ping.
const PATIENCE: Duration = Duration::from_secs(10);

/// The time between two pings, which show whether the client is still there.
const PING: Duration = Duration::from_secs(60);

/// The largest headers of a request, in bytes.
const HEADERS: u32 = 16 << 10;

/// The flow-control window of a stream, in bytes.
const WINDOW: u32 = 256 << 10;

/// A server of CRI.
#[derive(Debug, Clone)]
pub struct Server {
    service: Arc<Service>,
}

impl Server {
    /// Serves these sandboxes. `state_dir` keeps the pods' addresses of UpdateRuntimeConfig for the next start.
    /// `parallel` sandboxes are made at once, and as many stopped or removed; others wait for their turn.
    pub fn new(sandboxes: Sandboxes, state_dir: &std::path::Path, parallel: usize) -> Self {
        let cidr_file = state_dir.join("pod-cidr");
        if let Some(cidrs) = cidr::load(&cidr_file) {
            sandboxes.network().set_pod_cidrs(cidrs);
        }
        let service = Service {
            sandboxes,
            cidr_file,
            calls: Arc::new(Semaphore::new(CALLS as usize)),
            works: Arc::new(Semaphore::new(WORKS as usize)),
            making: Semaphore::new(parallel.max(1)),
            ending: Semaphore::new(parallel.max(1)),
        };
        Server { service: Arc::new(service) }
    }

    /// Serves `socket` until `stop` is done. Then it waits for every change, and at most ten seconds for clients to
    /// read their answers. The sandboxes stay.
    pub async fn run(self, socket: Socket, stop: impl Future<Output = ()>) {
        let mut stop = pin!(stop);
        let mut talks = Talks {
            service: Arc::clone(&self.service),
            guests: Vec::new(),
            tasks: JoinSet::new(),
            freed: Arc::default(),
        };
        loop {
            let next = async {
                let accepted = socket.accept().await;
                talks.make_room().await;
                accepted
            };
            let accepted = tokio::select! {
                accepted = next => accepted,
                () = stop.as_mut() => break,
            };
            match accepted {
                Ok(stream) => talks.begin(stream),
                Err(err) => {
                    log::warn!("can't accept a connection: {err}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
        drop(socket);
        // Once this waits, no other change gets a permit.
        let _all = self.service.works.acquire_many(WORKS).await;
        talks.guests.iter().for_each(|guest| guest.dismiss());
        let ended = async { while talks.tasks.join_next().await.is_some() {} };
        // A client that doesn't read its answer must not delay the end.
        let _ = tokio::time::timeout(PATIENCE, ended).await;
    }
}

/// The connections of a server, and their tasks.
struct Talks {
    service: Arc<Service>,
    guests: Vec<Arc<Guest>>,
    tasks: JoinSet<()>,
    /// Notified at the end of each call.
    freed: Arc<Notify>,
}

impl Talks {
    /// Waits until another connection has room. If all places are taken, it dismisses the connection that was idle
    /// longest. That takes a while to end, so the number of dismissed ones has a limit, too.
    async fn make_room(&mut self) {
        loop {
            while self.tasks.try_join_next().is_some() {}
            // The other reference is that of the connection's task.
            self.guests.retain(|guest| !guest.is_dismissed() && Arc::strong_count(guest) > 1);
            if self.tasks.len() < CONNECTIONS {
                return;
            }
            if self.guests.len() >= CONNECTIONS
                && let Some(idlest) = idlest(&self.guests)
            {
                idlest.dismiss();
            } else if self.guests.len() < CONNECTIONS && self.tasks.len() < CONNECTIONS * 2 {
                return;
            } else {
                tokio::select! {
                    () = self.freed.notified() => {}
                    Some(_) = self.tasks.join_next() => {}
                }
            }
        }
    }

    /// Serves a connection in a task of its own.
    fn begin(&mut self, stream: UnixStream) {
        let guest = Guest::new(Arc::clone(&self.freed));
        self.guests.push(Arc::clone(&guest));
        self.tasks.spawn(talk(Arc::clone(&self.service), stream, guest));
    }
}

/// Serves one connection until it ends, is dismissed or has been idle for too long.
async fn talk(service: Arc<Service>, stream: UnixStream, guest: Arc<Guest>) {
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .max_concurrent_streams(CALLS)
        .max_header_list_size(HEADERS)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW * 4)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PATIENCE);
    let caller = Arc::clone(&guest);
    let answer = service_fn(move |request| {
        let (call, service) = (caller.call(), Arc::clone(&service));
        async move {
            let _call = call;
            service.answer(request).await
        }
    });
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), answer));
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = guest.over() => {
            // Without any call there is no answer that could get lost.
            if !guest.has_called() {
                return;
            }
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(PATIENCE, connection).await {
                Ok(outcome) => outcome,
                Err(_) => return,
            }
        }
    };
    if let Err(err) = outcome {
        log::debug!("a connection has ended: {err}");
    }
}
