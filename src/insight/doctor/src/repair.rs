//! Repairs findings. Those of a network need the lock of that network, and others the lock of the whole node. The node
//! is examined again under the lock. The result is trusted for about as long as the examination took. Then the lock is
//! released, so that ADDs can proceed. A repair of a living pod needs no look: its entry, its note of a DEL and its
//! interface suffice.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::future::join_all;

use cnimble_cni::{Code, Error};
use cnimble_liveness::Sight;
use cnimble_netlink::nft::Nft;
use cnimble_runtime::Invoker;

use super::attachments::Compared;
use super::item_repair::Repaired;
use super::outcome::{Reach, Repair};
use super::{Doctor, Finding, FindingKind, FindingRepair, runtime, stale_rules};

/// The least time for which an examination is trusted.
const TRUST: Duration = Duration::from_millis(100);

/// The pause between two batches of a network, in which others get the lock. A waiting process tries every 16 ms.
const PAUSE: Duration = Duration::from_millis(20);

/// An examination under the lock, and the time until which it is trusted.
struct Examination {
    orphans: Vec<Finding>,
    end: Instant,
}

impl Doctor<'_> {
    /// Repairs these findings, as far as `reach` goes. Returns the outcomes in the order of the findings. It repairs
    /// the networks at the same time, so that an operation that hangs in one of them delays no other.
    pub async fn repair(&self, findings: &[Finding], reach: Reach) -> Vec<Repair> {
        let mut outcomes: BTreeMap<usize, Repair> = BTreeMap::new();
        let mut networks: BTreeMap<Option<&str>, Vec<(usize, &Finding)>> = BTreeMap::new();
        for (index, finding) in findings.iter().enumerate() {
            match &finding.doubt {
                Some(doubt) => {
                    let (why, passing) = (doubt.clone(), finding.passing);
                    outcomes.insert(index, Repair::Doubt { why, passing });
                }
                None if matches!(finding.action, FindingRepair::Runtime) => {
                    let why = "no option repairs this".to_owned();
                    outcomes.insert(index, Repair::Failed(Error::new(Code::TRY_AGAIN_LATER, why)));
                }
                None => networks.entry(finding.network()).or_default().push((index, finding)),
            }
        }
        let unknown = networks.remove(&None);
        let repairs = networks.into_iter().map(|(network, of)| self.repair_network(network, of, reach));
        outcomes.extend(join_all(repairs).await.into_iter().flatten());
        // Findings without a network come last, because the other repairs leave empty chains.
        if let Some(of) = unknown {
            outcomes.extend(self.repair_network(None, of, reach).await);
        }
        let mut outcomes: Vec<Repair> = outcomes.into_values().collect();
        if needs_second_look(findings, &outcomes)
            && let Err(err) = self.confirm(findings, &mut outcomes)
        {
            log::warn!("what was repaired was not looked at again: {err}");
        }
        count_side_effects(findings, &mut outcomes);
        outcomes
    }

    /// Looks at the node once more, and corrects the outcomes. A removal succeeds also if it has skipped an object that
    /// had changed since, and another program can make an object again. A fault of a sandbox that no repair is for can
    /// have gone with another one: a lease that its plugin has put back. An object in doubt can have gone, too: a young
    /// lease, by the DEL of its container's cache entry.
    ///
    /// # Errors
    /// Fails if the node can't be examined. Then all outcomes are as they were.
    fn confirm(&self, findings: &[Finding], outcomes: &mut [Repair]) -> Result<(), Error> {
        let sight = Sight::look(&self.evidence)?;
        let mut left = self.orphans(&sight)?;
        left.extend(stale_rules::idle(&mut Nft::new())?);
        let Compared { findings: of_sandboxes, unchecked } = runtime::compare_once(self, &sight.node)?;
        left.extend(of_sandboxes);
        for (finding, outcome) in findings.iter().zip(outcomes.iter_mut()) {
            let is_left = left.iter().any(|again| again.is_again(finding));
            match outcome {
                Repair::Done if is_left => {
                    let why = "it is there after the repair: the log tells why, or another program has made it again"
                        .to_owned();
                    *outcome = Repair::Failed(Error::new(Code::TRY_AGAIN_LATER, why));
                }
                // Of a sandbox that could not be looked into again nothing is known.
                Repair::Failed(_) if finding.kind.is_of_sandbox() && !is_left && unchecked.is_empty() => {
                    *outcome = Repair::Gone;
                }
                Repair::Doubt { .. } if finding.is_of_object() && !is_left => *outcome = Repair::Gone,
                _ => {}
            }
        }
        Ok(())
    }

    /// Repairs the findings of one network, or those of none, which need the lock of the node. Returns the outcomes
    /// with the findings' numbers.
    async fn repair_network(
        &self,
        network: Option<&str>,
        findings: Vec<(usize, &Finding)>,
        reach: Reach,
    ) -> Vec<(usize, Repair)> {
        let (mut outcomes, mut repaired) = (Vec::with_capacity(findings.len()), Repaired::default());
        let mut left = findings.into_iter().peekable();
        while left.peek().is_some() {
            let alone = match self.invoker.alone(network).await {
                Ok(alone) => alone,
                Err(err) => {
                    outcomes.extend(left.map(|(index, _)| (index, Repair::Failed(err.to_spec()))));
                    break;
                }
            };
            let (begun, mut look) = (Instant::now(), None);
            for (index, finding) in left.by_ref() {
                let (outcome, end) = match &finding.action {
                    FindingRepair::Attachment(action) => {
                        (action.run(self, reach, &mut repaired), Some(begun + TRUST))
                    }
                    _ => match look.get_or_insert_with(|| self.look_again()) {
                        Ok(look) => (repair_one(look, finding, alone.invoker()).await, Some(look.end)),
                        Err(err) => (Repair::Failed(err.clone()), None),
                    },
                };
                outcomes.push((index, outcome));
                if end.is_some_and(|end| Instant::now() >= end) {
                    break;
                }
            }
            drop(alone);
            if left.peek().is_some() {
                tokio::time::sleep(PAUSE).await;
            }
        }
        outcomes
    }

    /// Examines the node under the lock.
    fn look_again(&self) -> Result<Examination, Error> {
        let begun = Instant::now();
        let sight = Sight::look(&self.evidence)?;
        let orphans = self.orphans(&sight)?;
        Ok(Examination { orphans, end: Instant::now() + begun.elapsed().max(TRUST) })
    }
}

