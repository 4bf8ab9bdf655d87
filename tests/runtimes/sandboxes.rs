//! Tests `cnimble cri`, and `--cri` of gc, doctor and tree, with containerd.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use cnimble_cri::SandboxStatus;
use cnimble_tests::{Cri, Node, Outcome, command};

/// Returns a network with one family, masquerading, and containerd's default lease directory.
pub(crate) fn conflist() -> String {
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [{
            "type": "bridge",
            "bridge": "br-pods",
            "isGateway": true,
            "ipMasq": true,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": "10.88.9.0/24"}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }, {"type": "portmap", "capabilities": {"portMappings": true}}],
    })
    .to_string()
}

pub(crate) const LEASES: &str = "/var/lib/cni/networks/pods";

/// Runs the command on the node.
pub(crate) fn cnimble(node: &Node, args: &str) -> Outcome {
    node.run(&format!("{} {args}", command().display()))
}

/// Runs the command with `--json` and asserts its exit status. Returns its output.
#[track_caller]
pub(crate) fn document(node: &Node, args: &str, status: i32) -> Value {
    let outcome = cnimble(node, &format!("{args} --json"));
    assert_eq!(outcome.status, status, "{}", outcome.describe());
    serde_json::from_str(&outcome.text()).unwrap_or_else(|err| panic!("{err}: {}", outcome.describe()))
}

/// The pods of a shop, all older than the grace period.
pub(crate) struct Shop<'n> {
    node: &'n Node,
    pub(crate) cri: Cri<'n>,
    pods: Vec<SandboxStatus>,
}

impl<'n> Shop<'n> {
    pub(crate) fn open(node: &'n Node, pods: usize) -> Self {
        let cri = Cri::start(node, "pods", &conflist(), "/opt/cni/bin");
        let pods: Vec<_> =
            (0..pods).map(|number| cri.pod("shop", &format!("web-{number}"), &[], &[])).collect();
        node.sh(&format!("touch -d '1 hour ago' {LEASES}/10.* /var/lib/cni/results/*"));
        Shop { node, cri, pods }
    }

    pub(crate) fn id(&self, number: usize) -> &str {
        &self.pods[number].sandbox.id
    }

    fn ip(&self, number: usize) -> String {
        self.pods[number].ips[0].to_string()
    }

    pub(crate) fn lease(&self, number: usize) -> PathBuf {
        self.node.path(&format!("{LEASES}/{}", self.ip(number)))
    }

    pub(crate) fn entry(&self, number: usize) -> PathBuf {
        self.node.path(&format!("/var/lib/cni/results/pods-{}-eth0", self.id(number)))
    }

    fn lose_eth0(&self, number: usize) {
        let netns = self.pods[number].netns.as_ref().unwrap();
        self.node.netns(netns.to_str().unwrap()).ip("link del eth0");
    }

    /// Simulates a runtime that removes the pod with a DEL that leaves the lease.
    pub(crate) fn lose_sandbox(&self, number: usize) {
        let (lease, aside) = (self.lease(number), self.node.dir().join("lease"));
        // Attributes are copied, because the lease must not seem to be from another boot.
        self.node.sh(&format!("cp -a {LEASES}/{} {}", self.ip(number), aside.display()));
        self.cri.stop_and_remove(self.id(number));
        assert!(!lease.exists());
        self.node.sh(&format!("cp -a {} {LEASES}/{}", aside.display(), self.ip(number)));
    }
}

/// Returns kind and pod of the findings, sorted.
fn kinds(found: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let findings = found["findings"].as_array().unwrap().iter();
    let mut kinds: Vec<_> = findings.map(|of| (text(&of["kind"]), text(&of["pod"]))).collect();
    kinds.sort();
    kinds
}

/// Converts a test's expectation to the same form.
fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
    of.iter().map(|(kind, pod)| ((*kind).to_owned(), (*pod).to_owned())).collect()
}

