//! `doctor`: finds and repairs orphans.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use cnimble_cni as cni;
use cnimble_doctor::{Diagnosis, Doctor, Finding, Reach, Repair};
use cnimble_liveness::{Witnesses, data_dirs};
use cnimble_plugin::Plugin;

use super::cri::witness::witness;
use super::interrupt::interruptible;
use super::plugin_files::PluginFiles;
use super::report::{Exit, Report};
use super::subject::{describe, pod};
use super::{Session, args, plain, print, print_json, style};

/// The plugins that are called in this process. They can repair an attachment, or are often chained with such plugins.
static PLUGINS: &[&dyn Plugin] = &[
    cnimble_bandwidth::PLUGIN,
    cnimble_bridge::PLUGIN,
    cnimble_firewall::PLUGIN,
    cnimble_host_local::PLUGIN,
    cnimble_loopback::PLUGIN,
    cnimble_portmap::PLUGIN,
    cnimble_ptp::PLUGIN,
    cnimble_static::PLUGIN,
    cnimble_tuning::PLUGIN,
];

/// The outcome of a finding.
enum Outcome {
    /// Only a diagnosis was requested.
    Found,
    /// The difference is in a pod, and only the host was to be repaired.
    NotAsked,
    Doubtful,
    Repaired,
    Failed(cni::Error),
}

pub(super) async fn doctor(session: &Session, given: &args::Doctor) -> Result<(), Report> {
    let what = "can't look at this node";
    if !nix::unistd::geteuid().is_root() {
        return Err(Report::new(Exit::Files, what)
            .row("why", "only root may look into other network namespaces")
            .hint("run it as root"));
    }
    let mut doctor = new(session, &given.data_dir, given.grace);
    if let Some(socket) = &given.cri {
        doctor.witnesses.runtime = Some(witness(socket, what)?);
    }
    let reach = match (given.repair, given.pods) {
        (false, _) => None,
        (true, false) => Some(Reach::Host),
        (true, true) => Some(Reach::Pods),
    };
    let work = examine(&doctor, reach);
    let (diagnosis, outcomes) = match interruptible(work).await {
        Ok(outcome) => outcome.map_err(|err| Report::new(Exit::Files, what).row("why", err.to_string()))?,
        Err(exit) => return Err(Report::new(exit, "interrupted").hint("run it again")),
    };
    let plugins = PluginFiles::look(session, &doctor).await;
    let count = |is: fn(&Outcome) -> bool| outcomes.iter().filter(|outcome| is(outcome)).count();
    let found = count(|outcome| matches!(outcome, Outcome::Found | Outcome::NotAsked));
    let failed = count(|outcome| matches!(outcome, Outcome::Failed(_)));
    match session.json {
        true => {
            let healthy = found + failed == 0 && plugins.is_well();
            let mut document = document(&diagnosis, &outcomes, healthy);
            if let Some(object) = document.as_object_mut() {
                object.insert("plugins".to_owned(), plugins.json());
            }
            print_json(&document)?;
        }
        false => print(&format!("{}{}", plugins.text(session.paint), text(session, &diagnosis, &outcomes)))?,
    }
    match (found, failed) {
        (0, 0) if plugins.is_well() => Ok(()),
        (_, 0) => Err(Report::new(Exit::Found, "")),
        _ => Err(Report::new(Exit::Left, "")),
    }
}

async fn examine(doctor: &Doctor<'_>, reach: Option<Reach>) -> Result<(Diagnosis, Vec<Outcome>), cni::Error> {
    let mut diagnosis = doctor.look().await?;
    let Some(reach) = reach else {
        let outcome = |finding: &Finding| match finding.doubt {
            Some(_) => Outcome::Doubtful,
            None => Outcome::Found,
        };
        let outcomes = diagnosis.findings.iter().map(outcome).collect();
        return Ok((diagnosis, outcomes));
    };
    let repairs = doctor.repair(&diagnosis.findings, reach).await;
    let outcomes = diagnosis.findings.iter_mut().zip(repairs).map(|(finding, repair)| match repair {
        Repair::Done => Outcome::Repaired,
        Repair::NotAsked => Outcome::NotAsked,
        Repair::Doubt(doubt) => {
            finding.doubt = Some(doubt);
            Outcome::Doubtful
        }
        Repair::Failed(err) => Outcome::Failed(err),
    });
    let outcomes = outcomes.collect();
    Ok((diagnosis, outcomes))
}

