//! ADD, CHECK and DEL of chains.

use serde_json::{Value, json};

use cnimble_cni::{Code, NetworkList};

use super::{Bench, attach, network};
use crate::{Error, Lookup, PluginError};

#[tokio::test]
async fn each_plugin_gets_the_result_before_its_own_and_its_capabilities() {
    let bench = Bench::new(&["one", "two"]);
    let net = NetworkList::from_value(json!({
        "cniVersion": "1.0.0", "name": "net", "plugins": [
            {"type": "one", "key": 1},
            {"type": "two", "capabilities": {"portMappings": true, "mac": false}},
        ],
    }))
    .unwrap();
    let attach = attach("c1")
        .arg("IgnoreUnknown", "1")
        .arg("K8S_POD_NAME", "p")
        .capability("portMappings", json!([{"hostPort": 1}]))
        .capability("mac", json!("02:00:00:00:00:01"));
    let added = bench.invoker().add(&net, &attach).await.unwrap();
    assert_eq!(bench.calls(), ["ADD one", "ADD two"]);
    assert_eq!(bench.stdin(0), json!({"type": "one", "key": 1, "name": "net", "cniVersion": "1.0.0"}));
    let second = bench.stdin(1);
    assert_eq!(second["runtimeConfig"], json!({"portMappings": [{"hostPort": 1}]}));
    // The plugin answered in 1.1.0; the next one speaks the network's 1.0.0.
    assert_eq!(second["prevResult"]["cniVersion"], "1.0.0");
    assert_eq!(second["prevResult"]["ips"][0]["address"], "10.0.0.2/24");
    assert_eq!(added.document["cniVersion"], "1.0.0");
    assert_eq!(added.result.ips[0].address.to_string(), "10.0.0.2/24");
    let path = bench.path().join("bin");
    assert_eq!(
        bench.env(0),
        format!(
            "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAME=p\nCNI_COMMAND=ADD\nCNI_CONTAINERID=c1\n\
             CNI_IFNAME=eth0\nCNI_NETNS=/run/netns/x\nCNI_PATH={}\n",
            path.display()
        )
    );
}

#[tokio::test]
async fn a_result_in_the_networks_version_passes_untouched() {
    let bench = Bench::new(&["one", "two"]);
    let net = network("1.1.0", &["one", "two"]);
    let added = bench.invoker().add(&net, &attach("c1")).await.unwrap();
    assert_eq!(bench.stdin(1)["prevResult"]["by"], "one");
    assert_eq!(added.document["by"], "two");
    bench.write("result-two", r#"{"ips":[{"address":"10.0.0.9/24"}]}"#);
    bench.invoker().del(&net, &attach("c1")).await.unwrap();
    let added = bench.invoker().add(&net, &attach("c1")).await.unwrap();
    assert_eq!(added.document["cniVersion"], "1.1.0", "a result without version has the network's");
}

#[tokio::test]
async fn unknown_keys_survive_the_round_trip_through_plugins_and_cache() {
    let bench = Bench::new(&["one"]);
    let text = json!({
        "cniVersion": "1.1.0", "name": "net", "vendor.list": [1],
        "plugins": [{"type": "one", "vendor.plugin": {"deep": null}}],
    });
    let net = NetworkList::from_value(text.clone()).unwrap();
    let answer = json!({"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.9/24", "vendor.ip": 2}], "vendor.result": 3});
    bench.write("result-one", &answer.to_string());
    let invoker = bench.invoker();
    assert_eq!(invoker.add(&net, &attach("c1")).await.unwrap().document, answer);
    assert_eq!(bench.stdin(0)["vendor.plugin"], json!({"deep": null}));
    let entry = invoker.cache().list().unwrap().pop().unwrap();
    assert_eq!(entry.network_list().unwrap().document, text);
    assert_eq!(entry.cni_result().unwrap().unwrap().ips[0].address.to_string(), "10.0.0.9/24");
    invoker.del(&net, &attach("c1")).await.unwrap();
    assert_eq!(bench.stdin(1)["prevResult"], answer);
}

#[tokio::test]
async fn a_failed_add_is_rolled_back_in_reverse() {
    let bench = Bench::new(&["one", "two", "three"]);
    bench.fail("two", "ADD", 42);
    bench.fail("one", "DEL", 43);
    let net = network("1.0.0", &["one", "two", "three"]);
    let err = bench.invoker().add(&net, &attach("c1")).await.unwrap_err();
    assert_eq!(bench.calls(), ["ADD one", "ADD two", "DEL two", "DEL one"]);
    assert_eq!(bench.stdin(2)["prevResult"]["ips"][0]["address"], "10.0.0.2/24");
    let Error::Plugins(failures) = &err else { panic!("{err:?}") };
    assert_eq!(failures.first.plugin, "two");
    assert_eq!(failures.others.len(), 1);
    assert_eq!(
        err.to_string(),
        "ADD of plugin two in network net: two is sulking (code 42); \
         then DEL of plugin one in network net: one is sulking (code 43)"
    );
    let spec = err.to_spec();
    assert_eq!(spec.code, Code(42));
    assert_eq!(spec.msg, "ADD of plugin two in network net: two is sulking");
    assert!(spec.details.contains("DEL of plugin one"), "{spec}");
    assert_eq!(bench.invoker().cache().list().unwrap(), [], "a failed ADD is in no cache");
}

