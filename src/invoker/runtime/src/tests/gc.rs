//! GC and STATUS.

use serde_json::json;

use cnimble_cni::{Attachment, Code};

use super::{Bench, attach, network};
use crate::Error;

fn valid(ids: &[&str]) -> Vec<Attachment> {
    ids.iter().map(|&id| Attachment { container_id: id.to_owned(), ifname: "eth0".to_owned() }).collect()
}

/// Three attachments of `net` and one of another network.
async fn three(version: &str) -> Bench {
    let bench = Bench::new(&["one", "two"]);
    let net = network(version, &["one", "two"]);
    for id in ["a", "b", "c"] {
        bench.invoker().add(&net, &attach(id).arg("K", id)).await.unwrap();
    }
    let mut other = net.clone();
    other.name = "other".to_owned();
    bench.invoker().add(&other, &attach("a")).await.unwrap();
    bench.calls();
    bench.write("count", "0");
    bench
}

#[tokio::test]
async fn what_is_not_valid_is_deleted_and_the_plugins_get_the_list() {
    let bench = three("1.1.0").await;
    let net = network("1.1.0", &["one", "two"]);
    bench.invoker().gc(&net, Some(&valid(&["b", "unknown"]))).await.unwrap();
    assert_eq!(bench.calls(), ["DEL two", "DEL one", "DEL two", "DEL one", "GC one", "GC two"]);
    assert!(bench.env(0).contains("CNI_CONTAINERID=a\n") && bench.env(0).contains("CNI_ARGS=K=a\n"));
    assert!(bench.env(2).contains("CNI_CONTAINERID=c\n"));
    let list = json!([
        {"containerID": "b", "ifname": "eth0"}, {"containerID": "unknown", "ifname": "eth0"},
    ]);
    assert_eq!(bench.stdin(4)["cni.dev/valid-attachments"], list);
    assert_eq!(bench.stdin(5)["cni.dev/attachments"], list);
    assert!(bench.env(4).contains("CNI_CONTAINERID=\n"));
    let left = bench.invoker().cache().list().unwrap();
    let left: Vec<String> = left.iter().map(|e| format!("{} {}", e.network, e.container_id)).collect();
    assert_eq!(left, ["net b", "other a"]);
}

#[tokio::test]
async fn no_list_is_not_an_empty_list() {
    let bench = three("1.1.0").await;
    let net = network("1.1.0", &["one", "two"]);
    bench.invoker().gc(&net, None).await.unwrap();
    assert_eq!(bench.calls(), ["GC one", "GC two"]);
    assert_eq!(bench.stdin(0).get("cni.dev/valid-attachments"), None);
    assert_eq!(bench.invoker().cache().list().unwrap().len(), 4);
    bench.invoker().gc(&net, Some(&[])).await.unwrap();
    assert_eq!(bench.calls().len(), 8);
    assert_eq!(bench.stdin(8)["cni.dev/valid-attachments"], json!([]));
    assert_eq!(bench.invoker().cache().list().unwrap().len(), 1);
}

#[tokio::test]
async fn below_1_1_0_only_the_cache_is_cleaned() {
    let bench = three("1.0.0").await;
    let net = network("1.0.0", &["one", "two"]);
    bench.invoker().gc(&net, Some(&valid(&["a", "b"]))).await.unwrap();
    assert_eq!(bench.calls(), ["DEL two", "DEL one"]);
    let mut off = net.clone();
    off.disable_gc = true;
    bench.invoker().gc(&off, Some(&[])).await.unwrap();
    assert_eq!(bench.calls(), [""; 0]);
}

#[tokio::test]
async fn gc_goes_on_past_failures_and_says_whose_they_are() {
    let bench = three("1.1.0").await;
    let net = network("1.1.0", &["one", "two"]);
    bench.fail("two", "DEL", 7);
    bench.fail("one", "GC", 8);
    // Somebody else's file in the directory is no reason to stop.
    std::fs::write(bench.path().join("cache/results/net-x-eth0"), "").unwrap();
    let err = bench.invoker().gc(&net, Some(&valid(&["b"]))).await.unwrap_err();
    assert_eq!(bench.calls().len(), 6);
    let Error::Plugins(failures) = &err else { panic!("{err:?}") };
    assert_eq!(failures.iter().count(), 3);
    assert!(
        err.to_string().starts_with("DEL of plugin two in network net for a eth0: two is sulking"),
        "{err}"
    );
}

#[tokio::test]
async fn status_is_the_first_plugins_that_fails() {
    let bench = Bench::new(&["one", "two"]);
    bench.fail("one", "STATUS", 50);
    let old = network("1.0.0", &["one", "two"]);
    bench.invoker().status(&old).await.unwrap();
    assert_eq!(bench.calls(), [""; 0]);
    let net = network("1.1.0", &["one", "two"]);
    let err = bench.invoker().status(&net).await.unwrap_err();
    assert_eq!(err.to_spec().code, Code::NOT_AVAILABLE);
    assert_eq!(bench.calls(), ["STATUS one"]);
    std::fs::remove_file(bench.path().join("fail-one-STATUS")).unwrap();
    bench.invoker().status(&net).await.unwrap();
    assert_eq!(bench.calls(), ["STATUS one", "STATUS two"]);
}