/// Returns the doctor for this node. Without given lease directories it uses the usual ones and those of the networks.
pub(super) fn new<'s>(session: &'s Session, given: &[PathBuf], grace: u64) -> Doctor<'s> {
    let mut witnesses = Witnesses::new(session.invoker.cache().clone());
    witnesses.grace = Duration::from_secs(grace);
    // With `--cache-dir` only that cache is judged.
    witnesses.judge_others = !session.own_cache;
    if given.is_empty() {
        let networks = session.conf.list().map(|listing| listing.networks).unwrap_or_default();
        witnesses.data_dirs.extend(networks.iter().flat_map(|network| data_dirs(&network.list)));
    } else {
        witnesses.data_dirs = given.to_vec();
    }
    Doctor { invoker: &session.invoker, witnesses, plugins: PLUGINS }
}

fn document(diagnosis: &Diagnosis, outcomes: &[Outcome], healthy: bool) -> Value {
    let findings = diagnosis.findings.iter().zip(outcomes).map(|(finding, outcome)| {
        json!({
            "kind": finding.kind.name(),
            "what": finding.what,
            "network": finding.whose.network,
            "containerID": finding.whose.container_id,
            "ifname": finding.whose.ifname,
            "pod": pod(finding, diagnosis),
            "why": finding.why,
            "doubt": finding.doubt,
            "remedy": finding.remedy,
            "outcome": match outcome {
                Outcome::Found | Outcome::NotAsked => "found",
                Outcome::Doubtful => "left",
                Outcome::Repaired => "repaired",
                Outcome::Failed(_) => "failed",
            },
            "error": match outcome {
                Outcome::Failed(err) => Some(err.to_string()),
                _ => None,
            },
        })
    });
    json!({
        "healthy": healthy,
        "living": diagnosis.living,
        "findings": findings.collect::<Value>(),
        "notLookedAt": diagnosis.blind,
        "notChecked": diagnosis.unchecked,
        "warnings": diagnosis.warnings,
    })
}

fn text(session: &Session, diagnosis: &Diagnosis, outcomes: &[Outcome]) -> String {
    let mut out = String::new();
    let (mut found, mut repaired, mut failed, mut doubtful, mut in_pods) = (0, 0, 0, 0, 0);
    for (finding, outcome) in diagnosis.findings.iter().zip(outcomes) {
        let about = describe(&finding.whose, pod(finding, diagnosis));
        let mut rows = vec![("whose", about), ("why", finding.why.clone())];
        rows.retain(|(_, text)| !text.is_empty());
        match outcome {
            Outcome::Found => {
                found += 1;
                rows.push(("remedy", finding.remedy.to_owned()));
            }
            Outcome::NotAsked => {
                in_pods += 1;
                rows.push(("remedy", finding.remedy.to_owned()));
            }
            Outcome::Doubtful => {
                doubtful += 1;
                rows.push(("left alone", finding.doubt.clone().unwrap_or_default()));
            }
            Outcome::Repaired => {
                repaired += 1;
                rows.push(("repaired", finding.remedy.to_owned()));
            }
            Outcome::Failed(err) => {
                failed += 1;
                rows.push(("failed", format!("{}: {err}", finding.remedy)));
            }
        }
        let headline = plain::line(&format!("{} {}", finding.kind.name(), finding.what));
        out.push_str(&format!("{}\n{}", session.paint.bold(&headline), style::rows(&rows, session.paint)));
    }
    for blind in &diagnosis.blind {
        out.push_str(&format!("not looked at: {}\n", plain::line(blind)));
    }
    for unchecked in &diagnosis.unchecked {
        out.push_str(&format!("not checked: {unchecked}\n"));
    }
    for warning in &diagnosis.warnings {
        out.push_str(&format!("warning: {warning}\n"));
    }
    let verb = if diagnosis.living == 1 { "lives" } else { "live" };
    let mut parts = vec![format!("{} {verb}", style::count(diagnosis.living, "attachment"))];
    for (count, words) in
        [(repaired, "repaired"), (failed, "could not be repaired"), (doubtful, "left alone")]
    {
        if count > 0 {
            parts.push(format!("{count} {words}"));
        }
    }
    match found {
        0 if in_pods > 0 => parts.push(format!("{in_pods} in pods: --repair --pods repairs")),
        0 if failed == 0 => parts.push("all is well".to_owned()),
        0 => {}
        _ => parts.push(format!("{found} found, and nothing changed: --repair repairs")),
    }
    out.push_str(&format!("{}\n", parts.join("; ")));
    out
}
