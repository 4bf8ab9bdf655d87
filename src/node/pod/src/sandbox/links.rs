use std::collections::BTreeSet;

use serde_json::Value;

use cnimble_liveness::cache_entries::host_links;
use cnimble_netlink::Netlink;
use cnimble_netlink::link::Filter;
use cnimble_runtime::Key;

use super::{Sandbox, Sandboxes};
use crate::network::INTERFACE;

impl Sandboxes {
    /// Returns the names of a sandbox's links on the host that the result of ADD names. The list is empty without a
    /// readable result.
    pub(crate) fn links_of(&self, sandbox: &Sandbox) -> Vec<String> {
        let Some(network) = sandbox.network_name() else { return Vec::new() };
        let key = Key { network, container_id: &sandbox.id, ifname: INTERFACE };
        match self.network().cache().get(key) {
            Ok(found) => found.entry().iter().flat_map(host_links).map(str::to_owned).collect(),
            Err(err) => {
                let pod = &sandbox.config.pod;
                log::warn!("{err}: links of pod {pod} that vanish are found by checks only");
                Vec::new()
            }
        }
    }

    /// Returns the cached result of the network's ADD, or `None` without one.
    pub fn result_of(&self, sandbox: &Sandbox) -> Option<Value> {
        let network = sandbox.network_name()?;
        let key = Key { network, container_id: &sandbox.id, ifname: INTERFACE };
        self.network().cache().get(key).ok()?.entry()?.result.clone()
    }
}

/// Returns the names of all links on the host. It returns `None` if they can't be listed.
pub(crate) fn present() -> Option<BTreeSet<String>> {
    let links = Netlink::open().and_then(|mut host| host.links(&Filter { master: None, kind: None }));
    match links {
        Ok(links) => Some(links.into_iter().map(|link| link.name).collect()),
        Err(err) => {
            log::warn!("can't look for links that have vanished: {err}");
            None
        }
    }
}