/// Returns whether a second look at the node can correct an outcome. A repair of a living pod verifies itself, so a guard
/// that has repaired only such pods does not look at the whole node.
fn needs_second_look(findings: &[Finding], outcomes: &[Repair]) -> bool {
    let has_repaired = outcomes.iter().any(|outcome| matches!(outcome, Repair::Done));
    findings.iter().zip(outcomes).any(|(finding, outcome)| match (&finding.action, outcome) {
        (FindingRepair::Attachment(_), _) => false,
        (FindingRepair::Runtime, Repair::Failed(_)) => has_repaired && finding.kind.is_of_sandbox(),
        (_, outcome) => matches!(outcome, Repair::Done),
    })
}

/// Counts as repaired what is gone because of another repair of this call.
fn count_side_effects(findings: &[Finding], outcomes: &mut [Repair]) {
    let repaired: Vec<&Finding> = findings
        .iter()
        .zip(outcomes.iter())
        .filter(|(_, outcome)| matches!(outcome, Repair::Done))
        .map(|(finding, _)| finding)
        .collect();
    for (finding, outcome) in findings.iter().zip(outcomes.iter_mut()) {
        let went_with_others = repaired.iter().any(|other| can_go_with(finding, other));
        if went_with_others && matches!(outcome, Repair::Gone) {
            *outcome = Repair::Done;
        }
    }
}

/// Returns whether the repair of `other` can have removed or mended what `finding` is about. A DEL of a cache entry
/// removes the lease of the same container, too. Pods of one network share its bridge and its packet rules. What names
/// no container can go with anything: a set with its last element, an index of leases with the last lease.
fn can_go_with(finding: &Finding, other: &Finding) -> bool {
    let Some(id) = &finding.subject.container_id else { return true };
    let shares_objects = matches!(finding.kind, FindingKind::HostState | FindingKind::MissingRules)
        && finding.kind == other.kind
        && finding.subject.network == other.subject.network;
    // An alias or a comment can have cut the ID.
    let is_of_container = other
        .subject
        .container_id
        .as_ref()
        .is_some_and(|of_other| id.starts_with(of_other.as_str()) || of_other.starts_with(id.as_str()));
    shares_objects || is_of_container
}

/// Repairs a finding if it is found again. Otherwise there is nothing to do.
async fn repair_one(look: &Examination, finding: &Finding, invoker: &Invoker) -> Repair {
    let now = match find_again(look, finding) {
        Ok(Some(now)) => now,
        Ok(None) => return Repair::Gone,
        Err(err) => return Repair::Failed(err),
    };
    if let Some(why) = now.doubt {
        return Repair::Doubt { why, passing: now.passing };
    }
    let outcome = match &now.action {
        FindingRepair::Entry(action) => action.run(invoker).await,
        FindingRepair::Lease(action) => action.run(),
        FindingRepair::Link(action) => action.run(),
        FindingRepair::Rules(trace) => trace.remove(&mut Nft::new()).map(|()| Repair::Done),
        FindingRepair::EmptyRules => {
            cnimble_rules::survey::remove_idle(&mut Nft::new()).map(|()| Repair::Done)
        }
        FindingRepair::Attachment(_) | FindingRepair::Runtime => Ok(Repair::Gone),
    };
    outcome.unwrap_or_else(Repair::Failed)
}

/// Returns the finding as it is now, or `None` if it no longer exists.
fn find_again(look: &Examination, finding: &Finding) -> Result<Option<Finding>, Error> {
    match finding.kind {
        // Other sets and chains may be unused now. All are removed together.
        FindingKind::EmptyRules => stale_rules::idle(&mut Nft::new()),
        _ => Ok(look.orphans.iter().find(|now| now.is_again(finding)).cloned()),
    }
}
