//! The subcommands `cnimble pod up` and `down`.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use futures::StreamExt;
use serde_json::json;

use cnimble_pod::PodId;
use cnimble_pod::sandbox::{DnsOptions, Sandbox, SandboxConfig, SandboxError, SandboxState, Sandboxes};

use super::super::Session;
use super::super::interrupt::interruptible;
use super::super::report::{Exit, Report};
use super::tally::{Tally, manifests};
use super::{pod_id, report, show};
use crate::args::pod::{Down, Up};

/// The number of pods that are worked on at once. Each pod runs a few processes in sequence.
const AT_ONCE: usize = 64;

/// Sets up the pods in manifests. A failed pod doesn't stop the others. After a signal unfinished pods are removed.
pub(super) async fn up(
    session: &Session,
    sandboxes: &Sandboxes,
    dns: &DnsOptions,
    given: &Up,
) -> Result<(), Report> {
    let mut tally = Tally::new(session);
    let configs: Vec<SandboxConfig> = manifests(&given.files, &mut tally)?
        .iter()
        .map(|manifest| SandboxConfig::from_manifest(manifest, dns))
        .collect();
    let tally = RefCell::new(tally);
    let work = configs.iter().map(|config| async {
        let outcome = sandboxes.run(config).await;
        tell_up(&mut tally.borrow_mut(), &config.pod, outcome);
    });
    let all = futures::stream::iter(work).buffer_unordered(AT_ONCE).collect::<()>();
    if let Err(exit) = interruptible(all).await {
        return Err(abandon(sandboxes, &configs, exit).await);
    }
    tally.into_inner().finish("up", configs.len())
}

/// Removes the pods whose setup a signal has interrupted, and returns the report. Their plugins were killed with the
/// futures. Pods that are up stay.
async fn abandon(sandboxes: &Sandboxes, configs: &[SandboxConfig], exit: Exit) -> Report {
    let mut report = Report::new(exit, "interrupted");
    let clean_up = async {
        let mut failures = Vec::new();
        for config in configs {
            let begun = sandboxes.find(&config.pod).ok().flatten();
            if begun.is_some_and(|sandbox| sandbox.state == SandboxState::SettingUp) {
                failures.extend(sandboxes.down(&config.pod).await.err());
            }
        }
        failures
    };
    match interruptible(clean_up).await {
        Ok(failures) if failures.is_empty() => report.row("why", "unfinished pods are removed"),
        outcome => {
            report = report.row("why", "some unfinished pods could not be removed");
            for failure in outcome.into_iter().flatten() {
                report = report.row("then", failure.to_string());
            }
            report.hint("run it again; it removes the remains first")
        }
    }
}

/// Takes pods down. A failed pod doesn't stop the others, and one that is not up is no error.
pub(super) async fn down(session: &Session, sandboxes: &Sandboxes, given: &Down) -> Result<(), Report> {
    let mut tally = Tally::new(session);
    let pods: BTreeSet<PodId> = if given.all {
        let listing = sandboxes.list().map_err(|err| report::report_error("can't list the pods", &err))?;
        listing.sandboxes.into_iter().map(|sandbox| sandbox.config.pod).collect()
    } else {
        named(sandboxes, &given.pods, &mut tally)?
    };
    let tally = RefCell::new(tally);
    let work = pods.iter().map(|pod| async {
        let outcome = sandboxes.down(pod).await;
        tell_down(&mut tally.borrow_mut(), pod, outcome);
    });
    let all = futures::stream::iter(work).buffer_unordered(AT_ONCE).collect::<()>();
    interruptible(all)
        .await
        .map_err(|exit| Report::new(exit, "interrupted").hint("run it again; removed pods stay down"))?;
    tally.into_inner().finish("down", pods.len())
}

/// Returns whether the pod is on record.
fn is_up(sandboxes: &Sandboxes, id: &PodId) -> bool {
    sandboxes.find(id).is_ok_and(|found| found.is_some())
}

/// Returns the pods that the texts name, and those in the files that they name. A text that is the name of a pod on
/// record means that pod, even if there is such a file.
fn named(sandboxes: &Sandboxes, texts: &[String], tally: &mut Tally<'_>) -> Result<BTreeSet<PodId>, Report> {
    let (mut pods, mut files) = (BTreeSet::new(), Vec::new());
    for text in texts {
        let id = pod_id(text);
        match id {
            Ok(id) if text != "-" && (is_up(sandboxes, &id) || !Path::new(text).is_file()) => {
                pods.insert(id);
            }
            Err(err) if text != "-" && !Path::new(text).exists() && !text.starts_with(['/', '.']) => {
                return Err(err);
            }
            _ => files.push(PathBuf::from(text)),
        }
    }
    pods.extend(manifests(&files, tally)?.into_iter().map(|manifest| manifest.id));
    Ok(pods)
}

/// Reports the outcome of setting up a pod.
fn tell_up(tally: &mut Tally<'_>, pod: &PodId, outcome: Result<Sandbox, SandboxError>) {
    match outcome {
        Ok(sandbox) => {
            let place = sandbox.network_name().map_or("the node's network", |name| name);
            let line = format!("{pod} is up on {place}: {}", show::joined(&sandbox.ips));
            tally.done(&line, &show::Shown::new(&sandbox, "Ready".to_owned(), sandbox.ips.clone()));
        }
        Err(err) => tally.fail(Some(pod), &report::report_error(format!("can't bring up pod {pod}"), &err)),
    }
}

/// Reports the outcome of taking down a pod.
fn tell_down(tally: &mut Tally<'_>, pod: &PodId, outcome: Result<bool, SandboxError>) {
    match outcome {
        Ok(was_up) => {
            let line = format!("{pod} {}", if was_up { "is down" } else { "was not up" });
            tally.done(&line, &json!({"namespace": pod.namespace, "name": pod.name, "wasUp": was_up}));
        }
        Err(err) => tally.fail(Some(pod), &report::report_error(format!("can't take down pod {pod}"), &err)),
    }
}
