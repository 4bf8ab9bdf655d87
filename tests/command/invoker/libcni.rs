//! Tests one cache with two invokers. cnimble checks and deletes attachments of libcni (in podman), and libcni deletes
//! those of cnimble.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use cnimble_tests::{Node, leases, need, skip};

use super::{command, scripts};

/// The container's process only waits, so only the network is started.
const PAUSE: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

/// A plugin that saves its input.
const WITNESS: &str = r#"cat >DIR/witness-$CNI_COMMAND
case $CNI_COMMAND in
ADD) echo '{"cniVersion":"0.4.0"}' ;;
VERSION) echo '{"cniVersion":"0.4.0","supportedVersions":["0.4.0"]}' ;;
esac"#;

/// podman with its storage and networks in the node's directory.
struct Podman<'n> {
    node: &'n Node,
    env: String,
}

impl<'n> Podman<'n> {
    fn new(node: &'n Node) -> Self {
        let dir = node.dir().display().to_string();
        let network = json!({
            "cniVersion": "0.4.0",
            "name": "pods",
            "plugins": [{"type": "witness"}, {
                "type": "bridge",
                "bridge": "br-pods",
                "isGateway": true,
                "ipMasq": true,
                "capabilities": {"ips": true},
                "ipam": {
                    "type": "host-local",
                    "dataDir": node.data_dir(),
                    "ranges": [[{"subnet": "10.88.8.0/24"}]],
                },
            }],
        });
        node.file("net.d/10-pods.conflist", &network.to_string());
        scripts(node.dir(), &[("witness", &WITNESS.replace("DIR", &dir))]);
        let containers = node.file(
            "containers.conf",
            &format!(
                "[containers]\ncgroups = \"disabled\"\ndefault_sysctls = []\n\
                 [engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n\
                 runtime = \"crun\"\ntmp_dir = \"/run/libpod\"\n\
                 [network]\nnetwork_backend = \"cni\"\ncni_plugin_dirs = [\"/opt/cni/bin\", \"{dir}/bin\"]\n\
                 network_config_dir = \"{dir}/net.d\"\ndefault_network = \"pods\"\n"
            ),
        );
        let storage = node.file(
            "storage.conf",
            &format!(
                "[storage]\ndriver = \"vfs\"\nrunroot = \"/run/storage\"\ngraphroot = \"{dir}/graph\"\n"
            ),
        );
        let env = format!(
            "export CONTAINERS_CONF={} CONTAINERS_STORAGE_CONF={}",
            containers.display(),
            storage.display()
        );
        let podman = Podman { node, env };
        node.sh(&format!("tar -C {} -cf {dir}/rootfs.tar .", node.rootfs().display()));
        podman.run(&format!("import --quiet {dir}/rootfs.tar localhost/busybox"));
        podman
    }

    fn run(&self, args: &str) -> String {
        self.node.sh(&format!("{}\npodman {args}", self.env))
    }

    fn start(&self, name: &str) -> String {
        self.run(&format!("run --detach --name {name} --network pods localhost/busybox sh -c \"{PAUSE}\""))
    }

    /// Runs `cnimble …` with podman's networks and plugins.
    fn cnimble(&self, args: &str) -> String {
        let dir = self.node.dir().display();
        let command = command().canonicalize().unwrap();
        self.node.sh(&format!(
            "CNI_PATH=/opt/cni/bin:{dir}/bin NETCONFPATH={dir}/net.d {} {args}",
            command.display()
        ))
    }

    fn entry(&self, id: &str) -> String {
        self.node.sh(&format!("cat /var/lib/cni/results/pods-{id}-eth0"))
    }

    fn entries(&self) -> String {
        self.node.sh("ls -A /var/lib/cni/results")
    }

    fn addresses(&self) -> usize {
        leases(&self.node.data_dir()).iter().filter(|line| line.contains("/10.88.8.")).count()
    }
}

#[test]
fn podman_and_the_command_share_a_cache() {
    need!("podman", "crun", "busybox", "ip", "nft", "unshare", "nsenter", "tar");
    if !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() && !Path::new("/sys/fs/cgroup/pids").exists()
    {
        skip!("no cgroups are mounted");
    }
    let node = Node::new();
    let podman = Podman::new(&node);
    let id = podman.start("one");
    let theirs = podman.entry(&id);
    let entry: Value = serde_json::from_str(&theirs).unwrap();
    assert_eq!(entry["kind"], "cniCacheV1");
    // libcni 1.1 in podman 4 stores the namespace only inside the result.
    let netns = podman.run("inspect --format {{.NetworkSettings.SandboxKey}} one");
    // cnimble reads libcni's entry: CHECK needs its result, DEL its arguments.
    podman.cnimble(&format!("check pods --container-id {id}"));
    podman.cnimble("gc pods --gone");
    assert_eq!(podman.addresses(), 1);
    podman.cnimble(&format!("del pods --container-id {id}"));
    assert_eq!(podman.entries(), "");
    assert_eq!(podman.addresses(), 0);
    // cnimble writes an entry that libcni reads: the same attachment.
    let args: Vec<String> = entry["cniArgs"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|pair| format!("{}={}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()))
        .collect();
    podman.cnimble(&format!(
        "add pods {netns} --container-id {id} --args '{}' --cap-args '{}'",
        args.join(";"),
        entry["capabilityArgs"]
    ));
    let ours: Value = serde_json::from_str(&podman.entry(&id)).unwrap();
    for (key, value) in entry.as_object().unwrap() {
        match key.as_str() {
            "config" => {} // the same document, written in another order
            "result" => assert_eq!(ours[key]["ips"][0]["gateway"], value["ips"][0]["gateway"]),
            _ => assert_eq!(&ours[key], value, "{key}"),
        }
    }
    assert_eq!(ours["netns"], netns);
    assert_eq!(podman.addresses(), 1);
    fs::remove_file(node.dir().join("witness-DEL")).unwrap();
    podman.run("rm --force --time 5 one");
    // libcni passed the result that cnimble had recorded to the plugins.
    let seen: Value = serde_json::from_slice(&fs::read(node.dir().join("witness-DEL")).unwrap()).unwrap();
    assert_eq!(seen["prevResult"]["ips"][0]["address"], ours["result"]["ips"][0]["address"]);
    assert_eq!(seen["prevResult"]["interfaces"], ours["result"]["interfaces"]);
    assert_eq!(podman.entries(), "");
    assert_eq!(podman.addresses(), 0);
}
