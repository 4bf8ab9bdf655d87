//! Tests the netavark driver `cni` with the JSON that podman 5 and netavark send, without either of them.
#![cfg(test)]

mod create;
mod input;
mod killed;
mod records;
mod reload;
mod setup;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use cnimble_tests::{LIMIT, Node, Ns, Outcome, command, run_limited};

/// The node's directory of records, libcni's.
const RECORDS: &str = "/var/lib/cni/results";

/// The driver on a node.
struct Driver<'n> {
    node: &'n Node,
    program: PathBuf,
}

impl<'n> Driver<'n> {
    /// Installs the command under the driver's name.
    fn new(node: &'n Node) -> Self {
        let program = node.dir().join("drivers/cni");
        std::fs::create_dir_all(program.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(command(), &program).unwrap();
        Driver { node, program }
    }

    /// Makes a call with this JSON on stdin.
    fn call(&self, args: &[&str], input: &Value) -> Outcome {
        let mut command = self.node.command(self.program.to_str().unwrap());
        command.args(args);
        Outcome::from(&args.join(" "), run_limited(&mut command, input.to_string().as_bytes(), LIMIT))
    }

    /// Makes a call that must succeed with an answer.
    #[track_caller]
    fn answer(&self, args: &[&str], input: &Value) -> Value {
        let outcome = self.call(args, input).success();
        serde_json::from_slice(&outcome.stdout).unwrap_or_else(|err| panic!("{err}: {}", outcome.describe()))
    }

    /// Makes a call that must fail, and returns its error.
    #[track_caller]
    fn refusal(&self, args: &[&str], input: &Value) -> String {
        let outcome = self.call(args, input);
        assert_ne!(outcome.status, 0, "{}", outcome.describe());
        let answer: Value = serde_json::from_slice(&outcome.stdout)
            .unwrap_or_else(|err| panic!("{err}: {}", outcome.describe()));
        answer["error"].as_str().unwrap().to_owned()
    }

    /// Lets the driver complete a network of podman's. podman fills in the gateways after that.
    #[track_caller]
    fn create(&self, more: &Value) -> Value {
        let mut network = self.answer(&["create"], &proposed(more));
        for subnet in network["subnets"].as_array_mut().into_iter().flatten() {
            let text = subnet["subnet"].as_str().unwrap();
            if subnet["gateway"].is_null() {
                let gateway = text.replace("0/24", "1").replace("::/64", "::1");
                subnet["gateway"] = gateway.into();
            }
        }
        network
    }

    #[track_caller]
    fn setup(&self, container: &Container) -> Value {
        self.answer(&["setup", &container.netns], &container.input)
    }

    #[track_caller]
    fn teardown(&self, container: &Container) {
        let outcome = self.call(&["teardown", &container.netns], &container.input).success();
        assert_eq!(outcome.text(), "", "teardown answers nothing");
    }

    /// Returns the names of the records.
    fn records(&self) -> Vec<String> {
        let listed = self.node.sh(&format!("ls -A {RECORDS} 2>/dev/null || true"));
        listed.lines().map(str::to_owned).collect()
    }

    /// Asserts that no container has left anything, apart from bridges.
    #[track_caller]
    fn assert_nothing_left(&self) {
        assert_eq!(self.records(), [""; 0]);
        let links = self.node.links();
        assert!(
            links.iter().all(|link| link == "lo" || link.starts_with("br-") || link == "uplink"),
            "{links:?}"
        );
        let rules = self.node.nft("list ruleset");
        assert!(!rules.contains("10.89.7.") && !rules.contains("id: "), "{rules}");
    }
}

/// A network as podman proposes it, with `more` keys.
fn proposed(more: &Value) -> Value {
    let mut network = json!({
        "name": "web",
        "id": "2f259bab93aaaaa2542ba43ef33eb990d0999ee1b9924b557b7be53c0b7a1bb9",
        "driver": "cni",
        "created": "2026-11-28T05:22:31.794961092Z",
        "ipv6_enabled": false,
        "internal": false,
        "dns_enabled": true,
        "ipam_options": {},
    });
    network.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    network
}

/// A container with a namespace, and the call for it.
struct Container {
    netns: String,
    input: Value,
}

impl Container {
    /// Makes the namespace. Everything that podman leaves out is `null`, as netavark 1.17 sends it.
    fn new(node: &Node, name: &str, network: &Value, options: &Value) -> Self {
        node.sh(&format!("ip netns add {name}"));
        let mut wanted = json!({
            "aliases": [name], "interface_name": "eth0", "static_ips": null, "static_mac": null, "options": null,
        });
        wanted.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
        let input = json!({
            "container_id": format!("{name}0123456789abcdef"),
            "container_name": name,
            "port_mappings": null,
            "network": network,
            "network_options": wanted,
        });
        Container { netns: format!("/run/netns/{name}"), input }
    }

    /// Publishes a port of the container.
    fn publish(mut self, host_port: u16) -> Self {
        let mapping = json!({
            "container_port": 80, "host_ip": "", "host_port": host_port, "protocol": "tcp", "range": 1,
        });
        self.input["port_mappings"] = json!([mapping]);
        self
    }

    fn inside(&self, node: &Node) -> Ns {
        node.netns(&self.netns)
    }
}

/// Writes a CNI network of the usual directory: a bridge with host-local and published ports.
fn cni_network(node: &Node, name: &str, subnet: &str) {
    let list = json!({
        "cniVersion": "1.0.0",
        "name": name,
        "plugins": [
            {
                "type": "bridge",
                "bridge": format!("br-{name}"),
                "isGateway": true,
                "ipMasq": true,
                "ipam": {
                    "type": "host-local", "ranges": [[{"subnet": subnet}]], "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    });
    write(node, Path::new(&format!("/etc/cni/net.d/{name}.conflist")), &list);
}

/// Writes a file of the node.
fn write(node: &Node, path: &Path, content: &Value) {
    std::fs::write(node.path(path.to_str().unwrap()), content.to_string()).unwrap();
}