#[test]
fn of_twenty_pods_five_that_lost_something_are_found_by_name() {
    need_runtime!("containerd", "ctr", "runc", "sha256sum");
    let node = crate::node();
    let shop = Shop::open(&node, 20);
    let healthy = document(&node, "doctor --cri", 0);
    assert_eq!(kinds(&healthy), [], "{healthy}");
    assert_eq!(document(&node, "gc pods --cri --grace 0", 0)["findings"], json!([]));

    shop.lose_eth0(3);
    std::fs::remove_file(shop.lease(7)).unwrap();
    std::fs::remove_file(shop.entry(11)).unwrap();
    node.nft(&format!("delete element inet cnimble masq-10.88.9.0/24 {{ {} }}", shop.ip(13)));
    shop.lose_sandbox(17);

    let found = document(&node, "doctor --cri", 6);
    let expected = [
        ("host-state", "shop/web-7"),
        ("lease", "-"),
        ("missing-rules", "shop/web-13"),
        ("sandbox-interface", "shop/web-3"),
        ("sandbox-without-entry", "shop/web-11"),
        ("sandbox-without-lease", "shop/web-7"),
    ];
    assert_eq!(kinds(&found), pairs(&expected), "{found:#}");
    let why = |kind: &str| {
        let mut findings = found["findings"].as_array().unwrap().iter();
        findings.find(|of| of["kind"] == kind).unwrap()["why"].as_str().unwrap().to_owned()
    };
    assert_eq!(why("sandbox-interface"), "the sandbox is Ready and has no eth0");
    assert!(why("lease").starts_with("the runtime lists no such sandbox: "), "{}", why("lease"));
    let told = cnimble(&node, "doctor --cri").text();
    for name in ["shop/web-3", "shop/web-7", "shop/web-11", "shop/web-13"] {
        assert!(told.contains(name), "{name} in {told}");
    }

    // The tree shows lost parts beside the pod, by its name. Other pods have no problem.
    let tree = document(&node, "tree --cri", 6);
    let places = tree["networks"][0]["places"].as_array().unwrap().iter();
    let pods: Vec<&Value> = places.flat_map(|place| place["pods"].as_array().unwrap()).collect();
    let wrong: Vec<&str> = pods
        .iter()
        .filter(|pod| !pod["problem"].is_null())
        .map(|pod| pod["name"].as_str().unwrap())
        .collect();
    assert_eq!(pods.len(), 19);
    assert_eq!(wrong, ["shop/web-7", "shop/web-11", "shop/web-13", "shop/web-3"], "{tree:#}");
    let problems = tree["problems"].to_string();
    assert!(problems.contains(&format!("{LEASES}/{}", shop.ip(17))), "{problems}");

    let svg = cnimble(&node, "tree --cri --svg -");
    assert_eq!(svg.status, 6, "the picture shows faults: {}", svg.describe());
    let svg = svg.text();
    assert!(svg.starts_with("<svg ") && svg.matches("class=\"pod wrong\"").count() == 4, "{svg}");
    // Writes the picture for the README.
    if let Some(file) = std::env::var_os("CRI_SVG") {
        std::fs::write(file, &svg).unwrap();
    }

    // Only dead and unlisted objects are removed, and only with --yes.
    let dead = document(&node, "gc pods --cri --grace 0", 0);
    assert_eq!(kinds(&dead), pairs(&[("lease", "-")]), "{dead:#}");
    assert!(shop.lease(17).exists());
    let dead = document(&node, "gc pods --cri --grace 0 --yes", 0);
    assert_eq!((dead["cleanedUp"].as_u64(), shop.lease(17).exists()), (Some(1), false), "{dead:#}");
    let left = std::fs::read_dir(node.path(LEASES)).unwrap().flatten();
    let left = left.filter(|file| file.file_name().to_string_lossy().starts_with("10.")).count();
    assert_eq!(left, 18, "leases of living pods are gone");

    // The rules and the lease are restored, and the lost lease is no fault any more. Only the runtime can repair the
    // rest.
    let repaired = document(&node, "doctor --cri --repair", 7);
    let outcomes = repaired["findings"].as_array().unwrap().iter();
    let outcomes: Vec<_> =
        outcomes.map(|of| (of["kind"].as_str().unwrap(), of["outcome"].as_str().unwrap())).collect();
    let expected = [
        ("missing-rules", "repaired"),
        ("host-state", "repaired"),
        ("sandbox-interface", "failed"),
        ("sandbox-without-lease", "repaired"),
        ("sandbox-without-entry", "failed"),
    ];
    assert_eq!(outcomes, expected);
    assert!(node.nft("list ruleset").contains(&format!("{} comment", shop.ip(13))));
    for pod in shop.pods.iter().enumerate().filter(|(number, _)| *number != 17).map(|(_, pod)| pod) {
        shop.cri.stop_and_remove(&pod.sandbox.id);
    }
}

