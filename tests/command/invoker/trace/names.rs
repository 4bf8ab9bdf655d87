//! The names of pods and receivers on the command line.

use cnimble_tests::need;
use serde_json::json;

use super::{FAR, Site, document};

#[test]
fn a_pod_is_found_by_all_its_names() {
    need!("ip", "nft");
    let site = Site::new();
    site.network("net", "br0", 1, &json!({}));
    let pod = cnimble_tests::Pod::new();
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web";
    let line = ["add", "net", pod.path(), "--container-id", "abcdef", "--args", args];
    site.node.cnimble(cnimble_tests::plugin_dir(), &line).run().success();
    for name in ["shop/web", "abcdef", "abc", "10.214.1.2", "fd00:214:1::2", pod.path()] {
        let traced = site.trace(&[name, FAR, "--no-probe"]);
        assert_eq!(traced.status, 8, "{name}: {}", traced.describe());
        assert_eq!(document(&traced)["pod"], "shop/web", "{name}");
        assert_eq!(document(&traced)["from"], "10.214.1.2", "{name}");
    }
    for (pod, to, status) in [
        ("nobody", FAR, 2),
        ("abc", "nobody", 2),
        ("abc", "10.0.0.1:x", 2),
        ("abc", "10.0.0.1:80/dccp", 2),
        ("abc", "", 2),
    ] {
        let traced = site.trace(&[pod, to]);
        assert_eq!(traced.status, status, "{pod} {to}: {}", traced.describe());
    }
    // Two containers with the same beginning.
    let second = cnimble_tests::Pod::new();
    let line = ["add", "net", second.path(), "--container-id", "abcxyz"];
    site.node.cnimble(cnimble_tests::plugin_dir(), &line).run().success();
    let several = site.trace(&["abc", FAR]);
    assert_eq!(several.status, 2, "{}", several.describe());
    assert!(several.describe().contains("shop/web or abcxyz"), "{}", several.describe());
    // The text names the same stations.
    let text = site
        .node
        .cnimble(cnimble_tests::plugin_dir(), &["trace", "abcxyz", "gateway"])
        .run()
        .success()
        .text();
    assert!(text.starts_with("icmp from abcxyz (10.214.1.3) to 10.214.1.1\n"), "{text}");
    assert!(
        text.ends_with("the answer came back: an echo reply\n") && text.contains("the answer\n"),
        "{text}"
    );
}
