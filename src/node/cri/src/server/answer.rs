//! Converts our sandboxes and errors to CRI's.

use std::collections::BTreeMap;

use tonic::{Code, Status};

use crate::wire;
use cnimble_pod::sandbox::{Cause, Fault, Sandbox, SandboxError};

/// The longest message of an error, in bytes. It is sent in a header, and clients limit those.
const MESSAGE: usize = 4096;

fn metadata(of: &Sandbox) -> wire::PodSandboxMetadata {
    wire::PodSandboxMetadata {
        name: of.config.pod.name.clone(),
        uid: of.config.uid.clone(),
        namespace: of.config.pod.namespace.clone(),
        attempt: of.attempt,
    }
}

/// Returns CRI's state: a sandbox without a known fault is ready.
pub(crate) fn state(fault: Option<Fault>) -> i32 {
    if fault.is_none() { wire::READY } else { wire::NOT_READY }
}

/// Returns the time of creation in nanoseconds since 1970.
fn created(of: &Sandbox) -> i64 {
    let seconds = i64::try_from(of.created).unwrap_or(i64::MAX);
    seconds.saturating_mul(1_000_000_000).saturating_add(of.created_nanos.into())
}

/// Converts a sandbox for ListPodSandbox.
pub(crate) fn item(of: Sandbox, fault: Option<Fault>) -> wire::PodSandbox {
    wire::PodSandbox {
        metadata: Some(metadata(&of)),
        state: state(fault),
        created_at: created(&of),
        annotations: BTreeMap::clone(&of.config.annotations),
        labels: of.config.labels,
        id: of.id,
    }
}

/// Converts a sandbox for PodSandboxStatus. The addresses are those of the set-up. With a fault there are none.
pub(crate) fn status(of: &Sandbox, fault: Option<Fault>) -> wire::PodSandboxStatus {
    let ips = of.ips.iter().filter(|_| fault.is_none());
    let mut ips = ips.map(ToString::to_string);
    let network = wire::PodSandboxNetworkStatus {
        ip: ips.next().unwrap_or_default(),
        additional_ips: ips.map(|ip| wire::PodIp { ip }).collect(),
    };
    let options = wire::NamespaceOption {
        network: if of.config.host_network { wire::NODE } else { wire::POD },
        ..wire::NamespaceOption::default()
    };
    wire::PodSandboxStatus {
        id: of.id.clone(),
        metadata: Some(metadata(of)),
        state: state(fault),
        created_at: created(of),
        network: Some(network),
        linux: Some(wire::LinuxPodSandboxStatus {
            namespaces: Some(wire::Namespace { options: Some(options) }),
        }),
        labels: of.config.labels.clone(),
        annotations: BTreeMap::clone(&of.config.annotations),
    }
}

/// Converts an error. The code is that of its first cause.
pub(crate) fn error(err: &SandboxError) -> Status {
    let code = match (err, err.causes().first()) {
        (SandboxError::Unknown { .. }, _) => Code::NotFound,
        (_, Some(Cause::Exists { .. })) => Code::AlreadyExists,
        (_, Some(Cause::Cancelled)) => Code::Cancelled,
        (_, Some(Cause::Bandwidth(_))) => Code::InvalidArgument,
        (_, Some(Cause::NotReady(_) | Cause::Locked(_))) => Code::Unavailable,
        _ => Code::Internal,
    };
    Status::new(code, cut(err.to_string()))
}

/// Cuts a message to the size that clients accept.
pub(crate) fn cut(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().find(|(index, letter)| index + letter.len_utf8() > MESSAGE) {
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_cut_between_letters() {
        assert_eq!(cut("short".into()), "short");
        let long = cut("ä".repeat(MESSAGE));
        assert!(long.len() <= MESSAGE + 3 && long.ends_with("ä…"), "{}", long.len());
    }
}
