//! Cleaning up after pods that are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::RwLockWriteGuard;
use tokio::time::{Instant, sleep};

use crate::life::{self, Sight, Verdict, Witnesses};
use crate::runtime::{Cache, Deadline, Entry, Error, Invoker};
use crate::spec::{Attachment, NetworkList};

use super::{INTERFACE, NetworkError, NetworkPlugin};

/// Between looks whether everybody else has finished.
const RETRY: Duration = Duration::from_millis(10);

/// Sandboxes, by their IDs.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Sandboxed {
    /// Those on record: their pods live, or may live.
    pub valid: Vec<String>,
    /// Those that are known to be ours and on no record.
    pub lost: Vec<String>,
}

impl NetworkPlugin {
    /// Cleans up after sandboxes that are on record no more: DEL for each of their entries in the
    /// cache. An entry of which nothing shows that it is ours stays as long as anything speaks
    /// for its attachment ([`life`](crate::life)): it may be another runtime's, in a cache that is shared.
    ///
    /// In networks that are ours alone ([`NetworkOptions::own_networks`](super::NetworkOptions)),
    /// plugins are asked to clean up, too (the verb GC), with a list of everything that lives or
    /// may live. In others they aren't: no list could have in it what another runtime adds a moment later.
    ///
    /// Goes on past failures. Waits for a moment at which no operation on a pod is going on, and lets
    /// none begin until it has ended. So it has a time limit of its own
    /// ([`NetworkOptions::gc_limit`](super::NetworkOptions)), at which the plugin that is
    /// running is stopped and no other is started: pods wait so long for it at most, and what
    /// is left is found by the next clean-up. No sandbox may be set up between the making of
    /// `known` and this call: it would be cleaned up.
    ///
    /// # Errors
    /// There was no such moment within the limit; all failures together.
    pub async fn gc(&self, known: &Sandboxed) -> Result<(), NetworkError> {
        let deadline = Deadline::after(self.inner.options.gc_limit);
        let _alone = self.alone(deadline).await?;
        let own = self.inner.options.invoker.cache();
        let cache_failed =
            |cause| NetworkError::Gc { failures: vec![Error::Cache { cause, rollback: Vec::new() }] };
        let entries = own.list().map_err(cache_failed)?;
        let valid: BTreeSet<&str> = known.valid.iter().map(String::as_str).collect();
        let is_own = |name: &str| self.inner.options.own_networks.iter().any(|own| own == name);
        let mut work: BTreeMap<String, (NetworkList, Vec<&Entry>)> = BTreeMap::new();
        for (name, list) in self.all_networks(&entries) {
            let of = |entry: &&Entry| entry.network == name && !valid.contains(entry.container_id.as_str());
            let unwanted: Vec<&Entry> = entries.iter().filter(of).collect();
            if is_own(&name) || !unwanted.is_empty() {
                work.insert(name, (list, unwanted));
            }
        }
        let mut failures = Vec::new();
        let networks = work.len();
        for (done, (list, unwanted)) in work.values().enumerate() {
            // Each gets its share of the time that is left: one that hangs keeps no other from
            // being cleaned up.
            let left = deadline.at.saturating_duration_since(Instant::now());
            let invoker = self.invoker(list).with_deadline(share(left, networks - done));
            match invoker.alone(Some(&list.name)).await {
                Ok(alone) => {
                    failures
                        .extend(self.clean(alone.invoker(), list, unwanted, known, is_own(&list.name)).await);
                }
                Err(err) => failures.push(err),
            }
        }
        if failures.is_empty() { Ok(()) } else { Err(NetworkError::Gc { failures }) }
    }

    /// Cleans one network up, which is locked; returns all failures.
    async fn clean(
        &self,
        invoker: &Invoker,
        list: &NetworkList,
        unwanted: &[&Entry],
        known: &Sandboxed,
        own: bool,
    ) -> Vec<Error> {
        let mut failures = Vec::new();
        // Looked at now, when no other command works on the network.
        let sight = match Sight::look(&self.witnesses()) {
            Ok(sight) => sight,
            Err(err) => return vec![Error::Node(err)],
        };
        let dead = |entry: &&&Entry| {
            let judged = sight.world.entries.iter().find(|judged| judged.own && judged.entry == ***entry);
            known.lost.contains(&entry.container_id)
                || judged.is_some_and(|judged| matches!(judged.verdict, Verdict::Orphan(_)))
        };
        let dead: BTreeSet<(&str, &str)> = unwanted.iter().filter(dead).map(|entry| key(entry)).collect();
        for entry in unwanted.iter().filter(|entry| dead.contains(&key(entry))) {
            let with_result = !sight.world.is_anothers(entry);
            failures.extend(invoker.del_entry(entry, with_result).await.err());
        }
        if !own {
            return failures;
        }
        let mut valid = match sight.valid(&list.name) {
            Ok(valid) => valid,
            Err(why) => {
                log::warn!("network {}: its plugins were not asked to clean up: {why}", list.name);
                return failures;
            }
        };
        valid.retain(|of| !dead.contains(&(of.container_id.as_str(), of.ifname.as_str())));
        let ours = known.valid.iter();
        valid.extend(ours.map(|id| Attachment { container_id: id.clone(), ifname: INTERFACE.to_owned() }));
        valid.sort_by(|a, b| (&a.container_id, &a.ifname).cmp(&(&b.container_id, &b.ifname)));
        valid.dedup();
        failures.extend(invoker.gc_alone(list, Some(&valid)).await.err());
        failures
    }

