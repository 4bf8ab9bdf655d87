//! The runtime's configuration of the pods' network: the file `10-NAME.conflist`.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnetwork::IpNetwork;
use serde_json::{Value, json};

use cnimble_cni::cidr::default_route;
use cnimble_leases::store::Directory;
use cnimble_os::files::{self as files, IfPresent, Links};

use crate::LIMIT;
use crate::shares::ClusterLocal;

/// The main plugin of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Plugin {
    #[default]
    Bridge,
    Ptp,
}

/// The file, and what it is made from.
#[derive(Debug, Clone)]
pub struct Conflist {
    /// The configuration directory of the runtime.
    pub dir: PathBuf,
    /// The name of the network.
    pub name: String,
    pub plugin: Plugin,
    /// A template of the administrator that replaces the built-in text, in containerd's syntax.
    pub template: Option<PathBuf>,
    /// The `dataDir` of host-local, if it is not the default.
    pub data_dir: Option<PathBuf>,
    /// The configuration of cluster-local. It is `None` if each node has podCIDRs, and the IPAM plugin is host-local.
    pub cluster: Option<ClusterLocal>,
}

/// The bridge of the pods.
pub(crate) const BRIDGE: &str = "cni0";

impl Conflist {
    /// Returns the path of the network's file.
    pub fn path(&self) -> PathBuf {
        self.dir.join(format!("10-{}.conflist", self.name))
    }

    /// Returns the text for pods of these networks. With a template `mtu` has no effect.
    ///
    /// # Errors
    /// Fails if the template cannot be read, or if what it yields is no JSON with plugins.
    pub fn text(&self, own: &[IpNetwork], mtu: Option<u32>) -> Result<String, String> {
        let Some(template) = &self.template else { return Ok(self.usual(own, mtu)) };
        let shown = template.display();
        let text = files::read(template, LIMIT, Links::Follow).map_err(|err| format!("{shown}: {err}"))?;
        let text = String::from_utf8(text).map_err(|_| format!("{shown} is no text"))?;
        let text = crate::template::fill(&text, own).map_err(|why| format!("{shown}: {why}"))?;
        let value: Value =
            serde_json::from_str(&text).map_err(|err| format!("{shown}: filled in it is no JSON: {err}"))?;
        if value.get("plugins").and_then(Value::as_array).is_some_and(|plugins| !plugins.is_empty()) {
            Ok(text)
        } else {
            Err(format!("{shown}: filled in it has no plugins"))
        }
    }

    /// Returns the built-in text.
    fn usual(&self, own: &[IpNetwork], mtu: Option<u32>) -> String {
        let ipam = match &self.cluster {
            Some(cluster) => cluster.ipam.clone(),
            None => self.host_local(own),
        };
        let mut main = match self.plugin {
            // Pods reach others, including those of other nodes in their subnet, through the gateway. A new podCIDR has
            // another gateway. While pods of the old one live, the agent gives the bridge both before it writes this.
            Plugin::Bridge if self.cluster.is_some() => json!({
                "type": "bridge", "bridge": BRIDGE, "isGateway": true, "hairpinMode": true, "ipam": ipam,
            }),
            Plugin::Bridge => json!({
                "type": "bridge", "bridge": BRIDGE, "isGateway": true, "forceAddress": true, "hairpinMode": true,
                "ipam": ipam,
            }),
            Plugin::Ptp => json!({"type": "ptp", "ipam": ipam}),
        };
        if let Some(main) = main.as_object_mut() {
            main.extend(mtu.map(|mtu| ("mtu".to_owned(), json!(mtu))));
            if main.get("ipam").is_some_and(|ipam| ipam.get("pools").is_some()) {
                main.insert("capabilities".to_owned(), json!({"io.kubernetes.cri.pod-annotations": true}));
            }
        }
        let list = json!({
            "cniVersion": "1.0.0",
            "name": self.name,
            "plugins": [
                main,
                {"type": "portmap", "capabilities": {"portMappings": true}},
                {"type": "bandwidth", "capabilities": {"bandwidth": true}},
            ],
        });
        cnimble_cni::json::to_pretty(&list) + "\n"
    }

    /// Returns the `ipam` of host-local, with a default route for each family.
    fn host_local(&self, own: &[IpNetwork]) -> Value {
        let ranges: Vec<Value> = own.iter().map(|cidr| json!([{"subnet": cidr.to_string()}])).collect();
        let routes: Vec<Value> = own.iter().map(|cidr| json!({"dst": default_route(*cidr)})).collect();
        let mut ipam = json!({"type": "host-local", "ranges": ranges, "routes": routes});
        if let (Some(dir), Some(ipam)) = (&self.data_dir, ipam.as_object_mut()) {
            ipam.insert("dataDir".to_owned(), json!(dir));
        }
        ipam
    }

