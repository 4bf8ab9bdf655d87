//! Findings of the doctor with their outcomes, as text and as JSON.

use std::borrow::Cow;

use serde::{Serialize, Serializer};

use cnimble_doctor::{Cure, Diagnosis, Finding, FindingKind, Repair, Subject};

use super::style::{self, Paint};

/// A finding with its outcome.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Item {
    #[serde(flatten)]
    brief: Brief,
    network: Option<String>,
    /// Why the finding is left alone.
    doubt: Option<String>,
    /// What a repair does.
    remedy: Cow<'static, str>,
    /// Why the repair failed.
    error: Option<String>,
    /// What can repair the finding.
    #[serde(skip)]
    cure: Cure,
    /// There is a doubt, and time alone doesn't remove it.
    #[serde(skip)]
    is_lasting: bool,
}

/// The part of a finding that `gc` prints.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Brief {
    kind: FindingKind,
    what: String,
    #[serde(rename = "containerID")]
    container_id: Option<String>,
    ifname: Option<String>,
    pod: Option<String>,
    why: String,
    outcome: RepairOutcome,
}

/// What happened to a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RepairOutcome {
    /// Nothing was done, because no repair was requested.
    Found,
    /// Nothing was done, because repairs in pods were not requested.
    #[serde(rename = "found")]
    InPod,
    /// A doubt forbids the repair.
    Left,
    /// The repair succeeded.
    Repaired,
    /// Nothing was done, because another program has removed or changed the object meanwhile.
    Gone,
    /// The repair failed.
    Failed,
}

impl Item {
    /// Combines a finding with its repair, which is `None` if none was requested.
    fn new(finding: Finding, repair: Option<Repair>, diagnosis: &Diagnosis) -> Self {
        let cure = finding.cure();
        let mut is_lasting = finding.doubt.is_some() && !finding.passing;
        let (mut doubt, mut error) = (finding.doubt, None);
        let outcome = match repair {
            None if doubt.is_some() => RepairOutcome::Left,
            None => RepairOutcome::Found,
            Some(Repair::NotAsked) => RepairOutcome::InPod,
            Some(Repair::Done) => RepairOutcome::Repaired,
            Some(Repair::Gone) => RepairOutcome::Gone,
            Some(Repair::Doubt { why, passing }) => {
                is_lasting = !passing;
                doubt = Some(why);
                RepairOutcome::Left
            }
            Some(Repair::Failed(err)) => {
                error = Some(err.to_string());
                RepairOutcome::Failed
            }
        };
        // Another repair of the call can have removed an object in doubt.
        let doubt = doubt.filter(|_| outcome == RepairOutcome::Left);
        let Subject { network, container_id, ifname } = finding.subject;
        let pod = container_id.as_ref().and_then(|id| diagnosis.pods.get(id)).cloned();
        let (kind, what, why) = (finding.kind, finding.what, finding.why);
        let brief = Brief { kind, what, container_id, ifname, pod, why, outcome };
        Item { brief, network, doubt, remedy: finding.remedy, error, cure, is_lasting }
    }

    /// Returns the finding and why it is not repaired, or `None` if it was not left alone.
    pub(super) fn left_alone_text(&self) -> Option<String> {
        let Brief { kind, what, outcome, .. } = &self.brief;
        let doubt = self.doubt.as_ref().filter(|_| *outcome == RepairOutcome::Left)?;
        Some(format!("{kind} {what}: {doubt}"))
    }

    /// Returns whether an option repairs the finding.
    pub(super) fn is_repairable(&self) -> bool {
        self.cure != Cure::Runtime
    }

    /// Returns the finding and the error, or `None` if no repair of it failed.
    pub(super) fn failure(&self) -> Option<String> {
        Some(format!("{}: {}", self.brief.what, self.error.as_ref()?))
    }

    /// Returns the finding as text. `planned` names the row of a remedy that was not applied, and `done` of one that
    /// was.
    pub(super) fn text(&self, planned: &'static str, done: &'static str, paint: Paint) -> String {
        let Brief { kind, what, container_id, ifname, pod, why, outcome } = &self.brief;
        let owner = owner(self.network.as_ref(), container_id.as_ref(), ifname.as_ref(), pod.as_ref());
        let mut rows = vec![("owner", owner), ("why", why.clone())];
        rows.retain(|(_, text)| !text.is_empty());
        let remedy = self.remedy.to_string();
        rows.push(match outcome {
            RepairOutcome::Found | RepairOutcome::InPod => (planned, remedy),
            RepairOutcome::Left => ("left alone", self.doubt.clone().unwrap_or_default()),
            RepairOutcome::Repaired => (done, remedy),
            RepairOutcome::Gone => ("gone", "a second look found nothing to repair".to_owned()),
            RepairOutcome::Failed => {
                ("failed", format!("{remedy}: {}", self.error.as_deref().unwrap_or_default()))
            }
        });
        style::part(&format!("{kind} {what}"), &rows, paint)
    }
}

