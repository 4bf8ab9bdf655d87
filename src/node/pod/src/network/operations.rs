use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use cnimble_cni::{NetworkList, Version};
use cnimble_netlink::NetNs;
use cnimble_runtime::{Attach, Entry, Error};

use super::error::Operation;
use super::{INTERFACE, NetworkError, NetworkPlugin, PodNetwork, read};

const LOOPBACK: &str = "lo";

/// Returns the loopback network, as containerd has it. Its plugin sets `lo` up. `None` would mean that the text in here
/// is no configuration, so it never happens.
fn loopback() -> Option<&'static NetworkList> {
    static NETWORK: OnceLock<Option<NetworkList>> = OnceLock::new();
    let text = br#"{"cniVersion":"0.3.1","name":"cni-loopback","plugins":[{"type":"loopback"}]}"#;
    NETWORK.get_or_init(|| NetworkList::parse(text).and_then(NetworkList::complete).ok()).as_ref()
}

impl NetworkPlugin {
    /// Sets up loopback and then [`PodNetwork::network`], or the default network without it. Returns the pod's
    /// addresses. A failure is undone. [`NetworkError::is_clean`] says whether that succeeded.
    pub async fn set_up(&self, pod: &PodNetwork) -> Result<Vec<IpAddr>, NetworkError> {
        let _shared = self.inner.everything.read().await;
        let _alone = self.inner.pods.lock(&pod.pod).await;
        let network = match &pod.network {
            Some(network) => Arc::clone(network),
            None => Arc::new(self.require()?.list.clone()),
        };
        if !pod.ports.is_empty() && !network.takes("portMappings") {
            let (pod, name) = (&pod.pod, &network.name);
            log::warn!("no plugin of network {name} takes portMappings: pod {pod} gets no host ports");
        }
        let cidrs = self.pod_cidrs();
        let mut added: Vec<(&NetworkList, Attach)> = Vec::new();
        let order = loopback().map(|list| (list, LOOPBACK)).into_iter().chain([(&*network, INTERFACE)]);
        for (list, ifname) in order {
            let attach = pod.attach(ifname, &cidrs);
            if let Err(failure) = self.invoker(list).add(list, &attach).await {
                let mut failures = vec![failure];
                failures.extend(self.take_back(&added).await);
                return Err(NetworkError::plugins(Operation::SetUp, pod, failures));
            }
            added.push((list, attach));
        }
        // A network of layer 2 has no addresses, but the interface must exist.
        match self.addresses(Operation::SetUp, pod).await {
            Err(NetworkError::Namespace { operation, pod, sandbox, source, .. }) => {
                let rollback = self.take_back(&added).await;
                Err(NetworkError::Namespace { operation, pod, sandbox, source, rollback })
            }
            outcome => outcome,
        }
    }

    /// Runs DEL in reverse order, and returns all failures.
    async fn take_back(&self, added: &[(&NetworkList, Attach)]) -> Vec<Error> {
        let mut failures = Vec::new();
        for (list, attach) in added.iter().rev() {
            failures.extend(self.invoker(list).del(list, attach).await.err());
        }
        failures
    }

    /// Takes down a pod's network with the configuration of its set-up: that of the cache, else
    /// [`PodNetwork::network`], else the default network. It can be repeated, also without the namespace. It goes on
    /// past failures, and must be called again after any.
    pub async fn tear_down(&self, pod: &PodNetwork) -> Result<(), NetworkError> {
        let _shared = self.inner.everything.read().await;
        let _alone = self.inner.pods.lock(&pod.pod).await;
        let netns = self.living(&pod.netns);
        let mut entries =
            self.recorded(pod).map_err(|err| NetworkError::plugins(Operation::TearDown, pod, vec![err]))?;
        // The order of the set-up is reversed, so loopback comes last.
        entries.sort_by_key(|entry| entry.ifname == LOOPBACK);
        let mut failures = Vec::new();
        let mut known = Vec::new();
        for entry in entries {
            let Ok(list) = entry.network_list() else { continue };
            let mut attach = Attach::from_entry(&entry);
            attach.netns.clone_from(&netns);
            failures.extend(self.invoker(&list).del(&list, &attach).await.err());
            known.push((list.name, attach.ifname));
        }
        // A set-up that was interrupted has no entry yet.
        let fallback = match &pod.network {
            Some(network) => Some(Arc::clone(network)),
            None if known.is_empty() => self.default_network().map(|network| Arc::new(network.list.clone())),
            None => None,
        };
        if let Some(list) = fallback
            && !known.iter().any(|(name, ifname)| *name == list.name && ifname == INTERFACE)
        {
            let mut attach = pod.attach(INTERFACE, &self.pod_cidrs());
            attach.netns = netns;
            failures.extend(self.invoker(&list).del(&list, &attach).await.err());
        }
        if failures.is_empty() {
            Ok(())
        } else {
            Err(NetworkError::plugins(Operation::TearDown, pod, failures))
        }
    }