/// The namespace of a sandbox is removed, and with it all evidence of liveness.
#[test]
fn what_the_runtime_lists_is_valid_in_whatever_state() {
    need_runtime!("containerd", "ctr", "runc", "sha256sum");
    let node = crate::node();
    let shop = Shop::open(&node, 2);
    for pod in &shop.pods {
        let pid = pod.pid.unwrap();
        node.sh(&format!("kill -9 {pid}; umount {0}; rm {0}", pod.netns.as_ref().unwrap().display()));
    }
    let is_unready = |status: &SandboxStatus| !status.sandbox.ready;
    let state = |number: usize| {
        let id = shop.id(number).to_owned();
        shop.cri.ask(|client| async move { client.sandbox(&id).await }).unwrap()
    };
    assert!(cnimble_tests::wait_until(cnimble_tests::PATIENCE, || (0..2)
        .all(|number| is_unready(&state(number)))));
    // Without the runtime's list both are dead.
    assert!(cnimble_tests::wait_until(cnimble_tests::PATIENCE, || {
        let found = document(&node, "doctor", 6);
        found["findings"].as_array().unwrap().iter().filter(|of| of["kind"] == "lease").count() == 2
    }));
    let dead = document(&node, "gc pods --cri --grace 0 --yes", 0);
    assert_eq!(kinds(&dead), [], "{dead:#}");
    assert!(shop.lease(0).exists() && shop.lease(1).exists() && shop.entry(0).exists());
    let found = document(&node, "doctor --cri", 6);
    let expected = pairs(&[("sandbox-lease", "shop/web-0"), ("sandbox-lease", "shop/web-1")]);
    assert_eq!(kinds(&found), expected, "{found:#}");
    let remedy = "the kubelet stops it, or `cnimble cri down` with the same --socket does";
    assert_eq!(found["findings"][0]["remedy"], remedy);
    // If the runtime doesn't answer, nothing is removed.
    let refused = cnimble(&node, "gc pods --cri /run/there-is-none.sock --grace 0 --yes");
    assert_eq!(refused.status, 4, "{}", refused.describe());
    assert!(refused.stderr.contains("no container runtime's socket is there"), "{}", refused.describe());
    assert!(shop.lease(0).exists() && shop.entry(0).exists());
    for number in 0..2 {
        shop.cri.stop_and_remove(shop.id(number));
    }
    assert!(!shop.lease(0).exists());
}

/// Runs the doctor without the right of root to read any file, and returns what was not checked.
fn not_checked_without_rights(node: &Node) -> String {
    let wrapper = "setpriv --bounding-set -dac_override,-dac_read_search";
    let outcome = node.run(&format!("{wrapper} {} doctor --cri --json", command().display()));
    let document: Value =
        serde_json::from_str(&outcome.text()).unwrap_or_else(|_| panic!("{}", outcome.describe()));
    document["notChecked"].to_string()
}

