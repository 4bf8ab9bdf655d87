//! Cleaning up after pods that are gone, in all networks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::RwLockWriteGuard;
use tokio::time::{Instant, sleep};

use crate::runtime::{Cache, Deadline, Entry, Error};
use crate::spec::{Attachment, NetworkList};

use super::{INTERFACE, NetworkError, NetworkPlugin};

/// Between looks whether everybody else has finished.
const RETRY: Duration = Duration::from_millis(10);

impl NetworkPlugin {
    /// Cleans up in all networks, those of the directory and those that only the cache
    /// remembers: what belongs neither to one of the sandboxes in `valid` nor to another
    /// runtime's container ([`NetworkOptions::shared_caches`](super::NetworkOptions)) goes.
    /// Goes on past failures.
    ///
    /// Waits for a moment at which no operation on a pod is going on, and lets none begin until
    /// it has ended. So it has a time limit of its own
    /// ([`NetworkOptions::gc_limit`](super::NetworkOptions)), at which the plugin that is
    /// running is stopped and no other is started: pods wait so long for it at most, and what
    /// is left is found by the next clean-up. No sandbox may be set up between the making of
    /// `valid` and this call: it would be cleaned up.
    ///
    /// # Errors
    /// There was no such moment within the limit; all failures together.
    pub async fn gc(&self, valid: &[String]) -> Result<(), NetworkError> {
        let deadline = Deadline::after(self.inner.options.gc_limit);
        let _alone = self.alone(deadline).await?;
        let own = self.inner.options.invoker.cache();
        let cache_failed =
            |cause| NetworkError::Gc { failures: vec![Error::Cache { cause, rollback: Vec::new() }] };
        let entries = own.list().map_err(cache_failed)?;
        let valid_ids: BTreeSet<&str> = valid.iter().map(String::as_str).collect();
        let mut attachments: BTreeSet<(String, String)> = BTreeSet::new();
        for id in valid {
            attachments.insert((id.clone(), INTERFACE.to_owned()));
        }
        let of_ours = entries.iter().filter(|entry| valid_ids.contains(entry.container_id.as_str()));
        attachments.extend(of_ours.map(key));
        for dir in self.inner.options.shared_caches.iter().filter(|dir| *dir != own.dir()) {
            // Not to know what is others' would mean to clean it away.
            let theirs = Cache::new(dir).list().map_err(cache_failed)?;
            attachments.extend(theirs.iter().map(key));
        }
        let attachments: Vec<Attachment> = attachments
            .into_iter()
            .map(|(container_id, ifname)| Attachment { container_id, ifname })
            .collect();
        let mut failures = Vec::new();
        let networks = self.all_networks(&entries);
        for (done, list) in networks.values().enumerate() {
            // Each gets its share of the time that is left: one that hangs keeps no other from
            // being cleaned up.
            let left = deadline.at.saturating_duration_since(Instant::now());
            let invoker = self.invoker(list).with_deadline(share(left, networks.len() - done));
            failures.extend(invoker.gc(list, Some(&attachments)).await.err());
        }
        if failures.is_empty() { Ok(()) } else { Err(NetworkError::Gc { failures }) }
    }

    /// The lock that operations on pods share, for us alone. Not by queueing for it: those who
    /// come later would wait behind us for an operation that may hang for minutes.
    async fn alone(&self, deadline: Deadline) -> Result<RwLockWriteGuard<'_, ()>, NetworkError> {
        loop {
            if let Ok(guard) = self.inner.everything.try_write() {
                return Ok(guard);
            }
            if Instant::now() >= deadline.at {
                return Err(NetworkError::Busy { limit: deadline.limit });
            }
            sleep(RETRY).await;
        }
    }

    /// The networks of the directory, and those that the cache knows besides, by name.
    fn all_networks(&self, entries: &[Entry]) -> BTreeMap<String, NetworkList> {
        let mut networks = BTreeMap::new();
        // The first of a name counts.
        for network in &self.state().networks {
            networks.entry(network.list.name.clone()).or_insert_with(|| network.list.clone());
        }
        for entry in entries {
            if !networks.contains_key(&entry.network)
                && let Ok(list) = entry.network_list()
            {
                networks.insert(entry.network.clone(), list);
            }
        }
        networks
    }
}

