//! The record of ADD decides, and not a file that has changed since.

use serde_json::{Value, json};

use cnimble_cni::list::ListEntry;
use cnimble_cni::{Attachment, NetworkList};

use super::{Bench, attach, network};
use crate::{Attach, Entry, Error};

/// A network `net` of these plugins, each with the value of `key`.
fn keyed(version: &str, plugins: &[&str], key: &str) -> NetworkList {
    let plugins: Vec<Value> = plugins.iter().map(|name| json!({"type": name, "key": key})).collect();
    NetworkList::from_value(json!({"cniVersion": version, "name": "net", "plugins": plugins})).unwrap()
}

/// A bench with one attachment, `c1`, and no calls noted yet.
async fn added(network: &NetworkList) -> Bench {
    let bench = Bench::new(&["one", "two", "three"]);
    bench.invoker().add(network, &attach("c1")).await.unwrap();
    bench.calls();
    bench.write("count", "0");
    bench
}

#[tokio::test]
async fn del_goes_by_the_record_however_the_file_has_changed() {
    let then = keyed("1.0.0", &["one", "two"], "then");
    for now in [
        then.clone(),
        keyed("1.0.0", &["one"], "then"),
        keyed("1.0.0", &["one", "two", "three"], "then"),
        keyed("1.0.0", &["three"], "then"),
        keyed("1.0.0", &["one", "missing"], "then"),
        keyed("1.0.0", &["one", "two"], "now"),
        keyed("0.3.1", &["one", "two"], "then"),
    ] {
        let bench = added(&then).await;
        bench.invoker().del(&now, &attach("c1")).await.unwrap();
        assert_eq!(bench.calls(), ["DEL two", "DEL one"], "{now:?}");
        for call in [0, 1] {
            let stdin = bench.stdin(call);
            assert_eq!((&stdin["key"], &stdin["cniVersion"]), (&json!("then"), &json!("1.0.0")), "{now:?}");
            assert_eq!(stdin["prevResult"]["ips"][0]["address"], "10.0.0.2/24", "{now:?}");
        }
        assert_eq!(bench.invoker().cache().list().unwrap(), [], "{now:?}");
        // There is no record any more: the file counts.
        if !now.plugins.iter().any(|plugin| plugin.plugin_type == "missing") {
            bench.invoker().del(&now, &attach("c1")).await.unwrap();
            let calls = now.plugins.iter().rev().map(|plugin| format!("DEL {}", plugin.plugin_type));
            assert_eq!(bench.calls(), calls.collect::<Vec<_>>());
        }
    }
}

#[tokio::test]
async fn check_goes_by_the_record() {
    let then = keyed("1.0.0", &["one", "two"], "then");
    let bench = added(&then).await;
    let mut now = keyed("0.3.1", &["three"], "now");
    now.disable_check = true;
    bench.invoker().check(&now, &attach("c1")).await.unwrap();
    assert_eq!(bench.calls(), ["CHECK one", "CHECK two"]);
    assert_eq!(bench.stdin(0)["key"], "then");
    let by_file = bench.invoker().with_given_configuration();
    assert!(matches!(by_file.check(&now, &attach("c1")).await, Err(Error::Unsupported { .. })));
}

#[tokio::test]
async fn del_goes_by_the_file_if_it_is_told_to() {
    let bench = added(&network("1.0.0", &["one", "two"])).await;
    std::fs::remove_file(bench.path().join("bin/two")).unwrap();
    let now = network("1.0.0", &["one"]);
    let err = bench.invoker().del(&now, &attach("c1")).await.unwrap_err().to_string();
    assert!(err.contains("no plugin \"two\""), "{err}");
    assert_eq!(
        (bench.calls(), bench.invoker().cache().list().unwrap().len()),
        (vec!["DEL one".to_owned()], 1)
    );
    bench.invoker().with_given_configuration().del(&now, &attach("c1")).await.unwrap();
    assert_eq!(bench.calls(), ["DEL one"]);
    assert_eq!(bench.stdin(1)["prevResult"]["ips"][0]["address"], "10.0.0.2/24");
    assert_eq!(bench.invoker().cache().list().unwrap(), []);
}

