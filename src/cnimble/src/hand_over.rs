//! `hand-over`: converts the rules of living pods to the form of the Go plugins.

use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use cnimble_doctor::Subject;
use cnimble_doctor::hand_over::{Mode, Report as Outcome};
use cnimble_lint::{Document, Lost, lost_with_go};
use cnimble_runtime::ConfDir;

use super::finding::describe;
use super::interrupt::interruptible;
use super::output::View;
use super::report::{Exit, Report, fail_with, must_be_root};
use super::style::{self, Paint};
use super::{Session, args, doctor, lint, run};

/// Converts the rules of living pods to the form of the Go plugins, or lists with no `--yes` what it would convert.
///
/// With `--yes` it refuses to begin while pods of `cnimble pod` or `cnimble run` are recorded, unless `--force` is
/// given. It fails with [`Exit::Left`] if something can't be converted, except with both `--yes` and `--force`.
pub(super) async fn hand_over(session: &Session, given: &args::doctor::HandOver) -> Result<(), Report> {
    let what = "can't hand this node over";
    must_be_root(what)?;
    let mode = match (given.yes, given.force) {
        (false, _) => Mode::Look,
        (true, false) => Mode::All,
        (true, true) => Mode::Possible,
    };
    // If `cnimble run` was never used there is no directory to lock, and none is created.
    let _lock = if given.yes && given.state_dir.exists() {
        Some(run::files::lock(&given.state_dir).await?)
    } else {
        None
    };
    let records = records(&given.state_dir);
    let networks = networks(&session.conf);
    if records > 0 && mode == Mode::All {
        return Err(Report::because(
            Exit::Left,
            what,
            format!(
                "{} of `cnimble pod` or `cnimble run` on record in {}: no other program can take them down",
                style::count(records, "pod"),
                given.state_dir.display()
            ),
        )
        .hint("cnimble pod down --all"));
    }
    // A link or an address proves that a pod lives. A lease alone has no rules, so it needs no grace period.
    let doctor = doctor::new(session, &given.leases.data_dir, 0);
    let outcome = match interruptible(doctor.hand_over(mode)).await {
        Ok(outcome) => outcome.map_err(|err| {
            let report = Report::because(Exit::Files, what, err);
            report.hint("run it again; no pod has lost a rule")
        })?,
        Err(exit) => return Err(Report::new(exit, "interrupted").hint("run it again")),
    };
    let is_incomplete = mode != Mode::Possible && (!outcome.refused.is_empty() || records > 0);
    session.show(&HandedOver { outcome, records, networks })?;
    fail_with(is_incomplete.then_some(Exit::Left))
}

/// Reads the networks' files. An unreadable one is logged and left out, because it must not prevent the conversion.
fn networks(conf: &ConfDir) -> Vec<Document> {
    let files = conf.files(&["conflist", "conf", "json"]).unwrap_or_else(|err| {
        log::warn!("{err}; options that stop working are not listed");
        Vec::new()
    });
    let mut networks = Vec::new();
    for path in files {
        match lint::files::read(&path).ok().and_then(|file| Document::parse(file).ok()) {
            Some(document) => networks.push(document),
            None => log::warn!("can't read {}; its options that stop working are not listed", path.display()),
        }
    }
    networks
}

/// Counts the recorded pods of `cnimble pod` and `cnimble run`. A directory that can't be read counts as empty.
fn records(state_dir: &Path) -> usize {
    let dirs = paths_in(&state_dir.join("sandboxes")).into_iter();
    dirs.flat_map(|path| if path.is_dir() { paths_in(&path) } else { vec![path] })
        .filter(|path| is_record(path))
        .count()
}

