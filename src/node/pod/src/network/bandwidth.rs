//! Traffic limits of pods by the kubelet's annotations, in bits per second (Kubernetes' pkg/util/bandwidth).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::quantity;

/// The annotation for traffic to the pod.
pub const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
/// The annotation for traffic from the pod.
pub const EGRESS: &str = "kubernetes.io/egress-bandwidth";

/// The least and the largest limit that the kubelet accepts.
const MIN: u64 = 1_000;
const MAX: u64 = 1_000_000_000_000_000;
/// The burst that a kubelet requests, in bits. It is nearly no limit, and overflows in no plugin.
const BURST: u64 = i32::MAX as u64;

/// Traffic limits of a pod, in bits per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bandwidth {
    pub ingress: Option<u64>,
    pub egress: Option<u64>,
}

/// An invalid annotation for a traffic limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("annotation {annotation}: \"{}\" {reason}", value.escape_debug())]
pub struct BandwidthError {
    pub annotation: &'static str,
    pub value: String,
    pub reason: &'static str,
}

impl Bandwidth {
    /// Returns the limits in these annotations, or `None` without any. Fails below 1k, above 1P, and for a value that
    /// is no [quantity](https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/).
    pub fn from_annotations(
        annotations: &BTreeMap<String, String>,
    ) -> Result<Option<Bandwidth>, BandwidthError> {
        let limits =
            Bandwidth { ingress: read_rate(annotations, INGRESS)?, egress: read_rate(annotations, EGRESS)? };
        Ok(Some(limits).filter(|limits| *limits != Bandwidth::default()))
    }

    /// Returns the capability argument `bandwidth`.
    pub(super) fn capability(self) -> Value {
        let mut map = serde_json::Map::new();
        if let Some(rate) = self.ingress {
            map.insert("ingressRate".into(), json!(rate));
            map.insert("ingressBurst".into(), json!(BURST));
        }
        if let Some(rate) = self.egress {
            map.insert("egressRate".into(), json!(rate));
            map.insert("egressBurst".into(), json!(BURST));
        }
        Value::Object(map)
    }
}

/// Returns the limit in one annotation, or `None` without it.
fn read_rate(
    annotations: &BTreeMap<String, String>,
    annotation: &'static str,
) -> Result<Option<u64>, BandwidthError> {
    let Some(value) = annotations.get(annotation) else { return Ok(None) };
    let reason = match quantity::parse(value) {
        None => "is no quantity, such as 10M",
        // The kubelet's words.
        Some(rate) if rate < MIN => "is unreasonably small (< 1kbit)",
        Some(rate) if rate > MAX => "is unreasonably large (> 1Pbit)",
        Some(rate) => return Ok(Some(rate)),
    };
    Err(BandwidthError { annotation, value: value.clone(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(key: &str, value: &str) -> Result<Option<Bandwidth>, String> {
        let annotations = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        Bandwidth::from_annotations(&annotations).map_err(|err| err.to_string())
    }

    #[test]
    fn the_limits_of_the_limits() {
        let ingress = |rate| Ok(Some(Bandwidth { ingress: Some(rate), egress: None }));
        assert_eq!(read(INGRESS, "1k"), ingress(1_000));
        assert_eq!(read(INGRESS, "1P"), ingress(MAX));
        assert_eq!(read(EGRESS, "1Mi"), Ok(Some(Bandwidth { ingress: None, egress: Some(1 << 20) })));
        assert_eq!(
            read(INGRESS, "999").unwrap_err(),
            "annotation kubernetes.io/ingress-bandwidth: \"999\" is unreasonably small (< 1kbit)"
        );
        assert_eq!(
            read(EGRESS, "1001T").unwrap_err(),
            "annotation kubernetes.io/egress-bandwidth: \"1001T\" is unreasonably large (> 1Pbit)"
        );
        assert!(read(EGRESS, "-1M").unwrap_err().contains("unreasonably small"));
        assert!(read(EGRESS, "fast").unwrap_err().contains("is no quantity"));
        assert_eq!(read("kubernetes.io/other", "fast"), Ok(None));
    }

    #[test]
    fn only_what_is_limited_is_sent() {
        let limits = Bandwidth { ingress: None, egress: Some(5000) };
        assert_eq!(limits.capability(), json!({"egressRate": 5000, "egressBurst": 2_147_483_647}));
    }
}
