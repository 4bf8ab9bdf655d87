//! `gc --cri`: removes a dead attachment unless the runtime lists its sandbox, in any state. Two looks, separated by
//! the grace period, must agree. A third look under the network's lock precedes each removal.

use std::time::Duration;

use serde::Serialize;

use cnimble_cni::{self as cni, NetworkList};
use cnimble_doctor::{Diagnosis, Doctor, Finding, Reach};

use super::Session;
use super::args::Gc;
use super::finding::{self, Item, RepairOutcome, count};
use super::interrupt::{self, interruptible};
use super::output::{View, print_note};
use super::report::{Exit, Report, fail_with};
use super::style::Paint;

/// The outcome of `gc --cri`, as text and as JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Cleaned {
    network: String,
    #[serde(rename = "validAttachments")]
    living: usize,
    #[serde(serialize_with = "finding::briefs")]
    findings: Vec<Item>,
    cleaned_up: usize,
    left_alone: usize,
    /// Always false. The same field is in the output of the other form of `gc`.
    #[serde(rename = "disableGC")]
    disable_gc: bool,
    /// The user has confirmed the removal with `--yes`.
    #[serde(skip)]
    asked: bool,
}

/// Finds the dead attachments of a network, and removes them with `--yes`. It fails with [`Exit::Left`] if a removal
/// failed.
pub(super) async fn gc(
    session: &Session,
    given: &Gc,
    doctor: Doctor<'_>,
    network: &NetworkList,
) -> Result<(), Report> {
    let what = format!("can't clean up what is gone from network {}", network.name);
    let work = twice(&doctor, &network.name, given.grace);
    let looked = interruptible(work).await.map_err(|exit| interrupt::stopped(exit, &what))?;
    let (mut diagnosis, left_alone) =
        looked.map_err(|err| Report::because(Exit::Files, what.as_str(), err))?;
    let repairs = if given.yes {
        let work = doctor.repair(&diagnosis.findings, Reach::Host);
        Some(interruptible(work).await.map_err(|exit| interrupt::stopped(exit, &what))?)
    } else {
        None
    };
    let unseen = diagnosis.blind.iter().chain(&diagnosis.unchecked);
    unseen.for_each(|unread| log::warn!("not looked at: {unread}"));
    let findings = finding::items(&mut diagnosis, repairs);
    let (cleaned_up, failed) =
        (count(&findings, RepairOutcome::Repaired), count(&findings, RepairOutcome::Failed));
    // The look before a removal can find a doubt, too.
    let left_alone = left_alone + count(&findings, RepairOutcome::Left);
    let (network, living) = (network.name.clone(), diagnosis.living);
    session.show(&Cleaned {
        network,
        living,
        findings,
        cleaned_up,
        left_alone,
        disable_gc: false,
        asked: given.yes,
    })?;
    fail_with((failed > 0).then_some(Exit::Left))
}

/// Returns a diagnosis with only the findings that both looks agree about, and the number of doubtful ones in the last
/// look.
///
/// If the first look finds nothing there is no second. `grace` is the time between them in seconds.
async fn twice(doctor: &Doctor<'_>, network: &str, grace: u64) -> Result<(Diagnosis, usize), cni::Error> {
    let mut first = doctor.look_at(network)?;
    let mut left = doubtful(&first.findings);
    first.findings.retain(|finding| finding.doubt.is_none());
    if !first.findings.is_empty() {
        // The wait can take minutes, so the note shows that the command works.
        print_note(&format!("{} found; looking again in {grace} s (--grace)", first.findings.len()));
        tokio::time::sleep(Duration::from_secs(grace)).await;
        let second = doctor.look_at(network)?;
        left = doubtful(&second.findings);
        first.findings.retain(|finding| {
            second.findings.iter().any(|again| again.doubt.is_none() && again.is_again(finding))
        });
        (first.living, first.blind, first.unchecked) = (second.living, second.blind, second.unchecked);
    }
    Ok((first, left))
}

/// Counts the findings in doubt.
fn doubtful(findings: &[Finding]) -> usize {
    findings.iter().filter(|of| of.doubt.is_some()).count()
}

impl View for Cleaned {
    fn text(&self, paint: Paint) -> String {
        let findings = self.findings.iter().map(|item| item.text("would do", "done", paint));
        let last = match (self.findings.len(), self.asked) {
            (0, _) => "nothing found to clean up".to_owned(),
            (_, true) => format!("{} cleaned up", self.cleaned_up),
            (found, false) => {
                let cleanable = self.findings.iter().filter(|item| item.is_repairable()).count();
                let rest = match found - cleanable {
                    0 => String::new(),
                    rest => format!(", no option repairs {rest}"),
                };
                format!("{found} found, and nothing repaired: --yes cleans up {cleanable}{rest}")
            }
        };
        let Cleaned { network, living, left_alone, .. } = self;
        findings.collect::<String>()
            + &format!(
                "{network}: attachments that live or may live: {living}; {last}; left alone: {left_alone}\n"
            )
    }
}