/// One of `parts` of the time, in tenths of a second, since people will read it.
fn share(left: Duration, parts: usize) -> Deadline {
    const TENTH: u128 = 100;
    let parts = u128::try_from(parts).unwrap_or(1).max(1);
    let tenths = (left.as_millis() / parts).div_ceil(TENTH);
    Deadline::after(Duration::from_millis(u64::try_from(tenths * TENTH).unwrap_or(u64::MAX)))
}

fn key(entry: &Entry) -> (String, String) {
    (entry.container_id.clone(), entry.ifname.clone())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::pod::PodId;
    use crate::pod::network::{NetworkOptions, PodNetwork};
    use crate::runtime::Attach;
    use crate::runtime::tests::{Bench, attach, network};

    /// More than anything takes on a busy machine, and less than the time limit of an operation.
    const LONG: Duration = Duration::from_secs(100);

    /// Does what its name says for as long as the file `closed` is there.
    const HANGS: &str = r#"#!/bin/sh
dir=${0%/*}/..
cat >/dev/null
[ "$CNI_COMMAND" != VERSION ] || { echo '{"cniVersion":"1.1.0","supportedVersions":["1.1.0"]}'; exit 0; }
touch "$dir/reached"
while [ -e "$dir/closed" ]; do sleep 0.02; done
"#;

    async fn open(bench: &Bench, change: impl FnOnce(&mut NetworkOptions)) -> NetworkPlugin {
        let mut options = NetworkOptions::new(bench.path().join("net.d"), bench.invoker());
        options.vendor_prefix = None;
        options.shared_caches = Vec::new();
        change(&mut options);
        NetworkPlugin::open(options).await
    }

    fn conflist(bench: &Bench, list: &NetworkList) {
        let dir = bench.path().join("net.d");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join(format!("{}.conflist", list.name)), list.document.to_string()).unwrap();
    }

    fn named(name: &str, plugins: &[&str]) -> NetworkList {
        let mut list = network("1.1.0", plugins);
        list.name = name.to_owned();
        list.document["name"] = name.into();
        list
    }

    fn pod(name: &str) -> PodNetwork {
        PodNetwork::new(PodId::new("default", name), name, "/nowhere")
    }

    async fn exists(bench: &Bench, name: &str) {
        let path = bench.path().join(name);
        let there = async {
            while !path.exists() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(LONG, there).await.expect(name);
    }

    #[tokio::test]
    async fn what_is_nobodys_goes_in_all_networks_and_the_rest_stays() {
        let bench = Bench::new(&["one", "two"]);
        // One network is in the directory, the other one's file has gone.
        let (pods, old) = (named("pods", &["one"]), named("old", &["two"]));
        conflist(&bench, &pods);
        for (list, id) in [(&pods, "ours"), (&pods, "gone"), (&old, "longgone")] {
            bench.invoker().add(list, &attach(id)).await.unwrap();
        }
        let lo = Attach::new("ours", "/run/netns/x", "lo");
        bench.invoker().add(&named("loopback", &["two"]), &lo).await.unwrap();
        // Another runtime has a container in our network.
        let theirs = bench.path().join("theirs");
        bench.invoker().with_cache_dir(&theirs).add(&pods, &attach("theirs")).await.unwrap();
        let plugin = open(&bench, |options| options.shared_caches = vec![theirs.clone()]).await;
        bench.calls();
        bench.write("count", "0");
        plugin.gc(&["ours".to_owned(), "new".to_owned()]).await.unwrap();
        let calls = ["GC two", "DEL two", "GC two", "DEL one", "GC one"];
        assert_eq!(bench.calls(), calls, "loopback, old, pods");
        assert!(bench.env(1).contains("CNI_CONTAINERID=longgone\n"));
        assert!(bench.env(3).contains("CNI_CONTAINERID=gone\n"));
        let valid = json!([
            {"containerID": "new", "ifname": "eth0"},
            {"containerID": "ours", "ifname": "eth0"},
            {"containerID": "ours", "ifname": "lo"},
            {"containerID": "theirs", "ifname": "eth0"},
        ]);
        for call in [0, 2, 4] {
            assert_eq!(bench.stdin(call)["cni.dev/valid-attachments"], valid, "{call}");
        }
        let left = plugin.cache().list().unwrap();
        let left: Vec<String> = left.iter().map(|of| format!("{} {}", of.container_id, of.ifname)).collect();
        assert_eq!(left, ["ours lo", "ours eth0"]);
        assert_eq!(Cache::new(&theirs).list().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn without_knowing_what_is_others_nothing_is_cleaned_up() {
        let bench = Bench::new(&["one"]);
        let pods = named("pods", &["one"]);
        conflist(&bench, &pods);
        bench.invoker().add(&pods, &attach("gone")).await.unwrap();
        // The directory of their entries is none.
        std::fs::create_dir(bench.path().join("theirs")).unwrap();
        bench.write("theirs/results", "");
        let theirs = bench.path().join("theirs");
        let plugin = open(&bench, |options| options.shared_caches = vec![theirs]).await;
        bench.calls();
        let err = plugin.gc(&[]).await.unwrap_err().to_string();
        assert!(err.contains("theirs/results"), "{err}");
        assert_eq!(bench.calls(), Vec::<String>::new());
    }

    #[tokio::test]
    async fn one_networks_failure_is_told_and_keeps_no_other() {
        let bench = Bench::new(&["one", "two"]);
        conflist(&bench, &named("a", &["one"]));
        conflist(&bench, &named("b", &["two"]));
        bench.fail("one", "GC", 11);
        let plugin = open(&bench, |_| {}).await;
        bench.calls();
        let err = plugin.gc(&[]).await.unwrap_err().to_string();
        assert!(err.contains("one is sulking") && err.contains("clean up networks"), "{err}");
        assert_eq!(bench.calls(), ["GC one", "GC two"]);
    }

    #[tokio::test]
    async fn a_plugin_that_hangs_is_stopped_and_pods_go_on() {
        let bench = Bench::new(&["one"]);
        bench.plugin("hangs", HANGS);
        conflist(&bench, &named("a", &["hangs", "one"]));
        conflist(&bench, &named("b", &["one"]));
        bench.write("closed", "");
        let plugin = open(&bench, |options| options.gc_limit = Duration::from_secs(30)).await;
        bench.calls();
        let cleaning = tokio::spawn({
            let plugin = plugin.clone();
            async move { plugin.gc(&[]).await }
        });
        exists(&bench, "reached").await;
        // A pod of a network without the plugin that hangs.
        let mut pod = pod("web");
        pod.network = Some(std::sync::Arc::new(named("b", &["one"])));
        tokio::time::timeout(LONG, plugin.tear_down(&pod)).await.expect("held up").unwrap();
        let err = cleaning.await.unwrap().unwrap_err().to_string();
        assert!(err.contains("hangs") && err.contains("no answer within 15s"), "{err}");
        // Not the rest of its chain, but the other network, and then the pod.
        assert_eq!(bench.calls(), ["GC one", "DEL one"]);
    }

    #[tokio::test]
    async fn it_waits_for_a_pod_that_hangs_without_holding_up_the_others() {
        let bench = Bench::new(&["one"]);
        bench.plugin("hangs", HANGS);
        conflist(&bench, &named("a", &["one"]));
        bench.write("closed", "");
        let plugin = open(&bench, |options| options.gc_limit = Duration::from_millis(300)).await;
        let mut stuck = pod("stuck");
        stuck.network = Some(std::sync::Arc::new(named("b", &["hangs"])));
        let hanging = tokio::spawn({
            let plugin = plugin.clone();
            async move { plugin.tear_down(&stuck).await }
        });
        exists(&bench, "reached").await;
        bench.calls();
        let (cleaned, other) = tokio::join!(plugin.gc(&[]), async {
            sleep(RETRY).await;
            tokio::time::timeout(LONG, plugin.tear_down(&pod("other"))).await
        });
        other.expect("held up").unwrap();
        let err = cleaned.unwrap_err();
        assert!(matches!(err, NetworkError::Busy { .. }), "{err}");
        assert_eq!(bench.calls(), ["DEL one"], "no GC");
        std::fs::remove_file(bench.path().join("closed")).unwrap();
        hanging.await.unwrap().unwrap();
        plugin.gc(&[]).await.unwrap();
        assert_eq!(bench.calls(), ["GC one"]);
    }
}
