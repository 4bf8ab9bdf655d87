//! `cnimble pod up` and `down`.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use futures::StreamExt;
use serde_json::{Value, json};

use cnimble_pod::PodId;
use cnimble_pod::manifest::{Defaults, Manifest, Origin, Parsed};
use cnimble_pod::sandbox::{DnsOptions, Sandbox, SandboxConfig, SandboxError, Sandboxes, State};

use super::super::interrupt::interruptible;
use super::super::report::{Exit, Report};
use super::super::{Session, print, print_json};
use super::args::{Down, Up};
use super::{pod_id, report, show};

/// How many pods are set up at once. Each is a few processes, one after the other.
const AT_ONCE: usize = 64;

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
        tally.borrow_mut().up(&config.pod, outcome);
    });
    let all = futures::stream::iter(work).buffer_unordered(AT_ONCE).collect::<()>();
    if let Err(exit) = interruptible(all).await {
        return Err(abandon(sandboxes, &configs, exit).await);
    }
    tally.into_inner().finish("up", configs.len())
}

/// The futures are gone, and with them the plugins that they waited for. Pods that are up stay.
async fn abandon(sandboxes: &Sandboxes, configs: &[SandboxConfig], exit: Exit) -> Report {
    let mut report = Report::new(exit, "interrupted");
    let clean_up = async {
        let mut failures = Vec::new();
        for config in configs {
            let begun = sandboxes.find(&config.pod).ok().flatten();
            if begun.is_some_and(|sandbox| sandbox.state == State::SettingUp) {
                failures.extend(sandboxes.down(&config.pod).await.err());
            }
        }
        failures
    };
    match interruptible(clean_up).await {
        Ok(failures) if failures.is_empty() => report.row("why", "pods that were not up yet are gone again"),
        outcome => {
            report = report.row("why", "not everything could be taken back");
            for failure in outcome.into_iter().flatten() {
                report = report.row("then", failure.to_string());
            }
            report.hint("run it again: what is left is cleaned up first")
        }
    }
}

/// The pods in all files. A bad one doesn't keep the others out.
fn manifests(files: &[PathBuf], tally: &mut Tally<'_>) -> Result<Vec<Manifest>, Report> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for file in files {
        let unreadable = |err: std::io::Error| {
            Report::new(Exit::Usage, "can't read the manifest")
                .row("file", file.display().to_string())
                .row("why", err.to_string())
        };
        let (bytes, origin) = if file == Path::new("-") {
            let mut bytes = Vec::new();
            std::io::stdin().read_to_end(&mut bytes).map_err(unreadable)?;
            (bytes, Origin::Other("stdin".to_owned()))
        } else {
            (std::fs::read(file).map_err(unreadable)?, Origin::File(file.clone()))
        };
        let Parsed { pods, errors } = Manifest::parse_each(&bytes, &origin, &Defaults::default());
        for error in errors {
            let report = Report::new(Exit::Config, "a pod can't be used").row("why", error.to_string());
            tally.fail(None, &report);
        }
        for pod in pods {
            if seen.insert(pod.id.clone()) {
                found.push(pod);
            } else {
                let why = format!("{}: there is another pod {} before it", pod.origin, pod.id);
                let report = Report::new(Exit::Config, "a pod can't be used").row("why", why);
                tally.fail(Some(&pod.id), &report);
            }
        }
    }
    Ok(found)
}

pub(super) async fn down(session: &Session, sandboxes: &Sandboxes, given: &Down) -> Result<(), Report> {
    let pods: BTreeSet<PodId> = if given.all {
        let listing = sandboxes.list().map_err(|err| report::of("can't list the pods", &err))?;
        listing.sandboxes.into_iter().map(|sandbox| sandbox.config.pod).collect()
    } else {
        given.pods.iter().map(|text| pod_id(text)).collect::<Result<_, _>>()?
    };
    let tally = RefCell::new(Tally::new(session));
    let work = pods.iter().map(|pod| async {
        let outcome = sandboxes.down(pod).await;
        tally.borrow_mut().down(pod, outcome);
    });
    let all = futures::stream::iter(work).buffer_unordered(AT_ONCE).collect::<()>();
    interruptible(all)
        .await
        .map_err(|exit| Report::new(exit, "interrupted").hint("run it again: what is down stays down"))?;
    tally.into_inner().finish("down", pods.len())
}

/// Tells what has become of each pod, at once on a terminal and for scripts, together in JSON.
struct Tally<'s> {
    session: &'s Session,
    objects: Vec<Value>,
    exit: Option<Exit>,
    failed: usize,
}

impl<'s> Tally<'s> {
    fn new(session: &'s Session) -> Self {
        Tally { session, objects: Vec::new(), exit: None, failed: 0 }
    }

    fn up(&mut self, pod: &PodId, outcome: Result<Sandbox, SandboxError>) {
        match outcome {
            Ok(sandbox) if self.session.json => {
                self.objects.push(show::as_json(&sandbox, "Ready", &sandbox.ips));
            }
            Ok(sandbox) => {
                let place = sandbox.network_name().map_or("the node's network", |name| name);
                self.line(&format!("{pod} is up on {place}: {}", show::joined(&sandbox.ips)));
            }
            Err(err) => self.fail(Some(pod), &report::of(format!("can't bring up pod {pod}"), &err)),
        }
    }

    fn down(&mut self, pod: &PodId, outcome: Result<bool, SandboxError>) {
        match outcome {
            Ok(was_up) if self.session.json => {
                self.objects.push(json!({"namespace": pod.namespace, "name": pod.name, "wasUp": was_up}));
            }
            Ok(true) => self.line(&format!("{pod} is down")),
            Ok(false) => self.line(&format!("{pod} was not up")),
            Err(err) => self.fail(Some(pod), &report::of(format!("can't take down pod {pod}"), &err)),
        }
    }

    fn line(&self, text: &str) {
        print(&format!("{} {text}\n", self.session.paint.good("ok")));
    }

    /// The first failure's exit status is the command's.
    fn fail(&mut self, pod: Option<&PodId>, report: &Report) {
        self.failed += 1;
        self.exit.get_or_insert(report.exit);
        if self.session.json {
            let mut object = json!({"error": report.json()});
            if let (Some(pod), Some(map)) = (pod, object.as_object_mut()) {
                map.insert("namespace".to_owned(), pod.namespace.clone().into());
                map.insert("name".to_owned(), pod.name.clone().into());
            }
            self.objects.push(object);
        } else {
            report.print(super::super::style::Paint::of(&std::io::stderr()));
        }
    }

    fn finish(self, verb: &str, count: usize) -> Result<(), Report> {
        if self.session.json {
            print_json(&Value::Array(self.objects));
        }
        match self.exit {
            None => Ok(()),
            Some(exit) if self.session.json || count < 2 => Err(Report::new(exit, "")),
            Some(exit) => Err(Report::new(exit, format!("{} of {count} pods are not {verb}", self.failed))),
        }
    }
}
