//! Clean-up with plugins that are scripts.

use std::time::Duration;

use serde_json::json;

use cnimble_runtime::Attach;
use cnimble_runtime::testing::{Bench, attach, network};

use super::*;
use crate::PodId;
use crate::network::{NetworkOptions, PodNetwork};

/// More than anything takes on a busy machine, and less than an operation's limit.
const LONG: Duration = Duration::from_secs(100);

/// Hangs as long as the file `closed` is there.
const HANGS: &str = r#"#!/bin/sh
dir=${0%/*}/..
cat >/dev/null
[ "$CNI_COMMAND" != VERSION ] || { echo '{"cniVersion":"1.1.0","supportedVersions":["1.1.0"]}'; exit 0; }
touch "$dir/reached"
while [ -e "$dir/closed" ]; do sleep 0.02; done
"#;

async fn open(bench: &Bench, change: impl FnOnce(&mut NetworkOptions)) -> NetworkPlugin {
    let mut options = NetworkOptions::new(bench.path().join("net.d"), bench.invoker());
    options.shared_caches = Vec::new();
    // Plugins of all these networks are asked.
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

/// Writes results without addresses: any namespace with the address would speak for an entry.
fn without_addresses(bench: &Bench) {
    for plugin in ["one", "two"] {
        bench.write(&format!("result-{plugin}"), r#"{"cniVersion":"1.1.0"}"#);
    }
}

#[tokio::test]
async fn what_is_dead_goes_and_plugins_are_asked_in_own_networks_only() {
    let bench = Bench::new(&["one", "two"]);
    without_addresses(&bench);
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

/// In a shared cache, too, as with `--cache-dir /var/lib/cni`.
#[tokio::test]
async fn containers_of_other_runtimes_live_by_what_speaks_for_them() {
    let bench = Bench::new(&["one"]);
    without_addresses(&bench);
    let pods = named("pods", &["one"]);
    conflist(&bench, &pods);
    // A present namespace with an interface.
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
    // One of ours with a lost record and a pinned namespace.
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
    let plugin = open(&bench, |options| options.gc_limit = Duration::from_secs(10)).await;
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