/// What could not be read is no reason to delete a pod.
#[test]
fn what_could_not_be_read_of_a_sandbox_is_named_and_no_fault() {
    need_runtime!("containerd", "ctr", "runc", "sha256sum", "jq", "setpriv");
    let node = crate::node();
    let shop = Shop::open(&node, 5);
    let lease = |number: usize| format!("{LEASES}/{}", shop.ip(number));
    let entry = |number: usize| format!("/var/lib/cni/results/pods-{}-eth0", shop.id(number));
    // A bare result, which a DEL goes by, and a lease that is no file.
    node.sh(&format!("jq -c .result {0} >/tmp/bare && cat /tmp/bare >{0}; rm /tmp/bare", entry(0)));
    node.sh(&format!("rm {0}; mkdir {0}", lease(1)));
    // A record of another interface alone. The runtime's address is on eth0.
    let netns = shop.pods[2].netns.as_ref().unwrap();
    let inside = node.netns(netns.to_str().unwrap());
    inside.ip("link add net1 type veth peer name far1");
    let other = format!("/var/lib/cni/results/pods-{}-net1", shop.id(2));
    let mac = inside.link("net1")["address"].as_str().unwrap().to_owned();
    node.sh(&format!(
        "jq -c '.ifName = \"net1\" | .result.interfaces[-1] |= (.name = \"net1\" | .mac = \"{mac}\")' {} >{}; rm {}",
        entry(2),
        other,
        entry(2)
    ));
    // A namespace that is there, behind a directory that may not be searched.
    node.sh("mkdir -m 700 /run/locked; touch /run/locked/ghost; unshare --net=/run/locked/ghost true");
    let args = "--args 'IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=ghost'";
    let added = cnimble(&node, &format!("add pods /run/locked/ghost {args} --container-id ghost"));
    assert_eq!(added.status, 0, "{}", added.describe());
    node.sh("touch -d '1 hour ago' /var/lib/cni/results/*; chown 1000 /run/locked");
    let outcome = cnimble(&node, "doctor --cri --json");
    let found: Value = serde_json::from_str(&outcome.text()).unwrap();
    let told = found["findings"].as_array().unwrap().iter();
    let told: Vec<&str> = told.map(|of| of["kind"].as_str().unwrap()).collect();
    for kind in ["sandbox-address", "sandbox-without-entry", "sandbox-without-lease"] {
        assert!(!told.contains(&kind), "{found:#}");
    }
    let not_checked = found["notChecked"].to_string();
    for part in [
        "pod shop/web-0: its record is a bare result of libcni before 0.8".to_owned(),
        format!("pod shop/web-1: the lease file of {} can't be read", shop.ip(1)),
    ] {
        assert!(not_checked.contains(&part), "{part}: {found:#}");
    }
    let not_checked = not_checked_without_rights(&node);
    let part = "whether eth0 of ghost still has its namespace: ";
    assert!(not_checked.contains(part), "{not_checked}");
    // A record that can't be read may be of any sandbox.
    node.sh(&format!("chown 1000 {0}; chmod 600 {0}", entry(3)));
    let not_checked = not_checked_without_rights(&node);
    let part =
        "pod shop/web-3: no result cache that was read has its ADD, and some records could not be read";
    assert!(not_checked.contains(part), "{not_checked}");
    node.sh(&format!("chown 0 /run/locked {}", entry(3)));
    // This sandbox is Ready, and its namespace is not at the path that the runtime tells.
    node.sh(&format!("umount -l {0}; rm {0}", shop.pods[4].netns.as_ref().unwrap().display()));
    let outcome = cnimble(&node, "doctor --cri");
    let path = shop.pods[4].netns.as_ref().unwrap().display();
    let why = format!("the sandbox is Ready, and its namespace {path} is not there");
    assert!(outcome.status == 6 && outcome.text().contains(&why), "{}", outcome.describe());
    // No option removes an entry whose configuration can't be used, so `--yes` promises nothing.
    let unusable = r#"{"kind": "cniCacheV1", "containerId": "stale", "ifName": "eth0", "networkName": "pods",
        "netns": "/run/netns/none", "config": "ew=="}"#;
    let file = node.path("/var/lib/cni/results/pods-stale-eth0");
    std::fs::write(&file, unusable).unwrap();
    node.sh("touch -d '1 hour ago' /var/lib/cni/results/pods-stale-eth0");
    let told = cnimble(&node, "gc pods --cri --grace 0").text();
    assert!(
        told.contains("1 found, and nothing repaired: --yes cleans up 0, no option repairs 1; "),
        "{told}"
    );
    std::fs::remove_file(file).unwrap();
    cnimble(&node, "del pods --container-id ghost").success();
    node.sh("umount /run/locked/ghost");
    node.sh(&format!("rm -r {}", lease(1)));
    for pod in &shop.pods {
        shop.cri.stop_and_remove(&pod.sandbox.id);
    }
}