/// Takes the findings out of the diagnosis, and combines each with its repair. The repairs have the order of the
/// findings; `None` says that none were requested.
pub(super) fn items(diagnosis: &mut Diagnosis, repairs: Option<Vec<Repair>>) -> Vec<Item> {
    let findings = std::mem::take(&mut diagnosis.findings);
    let repairs = repairs.into_iter().flatten().map(Some).chain(std::iter::repeat_with(|| None));
    findings.into_iter().zip(repairs).map(|(finding, repair)| Item::new(finding, repair, diagnosis)).collect()
}

/// Counts the findings with this outcome.
pub(super) fn count(items: &[Item], outcome: RepairOutcome) -> usize {
    items.iter().filter(|item| item.brief.outcome == outcome).count()
}

/// Counts the findings that were left alone and that time alone doesn't clear.
pub(super) fn count_lasting(items: &[Item]) -> usize {
    items.iter().filter(|item| item.is_lasting && item.brief.outcome == RepairOutcome::Left).count()
}

/// Returns how many findings in pods a repair has skipped, and which option repairs them. It returns `None` if it has
/// skipped none.
pub(super) fn skipped_in_pods(items: &[Item]) -> Option<String> {
    let skipped = items.iter().filter(|of| of.brief.outcome == RepairOutcome::InPod);
    let (mendable, others): (Vec<&Item>, Vec<&Item>) = skipped.partition(|of| of.cure == Cure::Pod);
    match (mendable.len(), others.len()) {
        (0, 0) => None,
        (count, 0) => Some(format!("{count} in pods: --repair --pods repairs")),
        (0, count) => Some(format!("{count} in pods: no option repairs")),
        (count, others) => Some(format!(
            "{} in pods: --repair --pods repairs {count}, no option repairs {others}",
            count + others
        )),
    }
}

/// Returns how many findings nothing was done about, and which options repair how many of them. It returns `None` if
/// there are none. Findings in pods that a repair skipped don't count.
pub(super) fn found(items: &[Item]) -> Option<String> {
    let (mut host, mut pod, mut runtime) = (0, 0, 0);
    for item in items.iter().filter(|of| of.brief.outcome == RepairOutcome::Found) {
        match item.cure {
            Cure::Host => host += 1,
            Cure::Pod => pod += 1,
            Cure::Runtime => runtime += 1,
        }
    }
    let told = match (host, pod, runtime) {
        (0, 0, 0) => return None,
        (_, 0, 0) => "--repair repairs".to_owned(),
        (0, _, 0) => "--repair --pods repairs".to_owned(),
        (0, 0, _) => "--repair can't repair that".to_owned(),
        _ => {
            let parts = [
                (host, "--repair repairs"),
                (pod, "--repair --pods repairs"),
                (runtime, "no option repairs"),
            ];
            let parts = parts.into_iter().filter(|(count, _)| *count > 0);
            parts.map(|(count, words)| format!("{words} {count}")).collect::<Vec<_>>().join(", ")
        }
    };
    Some(format!("{} found, and nothing repaired: {told}", host + pod + runtime))
}

/// Serializes findings in the form of `gc`.
pub(super) fn briefs<S: Serializer>(items: &[Item], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(items.iter().map(|item| &item.brief))
}

/// Returns the known parts of a subject as text. It is empty if none is known.
pub(super) fn describe(subject: &Subject) -> String {
    owner(subject.network.as_ref(), subject.container_id.as_ref(), subject.ifname.as_ref(), None)
}

/// Returns the known parts of an owner as text. The name of the pod replaces the container ID if it is known.
fn owner(
    network: Option<&String>,
    container_id: Option<&String>,
    ifname: Option<&String>,
    pod: Option<&String>,
) -> String {
    let container = pod.map_or(("container", container_id), |pod| ("pod", Some(pod)));
    let parts = [("network", network), container, ("interface", ifname)];
    let known = parts.into_iter().filter_map(|(name, value)| Some(format!("{name} {}", value?)));
    known.collect::<Vec<_>>().join(", ")
}