    fn witnesses(&self) -> Witnesses {
        let options = &self.inner.options;
        let mut witnesses = Witnesses::new(options.invoker.cache().clone());
        witnesses.others = options.shared_caches.iter().map(Cache::new).collect();
        witnesses
            .data_dirs
            .extend(self.state().networks.iter().flat_map(|network| life::data_dirs(&network.list)));
        witnesses
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

fn key(entry: &Entry) -> (&str, &str) {
    (&entry.container_id, &entry.ifname)
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
        // Whose plugins are asked: all that the tests have.
        options.own_networks = ["a", "b", "pods"].map(str::to_owned).into();
        change(&mut options);
        NetworkPlugin::open(options).await
    }

    fn conflist(bench: &Bench, list: &NetworkList) {
        let dir = bench.path().join("net.d");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join(format!("{}.conflist", list.name)), list.document.to_string()).unwrap();
    }

    fn known(valid: &[&str]) -> Sandboxed {
        Sandboxed { valid: valid.iter().map(|&id| id.to_owned()).collect(), lost: Vec::new() }
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

    /// Writes results without addresses: one that any namespace of the machine has would speak for
    /// an entry.
    fn without_addresses(bench: &Bench) {
        for plugin in ["one", "two"] {
            bench.write(&format!("result-{plugin}"), r#"{"cniVersion":"1.1.0"}"#);
        }
    }

    #[tokio::test]
    async fn what_is_dead_goes_and_plugins_are_asked_in_own_networks_only() {
        let bench = Bench::new(&["one", "two"]);
        without_addresses(&bench);
        // One network is in the directory, the other one's file has gone.
        let (pods, old) = (named("pods", &["one"]), named("old", &["two"]));
        conflist(&bench, &pods);
        conflist(&bench, &named("foreign", &["two"]));
        for (list, id) in [(&pods, "ours"), (&pods, "gone"), (&old, "longgone")] {
            bench.invoker().add(list, &attach(id)).await.unwrap();
        }
        let lo = Attach::new("ours", "/run/netns/x", "lo");
        bench.invoker().add(&named("loopback", &["two"]), &lo).await.unwrap();
        let plugin = open(&bench, |_| {}).await;
        bench.calls();
        bench.write("count", "0");
        plugin.gc(&known(&["ours", "new"])).await.unwrap();
        assert_eq!(bench.calls(), ["DEL two", "DEL one", "GC one"], "old, pods");
        assert!(bench.env(0).contains("CNI_CONTAINERID=longgone\n"));
        assert!(bench.env(1).contains("CNI_CONTAINERID=gone\n"));
        let valid = json!([
            {"containerID": "new", "ifname": "eth0"},
            {"containerID": "ours", "ifname": "eth0"},
        ]);
        assert_eq!(bench.stdin(2)["cni.dev/valid-attachments"], valid);
        let left = plugin.cache().list().unwrap();
        let left: Vec<String> = left.iter().map(|of| format!("{} {}", of.container_id, of.ifname)).collect();
        assert_eq!(left, ["ours lo", "ours eth0"]);
    }

    /// In a cache that is shared, too, as with `--cache-dir /var/lib/cni`.
    #[tokio::test]
    async fn containers_of_other_runtimes_live_by_what_speaks_for_them() {
        let bench = Bench::new(&["one"]);
        without_addresses(&bench);
        let pods = named("pods", &["one"]);
        conflist(&bench, &pods);
        // A namespace that is there, with an interface in it.
        let ns = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            std::fs::File::open("/proc/thread-self/ns/net").unwrap()
        });
        let ns = ns.join().unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&ns);
        let path = format!("/proc/{}/fd/{fd}", std::process::id());
        let theirs = bench.path().join("theirs");
        let there = Attach::new("theirs", &path, "lo");
        bench.invoker().with_cache_dir(&theirs).add(&pods, &there).await.unwrap();
        let beside = Attach::new("beside", &path, "lo");
        bench.invoker().add(&pods, &beside).await.unwrap();
        // One of ours whose record was lost, with its namespace pinned.
        let lost = Attach::new("lost", &path, "lo");
        bench.invoker().add(&pods, &lost).await.unwrap();
        let plugin = open(&bench, |options| options.shared_caches = vec![theirs.clone()]).await;
        bench.calls();
        bench.write("count", "0");
        plugin.gc(&Sandboxed { valid: Vec::new(), lost: vec!["lost".to_owned()] }).await.unwrap();
        assert_eq!(bench.calls(), ["DEL one", "GC one"]);
        assert!(bench.env(0).contains("CNI_CONTAINERID=lost\n"));
        let valid = json!([
            {"containerID": "beside", "ifname": "lo"},
            {"containerID": "theirs", "ifname": "lo"},
        ]);
        assert_eq!(bench.stdin(1)["cni.dev/valid-attachments"], valid);
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
        let err = plugin.gc(&known(&[])).await.unwrap_err().to_string();
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
        let err = plugin.gc(&known(&[])).await.unwrap_err().to_string();
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
            async move { plugin.gc(&known(&[])).await }
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
        let none = known(&[]);
        let (cleaned, other) = tokio::join!(plugin.gc(&none), async {
            sleep(RETRY).await;
            tokio::time::timeout(LONG, plugin.tear_down(&pod("other"))).await
        });
        other.expect("held up").unwrap();
        let err = cleaned.unwrap_err();
        assert!(matches!(err, NetworkError::Busy { .. }), "{err}");
        assert_eq!(bench.calls(), ["DEL one"], "no GC");
        std::fs::remove_file(bench.path().join("closed")).unwrap();
        hanging.await.unwrap().unwrap();
        plugin.gc(&known(&[])).await.unwrap();
        assert_eq!(bench.calls(), ["GC one"]);
    }
}