/// A pod without a sandbox is told if its entry is in a cache of the runtime. Another cache can be that of `cnimble run`.
#[test]
fn a_namespace_of_a_sandbox_that_is_gone_is_told_from_the_cache_of_its_runtime() {
    need_runtime!("containerd", "ctr", "runc", "sha256sum");
    let node = crate::node();
    let shop = Shop::open(&node, 1);
    for (name, cache) in [("ghost", "/var/lib/cni"), ("own", "/var/lib/cnimble/cni")] {
        let args = format!("--args 'IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name}'");
        // `ip netns` shares the mounts of /run/netns, and containerd could not remove its own then.
        node.sh(&format!("touch /run/{name}; unshare --net=/run/{name} true"));
        let added = cnimble(&node, &format!("--cache-dir {cache} add pods /run/{name} {args}"));
        assert_eq!(added.status, 0, "{}", added.describe());
    }
    node.sh("touch -d '1 hour ago' /var/lib/cni/results/* /var/lib/cnimble/cni/results/*");
    for cache in ["/var/lib/cni", "/var/lib/none"] {
        let found = document(&node, &format!("--cache-dir {cache} doctor --cri"), 6);
        assert_eq!(kinds(&found), pairs(&[("sandbox-gone", "shop/ghost")]), "{cache}: {found:#}");
        assert_eq!(found["findings"][0]["outcome"], "left", "{found:#}");
    }
    for name in ["ghost", "own"] {
        node.sh(&format!("umount /run/{name}"));
    }
    shop.cri.stop_and_remove(shop.id(0));
}

const MANIFEST: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec:
  dnsPolicy: Default
  containers:
  - {name: nginx, image: nginx, ports: [{containerPort: 80, hostPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: node}
spec:
  hostNetwork: true
  containers: [{name: a, image: a}]
";

#[test]
fn a_manifest_becomes_a_pod_of_the_runtime_and_goes_again() {
    need_runtime!("containerd", "ctr", "runc", "sha256sum");
    let node = crate::node();
    // As `cnimble init` writes them. containerd before 2 knows `cniVersion` alone.
    let mut network: Value = serde_json::from_str(&conflist()).unwrap();
    network["cniVersions"] = json!(["1.0.0", "1.1.0"]);
    let cri = Cri::start(&node, "pods", &network.to_string(), "/opt/cni/bin");
    // The first pod makes the runtime notice its network and its image.
    cri.stop_and_remove(&cri.pod("shop", "first", &[], &[]).sandbox.id);
    let status = document(&node, "cri status", 0);
    let condition = |number: usize| {
        (status["conditions"][number]["type"].clone(), status["conditions"][number]["status"].clone())
    };
    assert_eq!(condition(1), (json!("NetworkReady"), json!(true)), "{status:#}");
    assert_eq!(
        (&status["loaded"]["networks"][0]["name"], &status["choice"]["name"]),
        (&json!("pods"), &json!("pods"))
    );

    let file = node.file("pods.yaml", MANIFEST);
    let up = format!("cri up {} --cgroup-parent {}", file.display(), cri.cgroup());
    let made = document(&node, &up, 0);
    let made = made.as_array().unwrap();
    let web = made.iter().find(|pod| pod["name"] == "web").unwrap();
    let ip = web["ips"][0].as_str().unwrap();
    let netns = node.netns(web["netns"].as_str().unwrap());
    assert!(netns.addrs("eth0").iter().any(|addr| addr.starts_with(ip)), "{web}");
    assert!(node.nft("list ruleset").contains("8080"), "no rule for the port");
    // The command can be repeated.
    let again = document(&node, &up, 0);
    assert_eq!(again.as_array().unwrap().iter().find(|pod| pod["name"] == "web").unwrap()["id"], web["id"]);
    let sides = document(&node, "cri inspect shop/web", 0);
    assert_eq!(sides[0]["cache"]["address"], json!([format!("{ip}/24")]));
    assert_eq!(
        (&sides[0]["kernel"]["address"], &sides[0]["differences"]),
        (&sides[0]["cache"]["address"], &json!([]))
    );
    netns.ip("link del eth0");
    let sides = document(&node, "cri inspect shop/web", 6);
    assert!(sides[0]["differences"].to_string().contains("the kernel has no eth0"), "{sides:#}");

    // containerd has no template and ignores the CIDR. A message says so.
    let told = cnimble(&node, "cri set-pod-cidr 10.9.0.0/16");
    assert_eq!(told.status, 0, "{}", told.describe());
    assert!(told.stderr.contains("it has no conf_template"), "{}", told.describe());

    assert_eq!(cnimble(&node, "cri down shop/web node").status, 0);
    assert_eq!(document(&node, "cri pods", 0), json!([]));
    assert!(!node.path(&format!("{LEASES}/{ip}")).exists());
    let strange = cnimble(&node, "cri pods --socket /run/containerd/containerd.sock.ttrpc");
    assert_eq!(strange.status, 4, "{}", strange.describe());
    assert!(Path::new(&node.path("/run/containerd/containerd.sock.ttrpc")).exists());
}
