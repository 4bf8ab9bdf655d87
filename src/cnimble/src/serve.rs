//! `serve`: serves CRI for pod sandboxes.

use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

use tokio::sync::oneshot;

use cnimble_cri::server::{Server, Socket};
use cnimble_pod::sandbox::Sandboxes;
use cnimble_runtime::Stderr;

use super::Session;
use super::args::serve::Serve;
use super::interrupt::Signals;
use super::report::{Exit, Report};
use super::run::{STATUS, files, notify};

/// Serves until a signal. SIGHUP reloads the network. SIGINT and SIGTERM let the running requests end, and a second of
/// them ends the process at once.
pub(super) async fn serve(session: &Session, given: &Serve) -> Result<(), Report> {
    let mut signals = Signals::listen()?;
    let _lock = files::lock(&given.options.state_dir).await?;
    let socket = match passed()? {
        Some(fd) => Socket::passed(fd).map_err(|err| cant_listen(&err.to_string())),
        None => Socket::bind(&given.cri).await.map_err(|err| {
            let hint = "name another socket with --cri, or end the process that listens there";
            cant_listen(&err.to_string()).hint(hint)
        }),
    }?;
    let invoker = session.invoker.clone().with_stderr(Stderr::Capture);
    let sandboxes = given.options.open(&session.with_invoker(invoker), &[]).await?;
    let network = sandboxes.network().clone();
    let parallel = usize::from(given.parallel);
    let server = Server::new(sandboxes.clone(), &given.options.state_dir, parallel);
    // The probe precedes the first pod. A kubelet creates no pods while the plugins report that they can't serve.
    let _ = network.probe().await;
    let probed = network.clone();
    tokio::spawn(async move { probed.keep_probing(STATUS).await });
    tokio::spawn(settle_sandboxes(sandboxes, parallel));
    log::info!("serving pod sandboxes, and nothing else of CRI, at {}", socket.path().display());
    notify::ready();

    let (stop, stopped) = oneshot::channel::<()>();
    let mut serving = tokio::spawn(server.run(socket, async {
        let _ = stopped.await;
    }));
    let mut stop = Some(stop);
    loop {
        tokio::select! {
            ended = &mut serving => return ended.map_err(|err| {
                Report::because(Exit::Files, "can't serve", err)
            }),
            exit = signals.next() => match exit {
                Exit::HungUp => {
                    notify::reloading();
                    network.reload().await;
                    notify::ready();
                }
                exit => match stop.take() {
                    Some(stop) => {
                        notify::stopping();
                        drop(stop);
                    }
                    None => return Err(Report::because(exit, "stopped at once", "a second signal arrived; the next start undoes unfinished work")),
                },
            },
        }
    }
}

fn cant_listen(why: &str) -> Report {
    Report::because(Exit::Files, "can't listen", why)
}

/// Returns the socket that systemd passes, or `None`. Plugins don't inherit it (sd_listen_fds(3)).
fn passed() -> Result<Option<OwnedFd>, Report> {
    let mut passed = sd_notify::listen_fds().map_err(|err| cant_listen(&format!("LISTEN_FDS: {err}")))?;
    match (passed.next(), passed.len()) {
        (None, _) => Ok(None),
        // SAFETY: systemd has opened this descriptor for this process, and this is the only place that takes it.
        (Some(fd), 0) => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
        (Some(_), more) => Err(cant_listen(&format!("systemd passes {} sockets; expected one", more + 1))),
    }
}

/// The time between two attempts of [`settle_sandboxes`].
const AGAIN: Duration = Duration::from_secs(60);

/// Finishes what an earlier process has left unfinished. It retries after a failure, because a plugin may be missing
/// for a while.
async fn settle_sandboxes(sandboxes: Sandboxes, parallel: usize) {
    while let Err(err) = sandboxes.finish_interrupted(parallel).await {
        log::warn!("can't finish interrupted work: {err}");
        tokio::time::sleep(AGAIN).await;
    }
}
