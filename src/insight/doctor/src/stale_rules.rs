//! Finds packet rules of removed pods.

use cnimble_cni::Error;
use cnimble_liveness::Sight;
use cnimble_netlink::nft::Nft;
use cnimble_rules::survey::{self, OwnerHint, Trace};

use super::{Finding, FindingKind, FindingRepair, Subject, orphaned};

/// Returns the findings about packet rules whose pod is dead or in doubt.
pub(super) fn findings(sight: &Sight) -> Vec<Finding> {
    let mut findings = Vec::new();
    for trace in &sight.traces {
        let Some((why, doubt)) = orphaned(&sight.judge(trace)) else { continue };
        findings.push(Finding {
            kind: FindingKind::Rules,
            what: trace.what.clone(),
            subject: subject(trace),
            why,
            doubt,
            passing: false,
            remedy: "remove it, and the sets and chains that are unused without it".into(),
            action: FindingRepair::Rules(Box::new(trace.clone())),
        });
    }
    findings
}

/// Returns the finding about all unused chains and sets together, or `None` without any.
pub(super) fn idle(nft: &mut Nft) -> Result<Option<Finding>, Error> {
    let idle = survey::idle(nft)?;
    Ok((!idle.is_empty()).then(|| Finding {
        kind: FindingKind::EmptyRules,
        what: idle.join("; "),
        subject: Subject::default(),
        why: "no rule of a pod uses them".to_owned(),
        doubt: None,
        passing: false,
        remedy: "remove them; the next pod makes them again".into(),
        action: FindingRepair::EmptyRules,
    }))
}

fn subject(trace: &Trace) -> Subject {
    match &trace.named {
        OwnerHint::Container { network, id } => {
            Subject { network: network.clone(), container_id: Some(id.clone()), ifname: None }
        }
        _ => trace.comment().map(names).unwrap_or_default(),
    }
}

/// Returns the names in a comment or alias of cnimble. The last one may be cut.
pub(super) fn names(comment: &str) -> Subject {
    match survey::tag(comment) {
        None => Subject::default(),
        Some(_) => Subject {
            network: value(comment, ", net: ", Some(", if: ")),
            ifname: value(comment, ", if: ", Some(", id: ")),
            container_id: value(comment, ", id: ", None),
        },
    }
}

/// Returns what is between a key and the next one, or the end of the comment.
fn value(comment: &str, key: &str, end: Option<&str>) -> Option<String> {
    let (_, rest) = comment.split_once(key)?;
    Some(end.and_then(|end| rest.split_once(end)).map_or(rest, |(value, _)| value).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_comments() {
        let tag = "b70a60970e0f5394-b85eb1db7af38d45";
        let subject = names(&format!("{tag}, of: 4, net: cluster, if: eth0, id: web"));
        assert_eq!(subject.network.as_deref(), Some("cluster"));
        assert_eq!((subject.ifname.as_deref(), subject.container_id.as_deref()), (Some("eth0"), Some("web")));
        assert_eq!(names("ingressPolicy: open"), Subject::default());
        assert_eq!(names(tag), Subject::default());
    }
}
