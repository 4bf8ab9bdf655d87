//! Tests the node's network as the server reports it, and pod addresses from a kubelet.

use std::fs;

use serde_json::json;

use cnimble_cri::{CriError, PodConfig};
use cnimble_tests::{PATIENCE, need, wait_until};

use super::{Shop, bridge, pod};

/// Returns whether NetworkReady holds, and its reason.
fn ready(shop: &Shop) -> (bool, String) {
    let status = shop.ok(|client| async move { client.status().await });
    let of = status.conditions.into_iter().find(|of| of.kind == "NetworkReady").unwrap();
    (of.holds, format!("{}: {}", of.reason, of.message))
}

#[test]
fn the_network_is_ready_only_if_it_is_there_and_its_plugins_say_so() {
    need!("ip", "python3");
    let shop = Shop::new(&bridge("10.7.0.0/24", &[json!({"type": "moody"})]));
    let bad = shop.path("bad").display().to_string();
    shop.plugin(
        "moody",
        &format!(
            r#"[ "$CNI_COMMAND" != STATUS ] || [ ! -e {bad} ] || {{ echo '{{"cniVersion":"1.1.0","code":50,"msg":"the fabric is away"}}'; exit 1; }}"#
        ),
    );
    let serve = shop.start();
    assert_eq!(ready(&shop), (true, ": ".to_owned()));
    fs::write(&bad, "").unwrap();
    assert!(wait_until(PATIENCE, || !ready(&shop).0), "{}", shop.log());
    let (_, why) = ready(&shop);
    assert!(why.starts_with("NetworkPluginNotReady: ") && why.contains("the fabric is away"), "{why}");
    let err = shop.ask(|client| async move { client.run(pod("early"), "").await }).unwrap_err();
    assert!(matches!(&err, CriError::Refused { code, .. } if code == "Unavailable"), "{err}");
    fs::remove_file(&bad).unwrap();
    assert!(wait_until(PATIENCE, || ready(&shop).0), "{}", shop.log());

    fs::remove_file(shop.path("net.d/10-pods.conflist")).unwrap();
    assert!(wait_until(PATIENCE, || !ready(&shop).0), "{}", shop.log());
    assert!(ready(&shop).1.contains("cni plugin not initialized"), "{:?}", ready(&shop));
    let cni = shop.ok(|client| async move { client.status().await }).cni.unwrap();
    assert!(cni.networks.is_empty(), "{cni:?}");
    let why = cni.load_error.expect("no network is loaded");
    assert!(why.contains("no CNI configuration file in"), "{why}");
    shop.is_clean();
    serve.stop();
}

#[test]
fn pods_get_addresses_of_the_subnet_that_the_kubelet_said_also_after_a_restart() {
    need!("ip");
    // A version without STATUS gets no capabilities, and so no ranges.
    let network = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [
        {"type": "bridge", "bridge": "br0", "capabilities": {"ipRanges": true}, "ipam": {"type": "host-local"}},
    ]});
    let shop = Shop::new(&network);
    let serve = shop.start();
    let bad = shop.ask(|client| async move { client.set_pod_cidr("10.9.8.0/40").await }).unwrap_err();
    assert!(bad.to_string().contains("is no subnet"), "{bad}");
    shop.ok(|client| async move { client.set_pod_cidr("10.9.8.0/24").await });
    // A kubelet sends an empty CIDR while it doesn't know it yet.
    shop.ok(|client| async move { client.set_pod_cidr("").await });
    let one = shop.run(pod("one"));
    assert!(one.ips[0].to_string().starts_with("10.9.8."), "{one:?}");
    serve.stop();
    let serve = shop.start();
    let two = shop.run(pod("two"));
    assert!(two.ips[0].to_string().starts_with("10.9.8."), "{two:?}");
    shop.clear();
    serve.stop();
}

#[test]
fn bandwidth_annotations_reach_the_plugins_and_bad_ones_are_refused() {
    need!("ip", "python3");
    let told = json!({"type": "told", "capabilities": {"bandwidth": true}});
    let shop = Shop::new(&bridge("10.7.0.0/24", &[told]));
    let file = shop.path("told").display().to_string();
    shop.plugin("told", &format!("[ \"$CNI_COMMAND\" = ADD ] || exit 0\ncat >{file}\nexec <{file}"));
    let serve = shop.start();
    let limited = |text: &str| PodConfig {
        annotations: [("kubernetes.io/ingress-bandwidth".to_owned(), text.to_owned())].into(),
        ..pod("slow")
    };
    let config = limited("10");
    let err = shop.ask(|client| async move { client.run(config, "").await }).unwrap_err();
    assert!(err.to_string().contains("unreasonably small"), "{err}");
    shop.is_clean();
    shop.run(limited("10M"));
    let told: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(told["runtimeConfig"]["bandwidth"]["ingressRate"], 10_000_000, "{told}");
    shop.clear();
    serve.stop();
}
