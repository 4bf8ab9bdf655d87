//! `run`: keeps the pods of manifests up, as a kubelet does.

mod feed;
pub(super) mod files;
mod kubelet;
pub(super) mod metrics;
pub(super) mod notify;
pub(super) mod progress;
mod repair;
pub(super) mod serve;
pub(super) mod sources;
mod status;
mod writing;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

use cnimble_pod::network::NetworkPlugin;
use cnimble_pod::source::{PodConfig, StartError, StatusWriter};
use cnimble_pod::sync::{
    Ended, Handle, Listener, Phase, PodReport, Pods, SandboxWork, SyncLoop, SyncOptions,
};
use cnimble_runtime::{Observer, Stderr};

use super::args::run::Run;
use super::args::service::Listen;
use super::interrupt::Signals;
use super::report::{Exit, Report};
use super::style::{count, joined};
use super::{Session, print, print_json};
use feed::Feed;
use metrics::Metrics;
use serve::Server;
use status::Status;
use writing::Writing;

/// Keeps the pods of the sources up until a signal, or until all were tried once with `--once`.
pub(super) async fn run(session: &Session, given: &Run) -> Result<(), Report> {
    let signals = Signals::listen()?;
    let sources = given.sources.sources()?;
    let _lock = files::lock(&given.options.state_dir).await?;
    let metrics = Arc::new(Metrics::new());
    let sandboxes = given.options.open(&counted(session, &metrics), &given.own_network).await?;
    let network = sandboxes.network().clone();
    let listen = given.listen.clone();
    let listen = listen.unwrap_or_else(|| Listen::Unix(given.options.run_dir.join("cnimble.sock")));
    let server = Server::bind(&listen).await?;
    let mut tasks = JoinSet::new();
    let writing = match sources.api.as_ref().filter(|_| given.sources.write_status) {
        Some(api) => {
            let writer = StatusWriter::new(api).map_err(|err| no_source(&err))?;
            Some(Writing::start(writer, &mut tasks))
        }
        None => None,
    };
    let annotations = sources.api.as_ref().map(|api| Arc::clone(&api.annotations));
    if let Some(annotations) = &annotations {
        annotations.store(wants_annotations(&network), Ordering::Relaxed);
    }
    let only_managed = sources.api.as_ref().map(|api| Arc::clone(&api.only_managed));
    if let Some(flag) = &only_managed {
        kubelet::detect_kubelet(flag);
    }
    let restorable = sources.api.as_ref().map(|_| sandboxes.clone());
    let (config, updates) = PodConfig::start(sources).map_err(|err| no_source(&err))?;
    let config = Arc::new(config);

    let options = options(given, &metrics, writing.clone());
    let repair = repair::repair(session, &sandboxes);
    let (looping, handle) = SyncLoop::new(SandboxWork::new(sandboxes, repair), options);
    let board = looping.board();
    let status =
        Status { board: board.clone(), network: network.clone(), conditions: config.conditions(), metrics };
    // The probe precedes the first pod. A kubelet sets up no pods while the plugins report that they can't serve.
    let _ = network.probe().await;
    let (inputs, received) = mpsc::channel(16);
    let looping = tokio::spawn(looping.run(received));
    if let Some(server) = server {
        tasks.spawn(server.run(Arc::new(status.clone())));
    }
    tasks
        .spawn(Feed::new(Arc::clone(&config), inputs, given.options.dns(), writing, restorable).run(updates));
    tasks.spawn(notify::keep_telling(board.clone()));
    tasks.spawn(progress::draw(board));
    tasks.spawn(progress::tell_of_problems(config.conditions()));
    tasks.spawn(follow(network.clone(), handle.clone(), Arc::clone(&config), annotations));
    only_managed.into_iter().for_each(|flag| drop(tasks.spawn(kubelet::watch(flag, Arc::clone(&config)))));
    let probed = network.clone();
    tasks.spawn(async move { probed.keep_probing(STATUS).await });
    notify::ready();

    let running = Running { config, network, handle, looping };
    let ended = running.watch(given, signals, &status).await;
    // The progress line is removed before other output.
    tasks.shutdown().await;
    finish(session, given, &status, &ended?)
}

/// Returns the session with an invoker that counts each run of a plugin.
fn counted(session: &Session, metrics: &Arc<Metrics>) -> Session {
    let metrics = Arc::clone(metrics);
    let invoker = session.invoker.clone().with_stderr(Stderr::Capture);
    session.with_invoker(invoker.with_observer(Observer::new(move |execution| metrics.executed(execution))))
}

/// The interval between two runs of STATUS.
pub(super) const STATUS: Duration = Duration::from_secs(10);

/// Returns the report for a failure of the loop.
fn cannot_run(err: &dyn std::error::Error) -> Report {
    Report::because(Exit::Files, "can't run", err)
}

/// Returns the report for an unusable source.
fn no_source(err: &StartError) -> Report {
    Report::because(Exit::Config, "can't use a source of pods", err)
}

