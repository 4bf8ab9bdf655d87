//! Readers of what pods are made from, for fuzzers: each takes any bytes.

use super::manifest::{Defaults, Manifest, Origin, Parsed};
use super::sandbox::fuzzing as sandbox;
use super::sandbox::{DnsOptions, SandboxConfig};
use super::source::fuzzing as source;

pub fn manifest(bytes: &[u8]) {
    let origin = Origin::Other("here".to_owned());
    let nodes =
        [("", false), ("Node1", true)].map(|(node, suffix)| Defaults { node: node.to_owned(), suffix });
    // In YAML a carriage return alone ends a line, too.
    let lines = bytes.split(|byte| matches!(byte, b'\n' | b'\r')).count();
    for defaults in &nodes {
        let Parsed { pods, errors } = Manifest::parse_each(bytes, &origin, defaults);
        for err in errors {
            // Messages are one line, and lead to an existing place.
            assert!(!err.to_string().contains(char::is_control), "{err:?}");
            assert!(err.position.is_none_or(|(line, _)| line <= lines + 1), "{err:?}");
        }
        let whole = super::manifest::whole(bytes, &origin, defaults);
        for (pod, whole) in pods.into_iter().zip(whole) {
            assert!(!pod.uid.is_empty() && !pod.id.name.is_empty());
            let config = settings(&pod);
            // The completed pod says the same when it is read again.
            let text = serde_json::to_vec(&whole).unwrap_or_default();
            match Manifest::parse(&text, &origin, &Defaults::default()) {
                Ok(again) => assert_eq!(again.iter().map(settings).collect::<Vec<_>>(), [config]),
                Err(err) => assert!(text.is_empty(), "{err}"),
            }
        }
    }
}

fn settings(pod: &Manifest) -> SandboxConfig {
    let dns = DnsOptions {
        cluster_dns: vec![std::net::Ipv4Addr::new(10, 96, 0, 10).into()],
        cluster_domain: "cluster.local".to_owned(),
        resolv_conf: "/dev/null".into(),
    };
    let config = SandboxConfig::from_manifest(pod, &dns);
    let _ = (pod.termination_grace_period(), pod.time_left(std::time::SystemTime::now()));
    sandbox::resolv_conf(&config.dns);
    config
}

/// Takes any bytes for a sandbox's record.
pub fn checkpoint(bytes: &[u8]) {
    sandbox::checkpoint(bytes);
}

/// A node's resolv.conf, which pods inherit.
pub fn resolv(bytes: &[u8]) {
    sandbox::resolv(&String::from_utf8_lossy(bytes));
}

/// A kubeconfig, and the certificates and keys that one names.
pub fn kubeconfig(bytes: &[u8]) {
    cnimble_api::fuzzing::kubeconfig(bytes);
}

/// Takes any bytes for an API server's list page and watch events.
pub fn server(bytes: &[u8]) {
    source::server(bytes);
}
