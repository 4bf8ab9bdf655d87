//! Tests the options of `cnimble node` on nodes with pods.

use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;

use serde_json::{Value, json};

use cnimble_tests::http::ApiServer;
use cnimble_tests::{LIMIT, Ns, PATIENCE, need, run_limited, wait_until};

use super::members::{Member, Site, object};

/// A template with all variables, as in containerd's documentation.
const TEMPLATE: &str = r#"{
  "cniVersion": "1.0.0", "name": "cnimble",
  "plugins": [
    {"type": "bridge", "bridge": "br-{{.PodCIDR}}", "isGateway": true, "ipam": {"type": "host-local",
      "ranges": [{{range $i, $range := .PodCIDRRanges}}{{if $i}}, {{end}}[{"subnet": "{{$range}}"}]{{end}}],
      "routes": [{{range $i, $route := .Routes}}{{if $i}}, {{end}}{"dst": "{{$route}}"}{{end}}]}}
  ]
}"#;

impl Member {
    /// Waits until the network's file contains the word, and returns the file.
    pub(super) fn file_with(&self, word: &str) -> Value {
        let text = || std::fs::read_to_string(self.conflist()).unwrap_or_default();
        assert!(wait_until(PATIENCE, || text().contains(word)), "{word}: {}\n{}", text(), self.log());
        serde_json::from_str(&text()).unwrap()
    }

    /// Runs `cnimble node --once --json` with these options. Returns exit status, output and stderr.
    fn once(&self, options: &str) -> (i32, Value, String) {
        let output = run_limited(&mut self.node(&format!("--once --json {options}")), b"", LIMIT);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code().unwrap(), serde_json::from_slice(&output.stdout).unwrap_or_default(), errors)
    }
}

#[test]
fn a_template_gets_each_variable_and_a_bad_one_changes_nothing() {
    need!("ip", "nft");
    let mut site = Site::new(2);
    site.settled();
    let node = &mut site.members[0];
    node.agent = None;
    let template = node.host.dir().join("template");
    std::fs::write(&template, TEMPLATE).unwrap();
    node.start(&format!("--template {}", template.display()));
    let file = node.file_with("br-10.1.1.0/24");
    let ipam = &file["plugins"][0]["ipam"];
    assert_eq!(ipam["ranges"], json!([[{"subnet": "10.1.1.0/24"}], [{"subnet": "fd00:1:1::/64"}]]));
    assert_eq!(ipam["routes"], json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]));
    // The template is read at each look.
    std::fs::write(&template, TEMPLATE.replace("br-{{.PodCIDR}}", "br9")).unwrap();
    site.api.put(object(9));
    site.members[0].file_with("\"br9\"");
    for (bad, why) in [("{{.Nothing}}", ".PodCIDR"), ("{", "no JSON"), ("{}", "no plugins")] {
        std::fs::write(&template, bad).unwrap();
        site.api.delete("default/node9");
        let told =
            || site.members[0].get("/healthz").is_some_and(|(code, text)| code == 503 && text.contains(why));
        assert!(wait_until(PATIENCE, told), "{why}: {}", site.members[0].log());
        site.members[0].file_with("\"br9\"");
        site.api.put(object(9));
    }
}

#[test]
fn pods_of_two_nodes_reach_each_other_by_ptp() {
    need!("ip", "nft");
    let mut site = Site::with(2, "--plugin ptp");
    site.settled();
    assert_eq!(site.members[0].file_with("ptp")["plugins"][0]["type"], "ptp");
    site.add_pods();
    site.all_reach_all();
}

#[test]
fn the_file_goes_with_the_node_if_it_is_to_and_comes_back_with_it() {
    need!("ip", "nft");
    let site = Site::with(2, "--remove-on-delete");
    site.settled();
    let node = &site.members[0];
    site.api.delete("default/node1");
    assert!(wait_until(PATIENCE, || !node.conflist().exists()), "{}", node.log());
    assert!(site.members[1].conflist().exists());
    site.api.put(object(1));
    site.settled();
}

