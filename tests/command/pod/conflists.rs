//! Tests common conflists, unchanged and in their usual places: those of containerd and podman, and one of flannel's
//! shape. The command gets only the manifests.

use cnimble_tests::{Node, need};

/// Tests up, reachability, check, and down without a trace.
#[track_caller]
fn lives(conflist: &str, network: &str, bridge: &str, prefix: &str) {
    let node = Node::new();
    std::fs::create_dir(node.dir().join("net.d")).unwrap();
    let conflist = node.file("net.d/10-default.conflist", conflist);
    node.sh(&format!("cp {} /etc/cni/net.d/", conflist.display()));
    let pod = |name: &str, more: &str| {
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{containers: [{{name: a{more}}}]}}}}"
        );
        node.file(&format!("{name}.yaml"), &text).display().to_string()
    };
    let web = pod("web", ", ports: [{containerPort: 80, hostPort: 8080}]");
    let db = pod("db", "");
    let cnimble = format!("{} pod", cnimble_tests::command().canonicalize().unwrap().display());

    let text = node.sh(&format!("{cnimble} up {web} {db}"));
    assert!(text.contains(&format!("default/web is up on {network}: {prefix}")), "{text}");
    let ip = |pod: &str| -> String {
        let line = text.lines().find(|line| line.contains(&format!("/{pod} "))).unwrap();
        line.split_once(": ").unwrap().1.split(' ').next().unwrap().to_owned()
    };
    node.sh(&format!("{cnimble} exec web -- ping -nc3 -W60 {}", ip("db")));
    node.sh(&format!("ping -nc3 -W60 {}", ip("web")));
    let rules = node.sh("nft list ruleset; iptables-save 2>/dev/null || true");
    assert!(rules.contains("8080"), "{rules}");
    node.sh(&format!("{cnimble} status web && {cnimble} status db"));

    node.sh(&format!("{cnimble} down web db"));
    let left = node.sh(&format!(
        "ls /run/cnimble/netns /var/lib/cnimble/sandboxes /var/lib/cnimble/cni/results; \
         ls /var/lib/cni/networks/{network} | grep '^[0-9]' || true; ip -br link | grep veth || true"
    ));
    let left: Vec<&str> = left.lines().filter(|line| !line.is_empty() && !line.ends_with(':')).collect();
    assert_eq!(left, Vec::<&str>::new());
    let rules = node.sh("nft list ruleset; iptables-save 2>/dev/null || true");
    assert!(!rules.contains("8080") && !rules.contains(&ip("web")), "{rules}");
    assert!(node.links().contains(&bridge.to_owned()), "{:?}", node.links());
}

/// The configuration of containerd's installation script (install-cni).
#[test]
fn containerds() {
    need!("ip", "nft", "ping", "unshare", "nsenter");
    lives(
        r#"{
  "cniVersion": "1.0.0",
  "name": "containerd-net",
  "plugins": [
    {
      "type": "bridge",
      "bridge": "cni0",
      "isGateway": true,
      "ipMasq": true,
      "promiscMode": true,
      "ipam": {
        "type": "host-local",
        "ranges": [
          [{ "subnet": "10.88.0.0/16" }],
          [{ "subnet": "2001:4860:4860::/64" }]
        ],
        "routes": [
          { "dst": "0.0.0.0/0" },
          { "dst": "::/0" }
        ]
      }
    },
    { "type": "portmap", "capabilities": {"portMappings": true} }
  ]
}"#,
        "containerd-net",
        "cni0",
        "10.88.",
    );
}

/// Podman's configuration, as in Debian's package.
#[test]
fn podmans() {
    need!("ip", "nft", "ping", "iptables", "unshare", "nsenter");
    let text = include_str!("../../runtimes/conflists/87-podman-bridge.conflist");
    lives(text, "podman", "cni-podman0", "10.88.");
}

/// The configuration to which flannel's plugin delegates: bridge with the node's subnet, then portmap.
#[test]
fn flannels() {
    need!("ip", "nft", "ping", "unshare", "nsenter");
    lives(
        r#"{
  "name": "cbr0",
  "cniVersion": "0.3.1",
  "plugins": [
    {
      "type": "bridge",
      "mtu": 1450,
      "isDefaultGateway": true,
      "hairpinMode": true,
      "ipMasq": false,
      "ipam": {
        "type": "host-local",
        "ranges": [[{ "subnet": "10.244.3.0/24" }]],
        "routes": [{ "dst": "10.244.0.0/16" }]
      }
    },
    { "type": "portmap", "capabilities": { "portMappings": true } }
  ]
}"#,
        "cbr0",
        "cni0",
        "10.244.3.",
    );
}