/// libcni before 0.8 kept the bare result. Later ones may be of a caller that gave no configuration.
#[tokio::test]
async fn the_file_counts_for_a_record_without_configuration() {
    let bare = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.9/24"}]});
    let named = json!({"kind": "cniCacheV1", "containerId": "c1", "ifName": "eth0", "networkName": "net", "result": bare});
    for record in [bare, named] {
        let bench = Bench::new(&["one"]);
        std::fs::create_dir_all(bench.path().join("cache/results")).unwrap();
        bench.write("cache/results/net-c1-eth0", &record.to_string());
        let net = network("1.0.0", &["one"]);
        bench.invoker().check(&net, &attach("c1")).await.unwrap();
        bench.invoker().del(&net, &attach("c1")).await.unwrap();
        assert_eq!(bench.calls(), ["CHECK one", "DEL one"]);
        assert_eq!(bench.stdin(1)["prevResult"]["ips"][0]["address"], "10.0.0.9/24");
        assert!(!bench.path().join("cache/results/net-c1-eth0").exists());
    }
}

/// libcni records the text of the file, in which the folder's plugins don't stand.
#[tokio::test]
async fn plugins_of_a_folder_belong_to_a_record_of_libcni() {
    let inlined = network("1.0.0", &["one"]);
    let bench = added(&inlined).await;
    let mut with_folder = inlined.clone();
    with_folder.push(ListEntry::parse(br#"{"type":"two"}"#).unwrap());
    bench.invoker().del(&with_folder, &attach("c1")).await.unwrap();
    assert_eq!(bench.calls(), ["DEL two", "DEL one"]);
    // Ours has them.
    bench.invoker().add(&with_folder, &attach("c1")).await.unwrap();
    bench.calls();
    let mut now = inlined.clone();
    now.push(ListEntry::parse(br#"{"type":"three"}"#).unwrap());
    bench.invoker().del(&now, &attach("c1")).await.unwrap();
    assert_eq!(bench.calls(), ["DEL two", "DEL one"]);
}

#[tokio::test]
async fn gc_asks_the_plugins_of_the_file_and_of_records() {
    let then = keyed("1.1.0", &["one", "two"], "then");
    let bench = added(&then).await;
    bench.invoker().add(&then, &attach("c2")).await.unwrap();
    let now = NetworkList::from_value(json!({"cniVersion": "1.1.0", "name": "net", "plugins": [
        {"type": "one", "key": "then"}, {"type": "two", "key": "now"}, {"type": "three"},
    ]}));
    let now = now.unwrap();
    bench.calls();
    bench.write("count", "0");
    let valid = [Attachment { container_id: "c2".to_owned(), ifname: "eth0".to_owned() }];
    bench.invoker().gc(&now, Some(&valid)).await.unwrap();
    assert_eq!(bench.calls(), ["DEL two", "DEL one", "GC one", "GC two", "GC three", "GC two"]);
    let keys = [0, 1, 2, 3, 5].map(|call| bench.stdin(call)["key"].clone());
    assert_eq!(keys, ["then", "then", "then", "now", "then"]);
    assert_eq!(bench.stdin(5)["cni.dev/valid-attachments"], json!([{"containerID": "c2", "ifname": "eth0"}]));
    // A plugin that isn't there any more keeps no other from its work.
    std::fs::remove_file(bench.path().join("bin/two")).unwrap();
    let now = keyed("1.1.0", &["one"], "then");
    bench.invoker().gc(&now, Some(&valid)).await.unwrap();
    assert_eq!(bench.calls(), ["GC one"]);
    // The DEL of a dead attachment needs it.
    let err = bench.invoker().gc(&now, Some(&[])).await.unwrap_err().to_string();
    assert!(err.contains("no plugin \"two\""), "{err}");
    bench.invoker().with_given_configuration().gc(&now, Some(&[])).await.unwrap();
    assert_eq!(bench.invoker().cache().list().unwrap(), []);
}

#[tokio::test]
async fn null_is_an_empty_result_as_in_libcni() {
    for version in ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let bench = Bench::new(&["one", "two"]);
        bench.write("result-one", "null");
        bench.write("result-two", " null\n");
        let net = network(version, &["one", "two"]);
        let added = bench.invoker().add(&net, &attach("c1")).await.unwrap();
        let empty = json!({"cniVersion": version});
        assert_eq!((&bench.stdin(1)["prevResult"], &added.document), (&empty, &empty));
        if version != "0.3.1" {
            bench.invoker().check(&net, &attach("c1")).await.unwrap();
        }
        bench.invoker().del(&net, &attach("c1")).await.unwrap();
        assert_eq!(bench.invoker().cache().list().unwrap(), []);
    }
}

#[tokio::test]
async fn each_call_has_its_own_environment() {
    let bench = Bench::new(&[]);
    bench.plugin(
        "one",
        "#!/bin/sh\ncat >/dev/null; env >\"${0%/*}/../env.$CNI_COMMAND\"\necho '{\"cniVersion\":\"1.0.0\"}'\n",
    );
    let net = network("1.0.0", &["one"]);
    let env = |verb: &str| std::fs::read_to_string(bench.path().join(format!("env.{verb}"))).unwrap();
    let traced =
        |parent: &str| attach("c1").env("TRACEPARENT", parent).env("BAGGAGE", "a=b").env("HOME", "/x");
    bench.invoker().add(&net, &traced("00-1")).await.unwrap();
    bench.invoker().check(&net, &traced("00-2")).await.unwrap();
    bench.invoker().del(&net, &attach("c1")).await.unwrap();
    for line in ["TRACEPARENT=00-1\n", "BAGGAGE=a=b\n", "HOME=/x\n", "CNI_COMMAND=ADD\n", "PATH="] {
        assert!(env("ADD").contains(line), "{line}: {}", env("ADD"));
    }
    assert!(env("CHECK").contains("TRACEPARENT=00-2\n"));
    assert!(!env("DEL").contains("TRACEPARENT"), "the record does not keep it");
    for key in ["CNI_COMMAND", "", "A=B", "A\0"] {
        let refused: Attach = attach("c1").env(key, "x");
        let err = bench.invoker().add(&net, &refused).await.unwrap_err().to_string();
        assert!(err.contains("invalid variable"), "{key}: {err}");
    }
}

/// The caller may record an attachment before its ADD, so that nothing is lost if it is killed.
#[tokio::test]
async fn a_record_without_a_result_is_of_an_add_that_did_not_end() {
    let list = network("1.0.0", &["one", "two"]);
    let bench = Bench::new(&["one", "two"]);
    let begun = || {
        let entry = Entry::before_add(&list, &attach("c1"));
        bench.invoker().cache().put(&entry).unwrap();
    };
    begun();
    let err = bench.invoker().check(&list, &attach("c1")).await.unwrap_err().to_string();
    assert!(err.contains("did not end") && !err.contains("corrupt"), "{err}");
    // A failed ADD is undone as if there were no record.
    bench.fail("two", "ADD", 7);
    let err = bench.invoker().add(&list, &attach("c1")).await.unwrap_err().to_string();
    assert!(!err.contains("not rolled back"), "{err}");
    assert_eq!(bench.calls(), ["ADD one", "ADD two", "DEL two", "DEL one"]);
    // DEL goes by it, and removes it.
    let key = attach("c1");
    assert!(bench.invoker().del_recorded(key.key("net")).await.unwrap());
    assert_eq!(std::fs::read_dir(bench.invoker().cache().dir().join("results")).unwrap().count(), 0);
}
