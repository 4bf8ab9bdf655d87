//! Finds pods whose namespace has lost the interface that ADD made.

use cnimble_liveness::cache_entries::JudgedEntry;
use cnimble_liveness::node::Node;
use cnimble_liveness::{Verdict, inside};
use cnimble_netlink::NetNs;
use cnimble_os::files::begun;

use super::attachments::{REPLACE, leaving};
use super::runtime::PAUSE;
use super::{Doctor, Finding, FindingKind, FindingRepair, Subject};

/// Returns findings about pods whose namespace has lost the interface that ADD made. Only a new pod gets one. A DEL
/// that runs looks the same between its last plugin and the removal of the record. So only what is found twice, with a
/// pause of [`PAUSE`], counts.
pub(super) async fn without_interface(doctor: &Doctor<'_>, node: &Node) -> Vec<Finding> {
    let doubtful =
        node.entries.iter().filter(|known| known.own && matches!(known.verdict, Verdict::Doubt(_)));
    let mut lost: Vec<&JudgedEntry> = doubtful.filter(|known| has_lost(known)).collect();
    if lost.is_empty() {
        return Vec::new();
    }
    tokio::time::sleep(PAUSE).await;
    lost.retain(|known| known.is_still_recorded() && has_lost(known));
    let mut findings = Vec::new();
    for known in lost {
        let is_leaving = begun::is_noted(&known.owner().tag());
        findings.push(if is_leaving { leaving(doctor, known) } else { cut_off(known) });
    }
    findings
}

/// Returns whether the interface of an entry is missing in its namespace. It returns false for an unreadable namespace,
/// which is reported elsewhere.
fn has_lost(known: &JudgedEntry) -> bool {
    let netns = NetNs::find(known.entry.namespace().unwrap_or_default().as_ref());
    let lost = netns.ok().flatten().map(|netns| inside::has_lost_interface(&known.entry, &netns));
    matches!(lost, Some(Ok(true)))
}

fn cut_off(known: &JudgedEntry) -> Finding {
    Finding {
        kind: FindingKind::PodState,
        what: "interface of the pod".to_owned(),
        subject: Subject::from_attachment(&known.entry.network, &known.attachment()),
        why: inside::lost(&known.entry),
        doubt: None,
        passing: false,
        remedy: REPLACE.into(),
        action: FindingRepair::Runtime,
    }
}
