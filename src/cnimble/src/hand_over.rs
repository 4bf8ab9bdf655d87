//! `hand-over`: converts the rules of living pods to the form of the Go plugins.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use cnimble_doctor::hand_over::{Mode, Report as Outcome};

use super::interrupt::interruptible;
use super::report::{Exit, Report};
use super::subject::describe;
use super::{Session, args, doctor, plain, print, print_json, run, style};

pub(super) async fn hand_over(session: &Session, given: &args::HandOver) -> Result<(), Report> {
    let what = "can't hand this node over";
    if !nix::unistd::geteuid().is_root() {
        return Err(Report::new(Exit::Files, what)
            .row("why", "only root may look into other network namespaces")
            .hint("run it as root"));
    }
    let mode = match (given.yes, given.force) {
        (false, _) => Mode::Look,
        (true, false) => Mode::All,
        (true, true) => Mode::Possible,
    };
    // If `cnimble run` was never used there is no directory to lock, and none is created.
    let _lock = match given.yes && given.state_dir.exists() {
        true => Some(run::files::lock(&given.state_dir).await?),
        false => None,
    };
    let records = records(&given.state_dir);
    if records > 0 && mode == Mode::All {
        return Err(Report::new(Exit::Left, what)
            .row("why", format!("{} of `cnimble pod` or `cnimble run` on record in {}: no other program can take them down", style::count(records, "pod"), given.state_dir.display()))
            .hint("cnimble pod down --all"));
    }
    // A link or an address proves that a pod lives. A lease alone has no rules, so it needs no grace period.
    let mut doctor = doctor::new(session, &given.data_dir, 0);
    doctor.witnesses.grace = Duration::ZERO;
    let outcome = match interruptible(doctor.hand_over(mode)).await {
        Ok(outcome) => outcome.map_err(|err| {
            let report = Report::new(Exit::Files, what).row("why", err.to_string());
            report.hint("run it again; the pods have all rules that they had")
        })?,
        Err(exit) => return Err(Report::new(exit, "interrupted").hint("run it again")),
    };
    match session.json {
        true => print_json(&document(&outcome, records))?,
        false => print(&text(session, &outcome, records))?,
    }
    match mode != Mode::Possible && (!outcome.refused.is_empty() || records > 0) {
        false => Ok(()),
        true => Err(Report::new(Exit::Left, "")),
    }
}

/// Returns the number of recorded pods of `cnimble pod` and `cnimble run`.
fn records(state_dir: &Path) -> usize {
    let list = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_record = |path: &Path| {
        path.is_file() && !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
    };
    let dirs = list(&state_dir.join("sandboxes"));
    dirs.flat_map(|path| if path.is_dir() { list(&path).collect() } else { vec![path] })
        .filter(|path| is_record(path))
        .count()
}

fn document(outcome: &Outcome, records: usize) -> Value {
    let pods = outcome.pods.iter().map(|(whose, has)| {
        json!({
            "network": whose.network, "containerID": whose.container_id, "ifname": whose.ifname, "rules": has,
        })
    });
    let addresses = outcome.addresses.iter().map(|(whose, nets)| {
        json!({
            "network": whose.network, "containerID": whose.container_id, "ifname": whose.ifname, "addresses": nets,
        })
    });
    let refused = outcome.refused.iter().map(|(whose, why)| {
        json!({
            "network": whose.network, "containerID": whose.container_id, "ifname": whose.ifname, "why": why,
        })
    });
    json!({
        "done": outcome.done,
        "pods": pods.collect::<Value>(),
        "addresses": addresses.collect::<Value>(),
        "policies": outcome.policies,
        "orphans": outcome.orphans,
        "refused": refused.collect::<Value>(),
        "onRecord": records,
        "left": outcome.left,
    })
}

fn text(session: &Session, outcome: &Outcome, records: usize) -> String {
    let mut out = String::new();
    let mut part = |headline: &str, rows: &[(&'static str, String)]| {
        out.push_str(&format!(
            "{}\n{}",
            session.paint.bold(&plain::line(headline)),
            style::rows(rows, session.paint)
        ));
    };
    for (of, has) in &outcome.pods {
        part(&format!("pod {}", describe(of, None)), &[("has", has.join("; "))]);
    }
    for (of, nets) in &outcome.addresses {
        let why = "the Go plugins' daemon doesn't know the DHCP lease, so nobody prolongs it any more";
        let rows = [("keeps", format!("{}, for ever", nets.join(" "))), ("why", why.to_owned())];
        part(&format!("pod {}", describe(of, None)), &rows);
    }
    for policy in &outcome.policies {
        part(policy, &[]);
    }
    for orphan in &outcome.orphans {
        part(orphan, &[("remedy", "remove it".to_owned())]);
    }
    for (of, why) in &outcome.refused {
        let headline = format!("left {}", describe(of, None));
        let hint = "delete this pod first; or --force, and its rules stay where only cnimble finds them";
        part(headline.trim_end(), &[("why", why.clone()), ("try", hint.to_owned())]);
    }
    if records > 0 {
        let what = format!("left {} of `cnimble pod` or `cnimble run`", style::count(records, "pod"));
        part(&what, &[("try", "cnimble pod down --all".to_owned())]);
    }
    for left in &outcome.left {
        part(&format!("{left}, stays"), &[]);
    }
    let pods = style::count(outcome.pods.len(), "pod");
    let removed = outcome.orphans.len();
    out.push_str(&match (outcome.done, outcome.is_empty()) {
        (true, _) => format!("handed over: {pods}; removed: rules of pods that are gone, {removed}\n"),
        (false, true) => "there is nothing to hand over\n".to_owned(),
        (false, false) if outcome.refused.is_empty() && records == 0 => {
            format!("{pods} to hand over, and nothing changed: --yes does it\n")
        }
        (false, false) => {
            format!("{pods} to hand over, {} that can't be, and nothing changed\n", outcome.refused.len())
        }
    });
    out
}
