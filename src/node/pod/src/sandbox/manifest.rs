use std::collections::BTreeMap;

use crate::manifest::Manifest;

use super::{DnsOptions, SandboxConfig};

impl SandboxConfig {
    pub fn from_manifest(manifest: &Manifest, dns: &DnsOptions) -> Self {
        let own = manifest.dns_config();
        SandboxConfig {
            pod: manifest.id.clone(),
            uid: manifest.uid.clone(),
            hostname: manifest.hostname().to_owned(),
            host_network: manifest.host_network(),
            labels: BTreeMap::new(),
            cgroup: None,
            annotations: manifest.shared_annotations(),
            ports: manifest.port_mappings().to_vec(),
            dns: dns.resolve(manifest.dns_policy(), &manifest.id.namespace, &own),
        }
    }
}
