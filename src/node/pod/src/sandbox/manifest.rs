use std::collections::BTreeMap;

use crate::manifest::Manifest;

use super::{DnsOptions, SandboxConfig};

impl SandboxConfig {
    /// The sandbox that a manifest asks for, on a node with this name resolution.
    /// ```
    /// use cnimble_pod::manifest::{Defaults, Manifest, Origin};
    /// use cnimble_pod::sandbox::{DnsOptions, SandboxConfig};
    ///
    /// let text = b"{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: a}]}}";
    /// let pods = Manifest::parse(text, &Origin::Other("an example".to_owned()), &Defaults::default())?;
    /// let config = SandboxConfig::from_manifest(&pods[0], &DnsOptions::default());
    /// assert_eq!(config.pod.to_string(), "default/web");
    /// # Ok::<(), cnimble_pod::manifest::ManifestError>(())
    /// ```
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