    /// Returns the subnets of which nodes own blocks. The result is empty if each node has podCIDRs.
    pub fn shared(&self) -> &[IpNetwork] {
        self.cluster.as_ref().map_or(&[], |cluster| &cluster.subnets)
    }

    /// Returns the networks in the current file. The list is empty without a readable file.
    pub fn ranges(&self) -> Vec<IpNetwork> {
        let Ok(text) = files::read(&self.path(), LIMIT, Links::Refuse) else { return Vec::new() };
        let value: Value = serde_json::from_slice(&text).unwrap_or_default();
        let plugins = value.get("plugins").and_then(Value::as_array).into_iter().flatten();
        let ipam = plugins.filter_map(|plugin| plugin.get("ipam"));
        let pools = ipam.clone().filter_map(|ipam| ipam.get("pools")?.as_array()).flatten();
        let ranges = ipam.clone().chain(pools).filter_map(|part| part.get("ranges")?.as_array());
        let subnets = ranges
            .flatten()
            .filter_map(Value::as_array)
            .flatten()
            .chain(ipam)
            .filter_map(|range| range.get("subnet")?.as_str());
        subnets.filter_map(|subnet| subnet.parse().ok()).collect()
    }

    /// Returns the leased addresses of this network. There are none without a lease directory.
    pub(crate) fn leases(&self) -> Result<Vec<IpAddr>, String> {
        let dir = self.data_dir.as_deref().unwrap_or(Path::new("/var/lib/cni/networks"));
        match Directory::open(&dir.join(&self.name)).map_err(|err| err.to_string())? {
            Some(dir) => dir.addresses().map_err(|err| err.to_string()),
            None => Ok(Vec::new()),
        }
    }

    /// Returns the address of a lease of this network that is outside of `own`. It returns `None` if there is no such
    /// lease, or no lease directory.
    pub fn lease_outside(&self, own: &[IpNetwork]) -> Result<Option<IpAddr>, String> {
        Ok(self.leases()?.into_iter().find(|ip| !own.iter().any(|cidr| cidr.contains(*ip))))
    }

    /// Returns whether new pods may get new podCIDRs while pods of earlier ones live. A template may have a bridge whose
    /// gateway the agent does not know, and a shared subnet is the administrator's to change.
    pub(crate) fn takes_new_cidrs_at_once(&self) -> bool {
        self.template.is_none() && self.cluster.is_none()
    }

    /// Writes the file atomically if its text differs. Returns whether it was written.
    pub fn write(&self, text: &str) -> io::Result<bool> {
        let path = self.path();
        if files::read(&path, LIMIT, Links::Refuse).is_ok_and(|current| current == text.as_bytes()) {
            return Ok(false);
        }
        // Runtimes ignore the draft because of its other extension.
        self.replace(&path, &self.dir.join(format!(".{}.cnimble-node", self.name)), text)?;
        Ok(true)
    }

    /// Replaces a file of the directory, all of it or nothing, by way of `draft`. The content is synced to disk first.
    pub(crate) fn replace(&self, path: &Path, draft: &Path, text: &str) -> io::Result<()> {
        std::fs::create_dir_all(&self.dir)?;
        files::draft(draft, text.as_bytes(), 0o600, true)?;
        std::fs::rename(draft, path).inspect_err(|_| drop(std::fs::remove_file(draft)))
    }

    /// Removes the file, and the record of earlier networks. Returns whether there was a file.
    pub fn remove(&self) -> Result<bool, String> {
        let path = self.path();
        let record = crate::earlier::remove_record(self);
        record.map_err(|err| format!("the record of earlier networks in {}: {err}", self.dir.display()))?;
        let removed = std::fs::remove_file(&path).if_present();
        removed.map(|removed| removed.is_some()).map_err(|err| format!("{}: {err}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_the_subnets_of_its_pools() {
        let dir = tempfile::tempdir().unwrap();
        let (plugin, dir) = (Plugin::Ptp, dir.path().to_owned());
        let conflist =
            Conflist { dir, name: "pods".to_owned(), plugin, template: None, data_dir: None, cluster: None };
        let of = |ipam: Value| {
            conflist.write(&json!({"plugins": [{"type": "ptp", "ipam": ipam}]}).to_string()).unwrap();
            conflist.ranges().iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let (one, two) = (
            json!([[{"subnet": "10.2.0.0/24"}], [{"subnet": "fd00:2::/64"}]]),
            json!([[{"subnet": "10.3.0.0/24"}]]),
        );
        let pools = json!([{"name": "db", "ranges": one}, {"name": "web", "ranges": two}]);
        let all = of(json!({"subnet": "10.1.0.0/16", "pools": pools}));
        assert_eq!(all, ["10.2.0.0/24", "fd00:2::/64", "10.3.0.0/24", "10.1.0.0/16"]);
        assert_eq!(of(json!({"ranges": one})), ["10.2.0.0/24", "fd00:2::/64"]);
    }
}