/// Returns the paths in a directory. The list is empty if it can't be read.
fn paths_in(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Returns whether the path is that of a pod's record, and not of a temporary file.
fn is_record(path: &Path) -> bool {
    path.is_file() && !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
}

/// The outcome, the number of recorded pods of `cnimble pod` and `cnimble run`, and the networks' files.
struct HandedOver {
    outcome: Outcome,
    records: usize,
    networks: Vec<Document>,
}

impl HandedOver {
    /// Returns each network that loses something with the Go plugins, and the parts of it that stop working.
    fn lost(&self) -> impl Iterator<Item = (&Document, Vec<Lost>)> {
        let lost = self.networks.iter().map(|network| (network, lost_with_go(network)));
        lost.filter(|(_, lost)| !lost.is_empty())
    }
}

impl Serialize for HandedOver {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        fn list(key: &str, of: &[(Subject, impl Serialize)]) -> Value {
            let objects = of.iter().map(|(subject, value)| {
                let Subject { network, container_id, ifname } = subject;
                json!({"network": network, "containerID": container_id, "ifname": ifname, (key): value})
            });
            objects.collect()
        }
        let Outcome { pods, addresses, policies, orphans, refused, left, done } = &self.outcome;
        let lost = self.lost().flat_map(|(network, lost)| {
            let file = &network.file.path;
            lost.into_iter().map(move |Lost { plugin, key, about }| {
                json!({"file": file, "plugin": plugin, "key": key, "about": about})
            })
        });
        let document = json!({
            "done": done,
            "pods": list("rules", pods),
            "addresses": list("addresses", addresses),
            "policies": policies,
            "orphans": orphans,
            "refused": list("why", refused),
            "onRecord": self.records,
            "left": left,
            "stopsWorking": lost.collect::<Vec<_>>(),
        });
        document.serialize(serializer)
    }
}

impl View for HandedOver {
    fn text(&self, paint: Paint) -> String {
        let HandedOver { outcome, records, .. } = self;
        let mut out = String::new();
        let mut part = |headline: &str, rows: &[_]| out.push_str(&style::part(headline, rows, paint));
        for (of, has) in &outcome.pods {
            part(&format!("pod {}", describe(of)), &[("has", has.join("; "))]);
        }
        for (of, nets) in &outcome.addresses {
            let why = "the Go plugins' daemon doesn't know the DHCP lease, so no process renews it";
            let rows = [("keeps", format!("{}, for ever", nets.join(" "))), ("why", why.to_owned())];
            part(&format!("pod {}", describe(of)), &rows);
        }
        outcome.policies.iter().for_each(|policy| part(policy, &[]));
        let remedy = if outcome.done { ("done", "removed it") } else { ("remedy", "remove it") };
        outcome.orphans.iter().for_each(|orphan| part(orphan, &[(remedy.0, remedy.1.to_owned())]));
        for (of, why) in &outcome.refused {
            let headline = format!("left {}", describe(of));
            let hint = "delete this pod first; with --force its rules stay in cnimble's tables";
            part(headline.trim_end(), &[("why", why.clone()), ("try", hint.to_owned())]);
        }
        if *records > 0 {
            let what = format!("left {} of `cnimble pod` or `cnimble run`", style::count(*records, "pod"));
            part(&what, &[("try", "cnimble pod down --all".to_owned())]);
        }
        outcome.left.iter().for_each(|left| part(&format!("{left}, stays"), &[]));
        for (network, lost) in self.lost() {
            let texts = lost.iter().map(|Lost { plugin, key, about }| match key {
                Some(key) => format!("{key} of {plugin}: {about}"),
                None => format!("{plugin}, which the Go plugins lack: {about}"),
            });
            let rows: Vec<_> = texts.map(|text| ("stops working", text)).collect();
            part(&network.file.path, &rows);
        }
        let pods = style::count(outcome.pods.len(), "pod");
        let (removed, refused) = (outcome.orphans.len(), outcome.refused.len());
        out + &match (outcome.done, outcome.is_empty()) {
            (true, _) => format!("handed over: {pods}; removed: rules of pods that are gone, {removed}\n"),
            (false, true) => "there is nothing to hand over\n".to_owned(),
            (false, false) if refused == 0 && *records == 0 => {
                format!("{pods} to hand over, and nothing changed: --yes does it\n")
            }
            (false, false) => format!("{pods} to hand over, {refused} that can't be, and nothing changed\n"),
        }
    }
}