#[tokio::test]
async fn what_cannot_have_left_anything_gets_no_del() {
    let bench = Bench::new(&["one", "two"]);
    let net = network("1.0.0", &["one", "two"]);
    // Something is in its way: perhaps this very container, added through another cache.
    bench.fail("two", "ADD", Code::CONFLICT.0);
    bench.invoker().add(&net, &attach("c1")).await.unwrap_err();
    assert_eq!(bench.calls(), ["ADD one", "ADD two", "DEL one"]);
    // Never started.
    bench.plugin("two", "#!/nonexistent/interpreter\n");
    let err = bench.invoker().add(&net, &attach("c1")).await.unwrap_err();
    assert_eq!(bench.calls(), ["ADD one", "DEL one"]);
    assert!(err.to_string().contains("bin/two: can't be executed: "), "{err}");
}

#[tokio::test]
async fn an_attachment_that_exists_is_not_rolled_back() {
    let bench = Bench::new(&["one"]);
    let net = network("1.0.0", &["one"]);
    bench.invoker().add(&net, &attach("c1")).await.unwrap();
    bench.fail("one", "ADD", 999);
    let err = bench.invoker().add(&net, &attach("c1")).await.unwrap_err();
    assert_eq!(bench.calls(), ["ADD one", "ADD one"]);
    assert!(err.to_string().contains("DEL it before it is added again"), "{err}");
}

#[tokio::test]
async fn nothing_is_run_if_a_plugin_is_missing() {
    let bench = Bench::new(&["one"]);
    let net = network("1.0.0", &["one", "gone", "../one"]);
    let err = bench.invoker().add(&net, &attach("c1")).await.unwrap_err();
    assert_eq!(bench.calls(), [""; 0]);
    let Error::Plugins(failures) = &err else { panic!("{err:?}") };
    assert!(matches!(failures.first.cause, PluginError::Missing { .. }));
    assert!(matches!(failures.others[0].cause, PluginError::BadName { .. }));
}

