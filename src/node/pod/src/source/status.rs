//! Writes pods' status to an API server, and confirms deletions, like the kubelet's status manager.

use std::net::IpAddr;

use hyper::Method;
use serde_json::{Map, Value, json};

use cnimble_api::{Connection, HttpError, StartError, encode, http, tame};

use super::{ApiSource, SourceError};
use crate::PodId;

/// The status to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodStatus {
    /// The addresses are empty for a pod in the host's network.
    Ready(Vec<IpAddr>),
    NotReady {
        reason: &'static str,
        message: String,
    },
}

/// Writes statuses to the API server of a source.
pub struct StatusWriter {
    connection: Connection,
}

impl std::fmt::Debug for StatusWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StatusWriter").field("server", &self.connection.server()).finish()
    }
}

impl StatusWriter {
    /// Uses the source's server. The kubeconfig is read again for each request.
    pub fn new(source: &ApiSource) -> Result<Self, StartError> {
        let connection = Connection::new(&source.server)?;
        Ok(StatusWriter { connection })
    }

    /// Writes a pod's status. It is no failure if the pod is gone, or if another pod has its name.
    pub async fn write(&mut self, pod: &PodId, uid: &str, status: &PodStatus) -> Result<(), SourceError> {
        let target = format!("{}/status", path(pod));
        // With this patch the server merges lists by their key, so the conditions of others stay.
        let kind = "application/strategic-merge-patch+json";
        self.send(Method::PATCH, &target, kind, &patch(uid, status, &now())).await
    }

    /// Confirms that nothing is left of a deleted pod, so that the server removes it. It is no failure if the pod is
    /// gone, or if another pod has its name.
    pub async fn confirm(&mut self, pod: &PodId, uid: &str) -> Result<(), SourceError> {
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0,
            "preconditions": {"uid": uid}});
        self.send(Method::DELETE, &path(pod), "application/json", &options).await
    }

    /// Sends a request. Status 404 and a conflict about the UID are success.
    async fn send(
        &mut self,
        method: Method,
        target: &str,
        kind: &'static str,
        body: &Value,
    ) -> Result<(), SourceError> {
        self.connection.renew().await?;
        let response =
            self.connection.send(method.clone(), target, kind, body.to_string().into_bytes()).await;
        let response = response.map_err(|err| named(method.as_str(), err.into()))?;
        match response.status().as_u16() {
            200..=299 => {
                // A connection can be used again only after its answer is read completely.
                let _ = http::body(response.into_body(), 1 << 20).await;
                Ok(())
            }
            404 => Ok(()),
            _ => {
                let refused = http::refused(response).await;
                // Another pod has the name. Only the text of the conflict says that.
                if matches!(&refused, HttpError::Status { status: 409, message } if message.contains("UID")) {
                    return Ok(());
                }
                Err(named(method.as_str(), self.connection.error(target, refused).into()))
            }
        }
    }
}

/// Adds the method to a request's error.
fn named(method: &str, err: SourceError) -> SourceError {
    match err {
        SourceError::Http { url, source } => SourceError::Write { method: method.to_owned(), url, source },
        other => other,
    }
}

fn path(pod: &PodId) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", encode(&pod.namespace), encode(&pod.name))
}

fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Returns the patch, which the server refuses for a pod with another UID.
fn patch(uid: &str, status: &PodStatus, now: &str) -> Value {
    let (phase, ready) = match status {
        PodStatus::Ready(_) => ("Running", "True"),
        PodStatus::NotReady { .. } => ("Pending", "False"),
    };
    let kinds = ["PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"];
    let conditions = kinds.into_iter().map(|kind| match status {
        PodStatus::Ready(_) => json!({"type": kind, "status": ready, "lastTransitionTime": now}),
        PodStatus::NotReady { reason, message } => {
            json!({"type": kind, "status": ready, "lastTransitionTime": now,
            "reason": reason, "message": tame(message)})
        }
    });
    let mut all = Map::new();
    all.insert("phase".to_owned(), json!(phase));
    all.insert("conditions".to_owned(), conditions.collect());
    if let PodStatus::Ready(ips) = status
        && let Some(first) = ips.first()
    {
        let replace = std::iter::once(json!({"$patch": "replace"}));
        let each = ips.iter().map(|ip| json!({"ip": ip.to_string()}));
        all.insert("podIP".to_owned(), json!(first.to_string()));
        all.insert("podIPs".to_owned(), replace.chain(each).collect());
    }
    json!({"metadata": {"uid": uid}, "status": all})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_says_what_a_kubelet_would() {
        let ips = ["10.0.0.2", "fd00::2"].map(|ip| ip.parse().unwrap());
        let patch_of = |status| patch("u", &status, "t");
        let up = patch_of(PodStatus::Ready(ips.to_vec()));
        assert_eq!((&up["metadata"]["uid"], &up["status"]["phase"]), (&json!("u"), &json!("Running")));
        assert_eq!(up["status"]["podIP"], "10.0.0.2");
        assert_eq!(
            up["status"]["podIPs"],
            json!([{"$patch": "replace"}, {"ip": "10.0.0.2"}, {"ip": "fd00::2"}])
        );
        assert_eq!(
            up["status"]["conditions"][3],
            json!({"type": "Ready", "status": "True", "lastTransitionTime": "t"})
        );
        assert!(patch_of(PodStatus::Ready(vec![]))["status"].get("podIPs").is_none());
        let down = patch_of(PodStatus::NotReady { reason: "Why", message: "a\u{1b}[31mb".to_owned() });
        assert_eq!(down["status"]["phase"], "Pending");
        let condition = &down["status"]["conditions"][0];
        assert_eq!(
            (&condition["type"], &condition["status"]),
            (&json!("PodReadyToStartContainers"), &json!("False"))
        );
        assert_eq!((&condition["reason"], &condition["message"]), (&json!("Why"), &json!("a[31mb")));
        assert_eq!(now().len(), "2026-01-01T00:00:00Z".len());
    }
}
