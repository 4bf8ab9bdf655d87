//! Measures netavark instead of the chain. One process sets up a pod with a port, and another takes it down.
//!
//! netavark gets the address from podman, which chooses and stores it. Our chain and that of the Go plugins do that
//! themselves. netavark is one process instead of four, and has no counterpart to the tuning plugin.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::Result;
use crate::process::{self, Run};
use crate::sandbox::{Namespace, Sandbox};

/// The name of the contender.
pub(crate) const NAME: &str = "netavark";

/// A node with pods that use netavark.
pub(crate) struct Node {
    program: PathBuf,
    config_dir: PathBuf,
    namespace: Namespace,
    /// Kept until the end, so that the kernel doesn't remove namespaces during a measurement.
    namespaces: Vec<Namespace>,
}

impl Node {
    /// Returns a node with one pod.
    pub(crate) fn new(sandbox: &Sandbox, program: &Path) -> Result<Self> {
        let config_dir = sandbox.state_dir().join(NAME);
        std::fs::create_dir_all(&config_dir)?;
        let namespace = Namespace::new(NAME)?;
        let mut node = Node { program: program.to_owned(), config_dir, namespace, namespaces: Vec::new() };
        let pod = node.pod()?;
        node.call("setup", pod)?;
        Ok(node)
    }

    /// Sets one pod up and takes it down.
    pub(crate) fn life(&mut self) -> Result<(Run, Run)> {
        let pod = self.pod()?;
        Ok((self.call("setup", pod)?, self.call("teardown", pod)?))
    }

    fn pod(&mut self) -> Result<usize> {
        let number = self.namespaces.len();
        self.namespaces.push(Namespace::new(&format!("{NAME}-{number}"))?);
        Ok(number)
    }

    fn call(&self, verb: &str, pod: usize) -> Result<Run> {
        let netns = self.namespaces.get(pod).ok_or("no such pod")?.path();
        let mut command = Command::new(&self.program);
        // Debian's netavark chooses iptables, too. firewalld isn't used.
        command.env("NETAVARK_FW", "iptables").arg("--config").arg(&self.config_dir).arg(verb).arg(netns);
        self.namespace.enter()?;
        let (_, run) = process::timed(command, config(pod)?.to_string().as_bytes())
            .map_err(|err| format!("{NAME} {verb}: {err}"))?;
        Ok(run)
    }
}

/// Returns the configuration that podman passes to netavark on stdin.
fn config(pod: usize) -> Result<Value> {
    let [high, low] = (u16::try_from(pod)? + 2).to_be_bytes();
    Ok(json!({
        "container_id": format!("{pod:064x}"),
        "container_name": format!("pod{pod}"),
        "port_mappings": [{
            "container_port": 80, "host_ip": "", "host_port": 10_000 + pod, "protocol": "tcp", "range": 1,
        }],
        "networks": {"bench": {
            "static_ips": [format!("10.99.{high}.{low}")], "interface_name": "eth0",
        }},
        "network_info": {"bench": {
            "name": "bench",
            "id": format!("{:064x}", 1),
            "driver": "bridge",
            "network_interface": "cnibench0",
            "subnets": [{"subnet": "10.99.0.0/16", "gateway": "10.99.0.1"}],
            "ipv6_enabled": false,
            "internal": false,
            "dns_enabled": false,
            "ipam_options": {"driver": "host-local"},
        }},
    }))
}
