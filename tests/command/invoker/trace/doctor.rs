//! The doctor and `tree --check` look at the same stations.

use cnimble_tests::{need, plugin_dir};
use serde_json::{Value, json};

use super::Site;

#[test]
fn a_pod_that_reaches_no_gateway_is_not_well() {
    need!("ip", "nft");
    let site = Site::new();
    site.network("net", "br0", 1, &json!({}));
    let _pod = site.add("net", "web");
    let leases = site.node.host.data_dir();
    let doctor = |more: &[&str]| {
        let args = [&["doctor", "--data-dir", leases.to_str().unwrap()], more].concat();
        site.node.cnimble(plugin_dir(), &args).run()
    };
    let warnings = || -> Value {
        let document: Value = serde_json::from_slice(&doctor(&["--json"]).stdout).unwrap();
        document["warnings"].clone()
    };
    assert_eq!(warnings(), json!([]));
    assert!(doctor(&[]).text().ends_with("; the plugins' objects are whole\n"), "{}", doctor(&[]).describe());
    site.node.host.ip("route add blackhole 10.7.0.1/32");
    let told = warnings();
    let text = told[0].as_str().unwrap();
    assert!(text.starts_with("network net: no echo request from web reaches 10.7.0.1: route: "), "{told}");
    assert!(text.contains("blackhole 10.7.0.1/32 in table main"), "{told}");
    assert!(!doctor(&[]).text().contains("objects are whole"));
    let tree = site.node.cnimble(plugin_dir(), &["tree", "--check"]).env("LC_ALL", "C.UTF-8").run();
    assert_eq!(tree.status, 6, "{}", tree.describe());
    assert!(
        tree.text().contains("problem  no echo request from web reaches 10.7.0.1"),
        "{}",
        tree.describe()
    );
}
