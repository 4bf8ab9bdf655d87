//! Names of the attachment that a finding is about.

use cnimble_doctor::{Diagnosis, Finding, Whose};

/// Returns the name of the pod that a finding is about, if it is known.
pub(super) fn pod<'d>(finding: &Finding, diagnosis: &'d Diagnosis) -> Option<&'d String> {
    diagnosis.pods.get(finding.whose.container_id.as_ref()?)
}

/// Returns the owner in words. The name of the pod replaces the container ID if it is known.
pub(super) fn describe(whose: &Whose, pod: Option<&String>) -> String {
    let container = match pod {
        Some(pod) => ("pod", Some(pod)),
        None => ("container", whose.container_id.as_ref()),
    };
    let parts = [("network", whose.network.as_ref()), container, ("interface", whose.ifname.as_ref())];
    let known = parts.into_iter().filter_map(|(name, value)| Some(format!("{name} {}", value?)));
    known.collect::<Vec<_>>().join(", ")
}
