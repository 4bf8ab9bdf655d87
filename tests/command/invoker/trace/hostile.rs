//! A pod that tries to mislead or to flood whoever traces it. Its root may change everything in its namespace.

use cnimble_tests::need;
use serde_json::json;

use super::healthy::assert_answered;
use super::{FAR, Site, document, stations};

/// How long the output may be, in bytes.
const LONGEST: usize = 16_384;

#[test]
fn a_pod_full_of_objects_makes_no_long_output() {
    need!("ip", "nft", "tc", "nsenter");
    let site = Site::new();
    site.network("net", "br0", 1, &json!({}));
    let (web, _db) = (site.add("net", "web"), site.add("net", "db"));
    web.shell(
        "for i in $(seq 20000); do echo route add 172.16.$((i / 256)).$((i % 256)) dev eth0; done | ip -batch -
         for i in $(seq 300); do echo link add d$i type veth peer name p$i; echo address add 10.98.$((i / 200)).$((i % 200 + 1)) dev d$i
         done | ip -batch -
         tc qdisc add dev eth0 clsact
         for i in $(seq 2000); do
             echo filter add dev eth0 egress protocol ip pref $i u32 match ip dst 203.0.113.9/32 classid 1:1
         done | tc -batch -",
    );
    for (to, make) in [
        (FAR, "true"),
        ("db", "true"),
        (FAR, "ip route del default"),
        (FAR, "ip route add prohibit 192.0.2.0/24"),
    ] {
        web.shell(make);
        for (from, to) in [("web", to), ("db", "web")] {
            let traced = site.trace(&[from, to]);
            assert!(traced.stdout.len() < LONGEST, "{to}, {make}: {} bytes", traced.stdout.len());
            assert!(
                ["answered", "stopped"].iter().any(|of| document(&traced)["outcome"] == *of),
                "{}",
                traced.describe()
            );
        }
    }
    let down = stations(&site.trace(&["web", "198.51.100.1"]), "stops");
    assert!(down[0].contains("and 295 more are down"), "{down:?}");
}

/// Names and addresses of another pod, and those of the host, choose nothing outside of the pod.
#[test]
fn a_pod_with_names_of_others_is_traced_as_itself() {
    need!("ip", "nft");
    let site = Site::new();
    site.network("net", "br0", 1, &json!({}));
    let (web, db) = (site.add("net", "web"), site.add("net", "db"));
    let end = site.end(&db);
    // The pod has a link with the name and the alias of the other pod's end, and links with those of the host's.
    let alias = site.node.host.link(&end)["ifalias"].as_str().unwrap_or_default().to_owned();
    web.ip(&format!("link add {end} type veth peer name br0"));
    web.command("ip").args(["link", "set", &end, "alias", &alias, "up"]).status().unwrap();
    web.ip("link set br0 up");
    web.ip("address add 10.214.1.3/32 dev br0");
    web.ip("address add 10.7.0.2/32 dev br0");
    // It takes the other pod's packets for its own, and the fault is in the pod that lies.
    let traced = site.trace(&["db", "web"]);
    let stops = stations(&traced, "stops");
    assert!(stops.len() == 1 && stops[0].starts_with("out web address:"), "{}", traced.describe());
    let by_end = |text: &String| text.starts_with("out host port:") && text.contains(&end);
    assert!(stations(&traced, "ok").iter().any(by_end), "{}", traced.describe());
    // To the pod these are its own addresses now.
    for to in ["db", "10.7.0.2"] {
        let own = document(&site.trace(&["web", to, "--no-probe"]));
        let stations = own["stations"].as_array().unwrap();
        assert!(stations.iter().all(|of| of["place"] == "web"), "{own}");
    }
    assert_answered(&site.trace(&["web", FAR]));
}