/// Returns the options of the loop, with a listener that counts, logs and reports each event.
fn options(given: &Run, metrics: &Arc<Metrics>, writing: Option<Writing>) -> SyncOptions {
    let metrics = Arc::clone(metrics);
    let check = (given.check_interval > 0).then(|| Duration::from_secs(given.check_interval));
    SyncOptions {
        check,
        parallel: usize::from(given.parallel),
        listener: Listener::new(move |event| {
            metrics.happened(event);
            progress::log_event(event);
            if let Some(writing) = &writing {
                writing.happened(event);
            }
        }),
        ..SyncOptions::default()
    }
}

/// Retries failed pods when the networks change. It reads the sources again if a plugin now wants annotations, which
/// were not kept before.
async fn follow(
    network: NetworkPlugin,
    handle: Handle,
    config: Arc<PodConfig>,
    annotations: Option<Arc<AtomicBool>>,
) {
    let mut changes = network.changes();
    while changes.changed().await.is_ok() {
        let wanted = wants_annotations(&network);
        if annotations.as_ref().is_some_and(|kept| !kept.swap(wanted, Ordering::Relaxed) && wanted) {
            config.reread();
        }
        handle.retry_now();
    }
}

/// Returns whether a plugin of the default network has the capability for annotations.
fn wants_annotations(network: &NetworkPlugin) -> bool {
    let list = network.default_network();
    let plugins = list.iter().flat_map(|network| &network.list.plugins);
    plugins.flat_map(|plugin| &plugin.capabilities).any(|name| name == ANNOTATIONS)
}

/// The capability with which a plugin requests a pod's annotations.
const ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

/// The running loop with what a signal acts on.
struct Running {
    config: Arc<PodConfig>,
    network: NetworkPlugin,
    handle: Handle,
    looping: JoinHandle<Ended>,
}

impl Running {
    /// Waits for the end of the loop. SIGHUP reloads, another signal stops the loop, and a second one ends it at once.
    async fn watch(mut self, given: &Run, mut signals: Signals, status: &Status) -> Result<Ended, Report> {
        let mut overall = status.board.overall();
        let mut stopping = false;
        loop {
            // An unreadable source may stay so forever.
            let settled = overall.wait_for(|overall| overall.settled || overall.tried);
            tokio::select! {
                ended = &mut self.looping => return ended.map_err(|err| cannot_run(&err)),
                _ = settled, if given.once && !stopping => {
                    stopping = true;
                    self.handle.stop(Pods::Leave);
                }
                exit = signals.next() => match exit {
                    Exit::HungUp => self.reload().await,
                    exit if stopping => {
                        // Running work ends with the loop.
                        self.looping.abort();
                        let _ = self.looping.await;
                        return Err(Report::because(exit, "stopped at once", "a second signal arrived; the next start continues unfinished work"));
                    }
                    _ => {
                        stopping = true;
                        notify::stopping();
                        let pods = if given.teardown_on_exit { Pods::TearDown } else { Pods::Leave };
                        self.handle.stop(pods);
                    }
                },
            }
        }
    }

    /// Reads the networks and the sources again, and retries failed pods.
    async fn reload(&self) {
        log::info!("reading networks and manifests again");
        notify::reloading();
        self.network.reload().await;
        self.config.reread();
        self.handle.retry_now();
        self.handle.clean_now();
        notify::ready();
    }
}

/// Prints the state at the end, and returns the report if it is a failure. That is a pod that could not be taken down
/// with `--teardown-on-exit`, and a pod that is not ready or a problem with `--once`.
fn finish(session: &Session, given: &Run, status: &Status, ended: &Ended) -> Result<(), Report> {
    let unfinished =
        |report: Report| ended.unfinished.iter().fold(report, |report, id| report.row("pod", id.to_string()));
    if given.teardown_on_exit && !ended.unfinished.is_empty() {
        return Err(unfinished(Report::new(Exit::Plugin, "some pods could not be taken down"))
            .hint("start it again with the same options; it continues"));
    }
    if !given.once {
        if !ended.unfinished.is_empty() {
            log::warn!("stopped during work on {}", count(ended.unfinished.len(), "pod"));
        }
        return Ok(());
    }
    let pods = status.board.pods();
    if session.json {
        print_json(&status.json())?;
    } else if session.human() {
        print(&table(session, &pods))?;
    }
    let failed: Vec<&PodReport> = pods.iter().filter(|pod| pod.phase != Phase::Ready).collect();
    let problems = status.problems();
    if failed.is_empty() && problems.is_empty() {
        return Ok(());
    }
    if session.json {
        // All failures are already printed.
        return Err(Report::new(Exit::Plugin, ""));
    }
    let report = failed.iter().fold(
        Report::new(Exit::Plugin, "some pods are not ready, or some sources have problems"),
        |report, pod| {
            let why = pod.message.as_deref().or(pod.reason).unwrap_or(pod.phase.as_str());
            report.row("pod", format!("{}: {why}", pod.id))
        },
    );
    Err(problems.into_iter().fold(report, |report, problem| report.row("problem", problem)))
}

fn table(session: &Session, pods: &[PodReport]) -> String {
    let lines: Vec<Vec<String>> = pods
        .iter()
        .map(|pod| {
            let why = pod.reason.unwrap_or_default().to_owned();
            vec![pod.id.to_string(), pod.phase.as_str().to_owned(), joined(&pod.ips), why]
        })
        .collect();
    super::style::table(&["POD", "PHASE", "ADDRESSES", "WHY"], &lines, session.paint)
}
