use std::collections::BTreeMap;
use std::sync::Arc;

use crate::manifest::Manifest;

use super::{DnsOptions, SandboxConfig};

impl SandboxConfig {
    /// Returns the configuration of a manifest's sandbox. It reads the node's resolv.conf.
    pub fn from_manifest(manifest: &Manifest, dns: &DnsOptions) -> Self {
        let facts = &manifest.facts;
        let own = facts.dns.as_deref().cloned().unwrap_or_default();
        SandboxConfig {
            pod: manifest.id.clone(),
            uid: manifest.uid.clone(),
            hostname: manifest.hostname().to_owned(),
            host_network: facts.host_network,
            labels: BTreeMap::new(),
            cgroup: None,
            annotations: Arc::clone(&facts.annotations),
            ports: facts.ports.to_vec(),
            dns: dns.resolve(facts.dns_policy, &manifest.id.namespace, &own),
        }
    }
}