#[test]
fn once_writes_what_is_missing_then_nothing_and_tells_by_its_status() {
    need!("ip", "nft");
    let mut site = Site::new(3);
    site.settled();
    let node = &mut site.members[0];
    node.agent = None;
    let dir = node.host.dir().display();
    node.run(&format!("node --remove --conf-dir {dir}/net.d")).success();
    let (status, said, errors) = node.once("");
    assert_eq!((status, &said["routes"], &said["writes"]), (0, &json!(4), &json!(6)), "{said} {errors}");
    let seen = |node: &Member| {
        let file = std::fs::metadata(node.conflist()).unwrap();
        (file.ino(), file.mtime_nsec(), node.routes(), node.host.nft("-a list ruleset"))
    };
    let before = seen(node);
    let (status, said, _) = node.once("");
    assert_eq!((status, &said["routes"]), (0, &json!(4)), "{said}");
    assert_eq!(said["writes"], 0, "{said}");
    assert_eq!(seen(node), before);
    // A fault of another node is reported. A fault of this node changes the exit status.
    let mut wrong = object(3);
    wrong["spec"]["podCIDRs"] = json!(["0.0.0.0/0"]);
    site.api.put(wrong);
    let (status, said, errors) = site.members[0].once("");
    assert_eq!(
        (status, &said["conditions"][0]["node"], &said["writes"]),
        (0, &json!("node3"), &json!(3)),
        "{said}"
    );
    assert!(errors.contains("is too large"), "{errors}");
    site.api.put(object(3));
    let mut none = object(1);
    none["spec"] = json!({});
    site.api.put(none);
    let (status, said, errors) = site.members[0].once("");
    assert_eq!((status, &said["conditions"][0]["node"]), (6, &json!("node1")), "{said}");
    assert!(errors.contains("it has no podCIDR yet"), "{errors}");
    assert!(site.members[0].conflist().exists());
    site.api.fail(Some(503));
    let (status, said, _) = site.members[0].once("");
    assert_eq!(status, 4);
    assert!(said.to_string().contains("InternalError"), "{said}");
}

#[test]
fn with_a_template_another_pod_cidr_waits_for_the_last_lease() {
    need!("ip", "nft");
    let mut site = Site::with(2, "--resync 1");
    let dir = site.members[0].host.dir().to_owned();
    let template = dir.join("template");
    let text = json!({"cniVersion": "1.0.0", "name": "cnimble", "plugins": [{"type": "bridge", "bridge": "br9",
        "isGateway": true, "ipam": {"type": "host-local", "dataDir": site.members[0].host.data_dir(),
        "ranges": "RANGES", "routes": [{"dst": "0.0.0.0/0"}]}}]});
    let ranges = r#"[{{range $i, $r := .PodCIDRRanges}}{{if $i}}, {{end}}[{"subnet": "{{$r}}"}]{{end}}]"#;
    std::fs::write(&template, text.to_string().replace("\"RANGES\"", ranges)).unwrap();
    site.settled();
    site.members[0].agent = None;
    site.members[0].start(&format!("--resync 1 --template {}", template.display()));
    let templated = || std::fs::read_to_string(site.members[0].conflist()).unwrap().contains("br9");
    assert!(wait_until(PATIENCE, templated), "{}", site.members[0].log());
    site.members[0].add_pod();
    site.api.put(moved(1));
    site.members[0].says("is still leased");
    let looks = || site.members[0].metric("looks_total").unwrap();
    let before = looks();
    assert!(wait_until(PATIENCE, || looks() > before + 2));
    site.members[0].file_with("10.1.1.0/24");
    site.members[0].del_pod();
    site.members[0].file_with("10.1.11.0/24");
}

/// Returns the first node with other podCIDRs.
fn moved(number: usize) -> Value {
    let mut moved = object(number);
    moved["spec"]["podCIDRs"] = json!(["10.1.11.0/24", "fd00:1:11::/64"]);
    moved
}