    /// Runs the verb CHECK for networks from version 0.4.0 on. Fails for a pod without a cache entry. Goes on past
    /// failures, and returns all.
    pub async fn check(&self, pod: &PodNetwork) -> Result<(), NetworkError> {
        let _shared = self.inner.everything.read().await;
        let _alone = self.inner.pods.lock(&pod.pod).await;
        let entries =
            self.recorded(pod).map_err(|err| NetworkError::plugins(Operation::Check, pod, vec![err]))?;
        let mut failures = Vec::new();
        if !entries.iter().any(|entry| entry.ifname == INTERFACE) {
            failures.push(Error::NoResult {
                network: pod.network.as_ref().map(|list| list.name.clone()).unwrap_or_default(),
                container_id: pod.sandbox_id.clone(),
                ifname: INTERFACE.to_owned(),
                reason: "it has not been set up".to_owned(),
            });
        }
        for entry in entries {
            let Ok(list) = entry.network_list() else { continue };
            if list.version >= Version::V0_4_0 {
                let attach = Attach::from_entry(&entry);
                failures.extend(self.invoker(&list).check(&list, &attach).await.err());
            }
        }
        if failures.is_empty() { Ok(()) } else { Err(NetworkError::plugins(Operation::Check, pod, failures)) }
    }

    /// Returns the pod's present addresses. Fails if the namespace or its interface is gone.
    pub async fn status(&self, pod: &PodNetwork) -> Result<Vec<IpAddr>, NetworkError> {
        let _shared = self.inner.everything.read().await;
        let _alone = self.inner.pods.lock(&pod.pod).await;
        self.addresses(Operation::Status, pod).await
    }

    /// Returns the global addresses, IPv4 first. The first one is what the kubelet calls the pod's IP.
    async fn addresses(&self, operation: Operation, pod: &PodNetwork) -> Result<Vec<IpAddr>, NetworkError> {
        let addresses = read::addresses(pod.netns.clone(), INTERFACE).await;
        addresses.map_err(|source| NetworkError::Namespace {
            operation,
            pod: pod.pod.clone(),
            sandbox: pod.sandbox_id.clone(),
            source,
            rollback: Vec::new(),
        })
    }

    /// Returns the cache entries of the sandbox. An unreadable entry is skipped, with a warning.
    fn recorded(&self, pod: &PodNetwork) -> Result<Vec<Entry>, Error> {
        let cache = self.inner.options.invoker.cache();
        cache.list_of(&pod.sandbox_id).map_err(Error::from)
    }

    /// Returns the path of the namespace for DEL. It is empty if there is no namespace, because the file of a bind
    /// mount may be left over.
    fn living(&self, netns: &Path) -> String {
        match NetNs::find(netns) {
            Ok(None) => String::new(),
            // If the kernel can't say, for example without a free descriptor, the namespace counts as present.
            _ => netns.to_string_lossy().into_owned(),
        }
    }
}

impl NetworkError {
    fn plugins(operation: Operation, pod: &PodNetwork, failures: Vec<Error>) -> Self {
        NetworkError::Plugins { operation, pod: pod.pod.clone(), sandbox: pod.sandbox_id.clone(), failures }
    }
}
