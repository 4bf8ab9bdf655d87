//! `gc --cri`: removes dead attachments of a network, using liveness and the container runtime.
//!
//! A dead attachment is removed unless the runtime lists its sandbox. The state of the sandbox doesn't matter. Two
//! looks, separated by the grace period, must agree. A third look under the network's lock precedes each removal.

use std::time::Duration;

use serde_json::{Value, json};

use cnimble_cni::{self as cni, NetworkList};
use cnimble_doctor::{Diagnosis, Doctor, Finding, Reach, Repair};

use super::args::Gc;
use super::interrupt::interruptible;
use super::output::note;
use super::report::{Exit, Report};
use super::subject::{describe, pod};
use super::{Session, plain, print, print_json, style};

pub(super) async fn gc(
    session: &Session,
    given: &Gc,
    doctor: Doctor<'_>,
    network: &NetworkList,
) -> Result<(), Report> {
    let what = format!("can't clean up what is gone from network {}", network.name);
    let stopped = |exit| Report::new(exit, what.as_str()).row("why", "interrupted").hint("run it again");
    let failed = |err: cni::Error| Report::new(Exit::Files, what.as_str()).row("why", err.to_string());
    let work = twice(&doctor, &network.name, given.grace);
    let (diagnosis, left) = interruptible(work).await.map_err(stopped)?.map_err(failed)?;
    let mut outcomes: Vec<Option<Repair>> = diagnosis.findings.iter().map(|_| None).collect();
    if given.yes {
        let repairs =
            interruptible(doctor.repair(&diagnosis.findings, Reach::Host)).await.map_err(stopped)?;
        outcomes = repairs.into_iter().map(Some).collect();
    }
    let failures = outcomes.iter().filter(|outcome| matches!(outcome, Some(Repair::Failed(_)))).count();
    match session.json {
        true => print_json(&document(&network.name, &diagnosis, &outcomes, left))?,
        false => print(&text(session, &network.name, &diagnosis, &outcomes, left))?,
    }
    match failures {
        0 => Ok(()),
        _ => Err(Report::new(Exit::Left, "")),
    }
}

/// Looks twice. Returns the findings that are dead in both looks, and the number of doubtful ones.
async fn twice(doctor: &Doctor<'_>, network: &str, grace: u64) -> Result<(Diagnosis, usize), cni::Error> {
    let mut first = doctor.look_at(network)?;
    let doubtful = |findings: &[Finding]| findings.iter().filter(|of| of.doubt.is_some()).count();
    let mut left = doubtful(&first.findings);
    first.findings.retain(|finding| finding.doubt.is_none());
    if !first.findings.is_empty() {
        // The wait can take minutes, so the note shows that the command works.
        note(&format!("{} found; looking again in {grace} s (--grace)", first.findings.len()));
        tokio::time::sleep(Duration::from_secs(grace)).await;
        let second = doctor.look_at(network)?;
        left = doubtful(&second.findings);
        first.findings.retain(|finding| {
            second.findings.iter().any(|again| again.doubt.is_none() && again.is_again(finding))
        });
        (first.living, first.blind) = (second.living, second.blind);
    }
    Ok((first, left))
}

fn text(
    session: &Session,
    network: &str,
    diagnosis: &Diagnosis,
    outcomes: &[Option<Repair>],
    left: usize,
) -> String {
    let mut out = String::new();
    for (finding, outcome) in diagnosis.findings.iter().zip(outcomes) {
        let (name, text) = match outcome {
            None | Some(Repair::NotAsked) => ("would do", finding.remedy.to_owned()),
            Some(Repair::Done) => ("done", finding.remedy.to_owned()),
            Some(Repair::Doubt(doubt)) => ("left alone", doubt.clone()),
            Some(Repair::Failed(err)) => ("failed", format!("{}: {err}", finding.remedy)),
        };
        let mut rows = vec![
            ("whose", describe(&finding.whose, pod(finding, diagnosis))),
            ("why", finding.why.clone()),
            (name, text),
        ];
        rows.retain(|(_, text)| !text.is_empty());
        let headline = plain::line(&format!("{} {}", finding.kind.name(), finding.what));
        let headline = session.paint.bold(&headline);
        out.push_str(&format!("{headline}\n{}", style::rows(&rows, session.paint)));
    }
    let asked = outcomes.iter().filter(|outcome| outcome.is_none()).count();
    let last = match (diagnosis.findings.len(), asked) {
        (0, _) => "nothing to clean up".to_owned(),
        (_, 0) => format!("{} cleaned up", count(outcomes, |of| matches!(of, Repair::Done))),
        (found, _) => format!("{found} found, and nothing changed: --yes cleans up"),
    };
    let living = diagnosis.living;
    out.push_str(&format!("{network}: living attachments: {living}; {last}; left alone: {left}\n"));
    out
}

fn count(outcomes: &[Option<Repair>], is: fn(&Repair) -> bool) -> usize {
    outcomes.iter().flatten().filter(|outcome| is(outcome)).count()
}

fn document(network: &str, diagnosis: &Diagnosis, outcomes: &[Option<Repair>], left: usize) -> Value {
    let findings = diagnosis.findings.iter().zip(outcomes).map(|(finding, outcome)| {
        json!({
            "kind": finding.kind.name(),
            "what": finding.what,
            "containerID": finding.whose.container_id,
            "ifname": finding.whose.ifname,
            "pod": pod(finding, diagnosis),
            "why": finding.why,
            "outcome": match outcome {
                None | Some(Repair::NotAsked) => "found",
                Some(Repair::Done) => "repaired",
                Some(Repair::Doubt(_)) => "left",
                Some(Repair::Failed(_)) => "failed",
            },
        })
    });
    json!({
        "network": network,
        "validAttachments": diagnosis.living,
        "findings": findings.collect::<Value>(),
        "cleanedUp": count(outcomes, |of| matches!(of, Repair::Done)),
        "leftAlone": left,
    })
}