/// Pods come and go all the time, so a change that waits for the last one would wait forever.
#[test]
fn new_pods_get_another_pod_cidr_beside_old_ones_and_another_node_gets_the_old_one_after_the_last() {
    need!("ip", "nft", "ping");
    let mut site = Site::with(2, "--resync 1");
    site.settled();
    site.add_pods();
    site.api.put(moved(1));
    let first = &mut site.members[0];
    let file = first.file_with("10.1.11.0/24");
    assert_eq!(file["plugins"][0]["ipam"]["ranges"][1][0]["subnet"], "fd00:1:11::/64");
    first.says("are still leased");
    let (old, old_ips) = (std::mem::replace(&mut first.pod, Ns::new()), first.ips.clone());
    first.add_pod();
    assert!(
        first.ips[0].starts_with("10.1.11.") && first.ips[1].starts_with("fd00:1:11:"),
        "{:?}",
        first.ips
    );
    // The old pod has its gateway, the world beyond it, and the new pod.
    for to in ["10.1.1.1", "fd00:1:1::1", "192.0.2.254", "2001:db8::fe", &first.ips[0], &first.ips[1]] {
        assert!(old.pings(to), "{old_ips:?} to {to}: {}", first.host.ip("addr show dev cni0"));
    }
    // An agent that starts anew knows the earlier networks.
    first.agent = None;
    first.start("--resync 1");
    let new = std::mem::replace(&mut first.pod, old);
    first.del_pod();
    first.pod = new;
    let gateways = || first.host.addrs("cni0");
    let is_gone = || !gateways().iter().any(|ip| ip.starts_with("10.1.1.") || ip.starts_with("fd00:1:1:"));
    assert!(wait_until(PATIENCE, is_gone), "{:?}\n{}", gateways(), first.log());
    assert!(gateways().contains(&"10.1.11.1/24".to_owned()), "{:?}", gateways());
    let well = || first.get("/healthz").is_some_and(|(_, text)| text == "ok\n");
    assert!(wait_until(PATIENCE, well), "{:?}", first.get("/healthz"));
    // The node that gets the old podCIDRs is as good as any other.
    let mut next = object(2);
    next["spec"]["podCIDRs"] = json!(["10.1.1.0/24", "fd00:1:1::/64"]);
    site.api.put(next);
    for wanted in ["10.1.1.0/24 via 192.0.2.2 ", "fd00:1:1::/64 via 2001:db8::2 "] {
        let has = || first.routes().iter().any(|route| route.starts_with(wanted));
        assert!(wait_until(PATIENCE, has), "{wanted}: {:?}\n{}", first.routes(), first.log());
    }
}

/// The API server is behind a router, so no route of the node's own link conflicts with its network.
#[test]
fn a_network_with_the_api_servers_or_the_nodes_address_is_refused_and_the_last_good_one_stays() {
    need!("ip", "nft");
    let mut site = Site::new(1);
    site.settled();
    let (world, node) = (&site.world, &mut site.members[0]);
    node.agent = None;
    world.ip("addr add 198.51.100.7/32 dev br0");
    let api = ApiServer::of_nodes(world, "198.51.100.7:6443");
    api.kubeconfig(node.host.dir(), None);
    // The agent may have ended before its first work did.
    api.put(object(1));
    assert_eq!(node.once("").0, 0);
    let file = std::fs::read_to_string(node.conflist()).unwrap();
    for (cidr, why) in [
        ("198.51.100.0/24", "198.51.100.7 is the address of the API server"),
        ("192.0.0.0/16", "192.0.2.1 is the address of this host"),
    ] {
        let mut bad = object(1);
        bad["spec"]["podCIDRs"] = json!([cidr, "fd00:1:1::/64"]);
        // The API server doesn't report the node's address.
        bad["status"] = json!({});
        api.put(bad);
        let (status, said, errors) = node.once("");
        assert_eq!((status, &said["writes"]), (6, &json!(0)), "{said} {errors}");
        assert!(errors.contains(&format!("podCIDR {cidr} is refused: {why}")), "{errors}");
        assert_eq!(std::fs::read_to_string(node.conflist()).unwrap(), file);
    }
    api.put(object(1));
    assert_eq!(node.once("").0, 0);
}

/// The kernel accepts connections, but no process answers.
#[test]
fn an_api_server_that_never_answers_is_told_in_time_and_pods_come_meanwhile() {
    need!("ip", "nft");
    let mut site = Site::new(2);
    site.settled();
    let _silent = site.world.within(|| TcpListener::bind("192.0.2.254:7443").unwrap());
    let node = &mut site.members[0];
    node.agent = None;
    let kubeconfig = node.host.dir().join("kubeconfig");
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    std::fs::write(&kubeconfig, text.replace(":6443", ":7443")).unwrap();
    let routes = node.routes();
    let (status, said, errors) = node.once("");
    assert_eq!(status, 4, "{said} {errors}");
    assert!(said.to_string().contains("192.0.2.254:7443/api/v1/nodes: no answer within 10s"), "{said}");
    node.start("");
    node.add_pod();
    let told = || node.get("/healthz").is_some_and(|(code, text)| code == 503 && text.contains("no answer"));
    assert!(wait_until(PATIENCE, told), "{:?}", node.get("/healthz"));
    assert_eq!(node.routes(), routes);
    assert!(node.conflist().exists());
}