#[tokio::test]
async fn a_result_that_makes_no_sense_is_a_failure_and_rolled_back() {
    let bench = Bench::new(&["one"]);
    let net = network("1.0.0", &["one"]);
    for (output, what) in [
        ("", "it is not JSON"),
        ("Segmentation fault\n", "stdout began \"Segmentation fault\""),
        (r#"{"cniVersion":"9.9.9"}"#, "9.9.9"),
        (r#"{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.300/24"}]}"#, "ips[0].address"),
    ] {
        bench.write("result-one", output);
        let err = bench.invoker().add(&net, &attach("c1")).await.unwrap_err().to_string();
        assert!(err.contains(what) && err.contains("bin/one: succeeded, but"), "{output}: {err}");
        assert_eq!(bench.calls(), ["ADD one", "DEL one"]);
    }
}

#[tokio::test]
async fn a_result_that_cannot_be_recorded_is_rolled_back() {
    let bench = Bench::new(&["one"]);
    bench.write("cache", "a file where a directory should be");
    let net = network("1.0.0", &["one"]);
    let err = bench.invoker().add(&net, &attach("c1")).await.unwrap_err();
    assert!(matches!(err, Error::Cache { .. }), "{err}");
    assert_eq!(bench.calls(), ["ADD one", "DEL one"]);
}

#[tokio::test]
async fn an_attachment_that_exists_is_not_rolled_back_if_it_cannot_be_recorded_again() {
    let bench = Bench::new(&["one"]);
    let net = network("1.0.0", &["one"]);
    bench.invoker().add(&net, &attach("c1")).await.unwrap();
    let dir = bench.path().display().to_string();
    bench.plugin(
        "one",
        &format!(
            "#!/bin/sh\n[ $CNI_COMMAND = ADD ] || touch {dir}/deleted\n\
             rm -rf {dir}/cache/results; echo > {dir}/cache/results\n\
             echo '{{\"cniVersion\":\"1.0.0\"}}'\n"
        ),
    );
    let err = bench.invoker().add(&net, &attach("c1")).await.unwrap_err();
    assert!(matches!(err, Error::Cache { .. }), "{err}");
    assert!(!bench.path().join("deleted").exists(), "a living pod would lose its network");
}

#[tokio::test]
async fn del_goes_on_past_failures_and_keeps_the_entry_until_it_succeeds() {
    let bench = Bench::new(&["one", "two", "three"]);
    let net = network("1.0.0", &["one", "two", "three"]);
    bench.invoker().add(&net, &attach("c1")).await.unwrap();
    bench.calls();
    bench.fail("two", "DEL", 1);
    bench.fail("three", "DEL", 2);
    let err = bench.invoker().del(&net, &attach("c1")).await.unwrap_err();
    assert_eq!(bench.calls(), ["DEL three", "DEL two", "DEL one"]);
    assert!(err.to_string().contains("three is sulking (code 2); then DEL of plugin two"), "{err}");
    assert_eq!(bench.invoker().cache().list().unwrap().len(), 1);
    std::fs::remove_file(bench.path().join("fail-two-DEL")).unwrap();
    std::fs::remove_file(bench.path().join("fail-three-DEL")).unwrap();
    bench.invoker().del(&net, &attach("c1")).await.unwrap();
    // The result of ADD is there for the second try, too.
    assert_eq!(bench.stdin(6)["prevResult"]["ips"][0]["address"], "10.0.0.2/24");
    assert_eq!(bench.invoker().cache().list().unwrap(), []);
    // And once more, with nothing left: plugins are asked without a result.
    bench.invoker().del(&net, &attach("c1")).await.unwrap();
    assert_eq!(bench.stdin(9).get("prevResult"), None);
}

#[tokio::test]
async fn before_0_4_0_del_gets_no_result_and_there_is_no_check() {
    let bench = Bench::new(&["one"]);
    let net = network("0.3.1", &["one"]);
    bench.invoker().add(&net, &attach("c1")).await.unwrap();
    let err = bench.invoker().check(&net, &attach("c1")).await.unwrap_err();
    assert!(matches!(err, Error::Unsupported { .. }), "{err}");
    bench.invoker().del(&net, &attach("c1")).await.unwrap();
    assert_eq!(bench.calls(), ["ADD one", "DEL one"]);
    assert_eq!(bench.stdin(1).get("prevResult"), None);
    assert_eq!(bench.invoker().cache().list().unwrap(), [], "libcni leaves this entry");
}

#[tokio::test]
async fn check_stops_at_the_first_failure() {
    let bench = Bench::new(&["one", "two"]);
    let net = network("0.4.0", &["one", "two"]);
    let err = bench.invoker().check(&net, &attach("c1")).await.unwrap_err();
    assert!(matches!(err, Error::NoResult { .. }), "{err}");
    bench.invoker().add(&net, &attach("c1")).await.unwrap();
    bench.invoker().check(&net, &attach("c1")).await.unwrap();
    bench.fail("one", "CHECK", 103);
    let err = bench.invoker().check(&net, &attach("c1")).await.unwrap_err();
    assert_eq!(err.to_spec().code, Code(103));
    assert_eq!(bench.calls()[2..], ["CHECK one", "CHECK two", "CHECK one"]);
    assert_eq!(bench.stdin(2)["prevResult"]["cniVersion"], "0.4.0");
    let mut quiet = net.document.clone();
    quiet["disableCheck"] = json!(true);
    let quiet = NetworkList::from_value(quiet).unwrap();
    bench.invoker().add(&quiet, &attach("c2")).await.unwrap();
    bench.calls();
    bench.invoker().check(&quiet, &attach("c2")).await.unwrap();
    assert_eq!(bench.calls(), [""; 0]);
}

/// The record has lost its result only. A DEL that fails is repeated with the plugins of the record.
#[tokio::test]
async fn a_record_without_a_result_counts_until_its_del_succeeds() {
    let bench = Bench::new(&["one", "two"]);
    bench.invoker().add(&network("1.0.0", &["one", "two"]), &attach("c1")).await.unwrap();
    let path = bench.path().join("cache/results/net-c1-eth0");
    let mut entry: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    entry.as_object_mut().unwrap().remove("result").unwrap();
    std::fs::write(&path, entry.to_string()).unwrap();
    bench.calls();
    // The file names one plugin less by now.
    let net = network("1.0.0", &["one"]);
    bench.fail("two", "DEL", 1);
    bench.invoker().del(&net, &attach("c1")).await.unwrap_err();
    assert_eq!(bench.calls(), ["DEL two", "DEL one"]);
    std::fs::remove_file(bench.path().join("fail-two-DEL")).unwrap();
    bench.invoker().del(&net, &attach("c1")).await.unwrap();
    assert_eq!(bench.calls(), ["DEL two", "DEL one"]);
    assert!(!path.exists() && !path.with_file_name(".corrupt-net-c1-eth0").exists());
}

#[tokio::test]
async fn a_corrupt_entry_blocks_nothing() {
    let bench = Bench::new(&["one"]);
    let net = network("1.0.0", &["one"]);
    let entry = bench.path().join("cache/results/net-c1-eth0");
    for text in [
        "",
        "{",
        r#"{"kind":"other"}"#,
        r#"{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","networkName":"net"}"#,
    ] {
        std::fs::create_dir_all(entry.parent().unwrap()).unwrap();
        std::fs::write(&entry, text).unwrap();
        let err = bench.invoker().check(&net, &attach("c1")).await.unwrap_err().to_string();
        assert!(err.contains("is corrupt") && err.contains("DEL and ADD it again"), "{text}: {err}");
        bench.invoker().del(&net, &attach("c1")).await.unwrap();
        assert!(!entry.exists());
        let aside = entry.with_file_name(".corrupt-net-c1-eth0");
        assert_eq!(std::fs::read_to_string(aside).unwrap(), text);
    }
    let key = attach("c1");
    assert_eq!(bench.invoker().cache().get(key.key("net")).unwrap(), Lookup::Nothing);
}

#[tokio::test]
async fn names_that_lead_elsewhere_are_refused_before_anything_runs() {
    let bench = Bench::new(&["one"]);
    let net = network("1.0.0", &["one"]);
    let with = |id: &str, ifname: &str| {
        let mut attach = attach(id);
        attach.ifname = ifname.to_owned();
        attach
    };
    for bad in [
        with("../x", "eth0"),
        with("", "eth0"),
        with("c", "a/b"),
        with("c", ""),
        with("c", "0123456789abcdef"),
        with("c", "eth0").arg("A", "1;B=2"),
        with("c", "eth0").arg("", "x"),
    ] {
        for outcome in [
            bench.invoker().add(&net, &bad).await.map(drop),
            bench.invoker().check(&net, &bad).await,
            bench.invoker().del(&net, &bad).await,
        ] {
            let err = outcome.unwrap_err();
            assert_eq!(err.to_spec().code, Code::INVALID_ENVIRONMENT, "{bad:?}: {err}");
        }
    }
    assert_eq!(bench.calls(), [""; 0]);
}

#[tokio::test]
async fn del_from_the_cache_alone() {
    let bench = Bench::new(&["one", "two"]);
    let net = NetworkList::from_value(json!({
        "cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "one", "capabilities": {"ips": true}}],
    }));
    // A plugin of the network's folder is in the cache, too.
    let mut net = net.unwrap();
    net.push(cnimble_cni::list::ListEntry::parse(br#"{"type":"two"}"#).unwrap());
    let attach = attach("c1").arg("A", "b").capability("ips", json!(["10.0.0.7"]));
    bench.invoker().add(&net, &attach).await.unwrap();
    bench.calls();
    assert!(bench.invoker().del_recorded(attach.key("net")).await.unwrap());
    assert_eq!(bench.calls(), ["DEL two", "DEL one"]);
    let env = bench.env(3);
    assert!(env.contains("CNI_ARGS=A=b\n") && env.contains("CNI_NETNS=/run/netns/x\n"), "{env}");
    assert_eq!(bench.stdin(3)["runtimeConfig"], json!({"ips": ["10.0.0.7"]}));
    assert!(!bench.invoker().del_recorded(attach.key("net")).await.unwrap());
}

/// So that a runtime can spawn them.
#[test]
fn futures_may_move_between_threads() {
    fn assert_send<T: Send>(_: T) {}
    let (invoker, net, attach) = (Bench::new(&[]).invoker(), network("1.0.0", &["one"]), attach("c"));
    assert_send(invoker.add(&net, &attach));
    assert_send(invoker.check(&net, &attach));
    assert_send(invoker.del(&net, &attach));
    assert_send(invoker.gc(&net, None));
    assert_send(invoker.status(&net));
    assert_send(invoker.validate(&net));
}

#[tokio::test]
async fn validate_names_every_problem() {
    let bench = Bench::new(&["one"]);
    bench.plugin("old", "#!/bin/sh\necho '{\"cniVersion\":\"0.2.0\"}'\n");
    let net = NetworkList::from_value(json!({
        "cniVersion": "1.0.0", "name": "net", "plugins": [
            {"type": "one", "capabilities": {"ips": true, "aliases": true}}, {"type": "old"}, {"type": "gone"},
            {"type": "one", "ipam": {"type": "no-ipam"}, "capabilities": {"ips": true}},
        ],
    }))
    .unwrap();
    let err = bench.invoker().validate(&net).await.unwrap_err().to_string();
    for what in ["supports CNI versions 0.1.0, 0.2.0, but the network is 1.0.0", "\"gone\"", "\"no-ipam\""] {
        assert!(err.contains(what), "{what}: {err}");
    }
    let mut good = net.clone();
    good.plugins.truncate(1);
    assert_eq!(bench.invoker().validate(&good).await.unwrap(), ["aliases", "ips"]);
}
