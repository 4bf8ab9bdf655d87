//! A complete chain like podman's, with bridge, portmap, firewall and tuning. The plugins run one after the other, as a
//! runtime calls them.

use std::process::Command;

use serde_json::{Map, Value, json};

use crate::args::Args;
use crate::process::Run;
use crate::report::{Report, Row};
use crate::sandbox::{Namespace, Sandbox};
use crate::{Contender, Result, announce, netavark, process, progress, ten};

/// The maximum number of pods. With the reference's iptables a thousand would take half an hour.
const MOST: usize = 300;

/// The addresses of pods.
pub(crate) const SUBNET: &str = "10.99.0.0/16";
/// The port in a pod that its ports on the node lead to.
pub(crate) const CONTAINER_PORT: u16 = 80;

/// The plugins after bridge.
const CHAINED: [&str; 3] = ["portmap", "firewall", "tuning"];

/// A plugin of the chain, with its configuration.
struct Plugin {
    kind: String,
    config: Map<String, Value>,
}

impl Plugin {
    fn new(kind: &str, config: &Value) -> Self {
        let mut config = config.as_object().cloned().unwrap_or_default();
        config.insert("type".into(), kind.into());
        config.insert("name".into(), "bench".into());
        // The newest version that plugins from Debian 12 support.
        config.insert("cniVersion".into(), "1.0.0".into());
        Plugin { kind: kind.to_owned(), config }
    }
}

/// One contender's node, with a chain of plugins.
pub(crate) struct Node<'a> {
    contender: &'a Contender,
    label: String,
    namespace: Namespace,
    plugins: Vec<Plugin>,
    /// Kept until the end, so that the kernel doesn't remove namespaces during a measurement.
    namespaces: Vec<Namespace>,
    pods: usize,
}

/// A pod that has been added.
pub(crate) struct Pod {
    number: usize,
    pub(crate) netns: std::path::PathBuf,
    /// The result of the last plugin.
    pub(crate) result: Value,
}

/// The times of a verb of the whole chain, and of its first plugin alone.
struct Times {
    all: Run,
    first: Run,
}

impl<'a> Node<'a> {
    /// Returns a node with a chain that begins with bridge, with ipMasq.
    pub(crate) fn new(
        sandbox: &Sandbox,
        contender: &'a Contender,
        tag: &str,
        chained: &[(&str, Value)],
    ) -> Result<Self> {
        let label = format!("{}-{tag}", contender.name);
        let mut bridge = json!({
            "bridge": "cnibench0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
            "ipam": {
                "type": "host-local", "dataDir": sandbox.state_dir().join(&label),
                "ranges": [[{"subnet": SUBNET}]], "routes": [{"dst": "0.0.0.0/0"}],
            },
        });
        if let (Some(backend), Some(bridge)) = (contender.backend, bridge.as_object_mut()) {
            bridge.insert("ipMasqBackend".into(), backend.into());
        }
        let mut plugins = vec![Plugin::new("bridge", &bridge)];
        plugins.extend(chained.iter().map(|(kind, config)| Plugin::new(kind, config)));
        let namespace = Namespace::new(&label)?;
        Ok(Node { contender, label, namespace, plugins, namespaces: Vec::new(), pods: 0 })
    }

    /// Calls one plugin of the chain for a pod, and returns its result.
    pub(crate) fn call(
        &self,
        plugin: usize,
        verb: &str,
        pod: &Pod,
        ports: &[u16],
        prev: Option<&Value>,
    ) -> Result<(Value, Run)> {
        let Plugin { kind, config } = self.plugins.get(plugin).ok_or("no such plugin")?;
        let mut config = config.clone();
        if kind == "portmap" {
            let mappings = ports
                .iter()
                .map(|port| json!({"hostPort": port, "containerPort": CONTAINER_PORT, "protocol": "tcp"}));
            let mappings: Vec<Value> = mappings.collect();
            config.insert("runtimeConfig".into(), json!({"portMappings": mappings}));
        }
        if let Some(prev) = prev {
            config.insert("prevResult".into(), prev.clone());
        }
        let mut command = Command::new(self.contender.dir.join(kind));
        command
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", format!("{:064x}", pod.number))
            .env("CNI_NETNS", &pod.netns)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", &self.contender.dir);
        self.namespace.enter()?;
        let (output, run) = process::timed(command, Value::from(config).to_string().as_bytes())
            .map_err(|err| format!("{kind} {verb}: {err}"))?;
        let result = if output.is_empty() { Value::Null } else { serde_json::from_slice(&output)? };
        Ok((result, run))
    }

    /// Returns a pod that is not added yet.
    pub(crate) fn pod(&mut self) -> Result<Pod> {
        let number = self.namespaces.len();
        let namespace = Namespace::new(&format!("{}-{number}", self.label))?;
        let netns = namespace.path().to_owned();
        self.namespaces.push(namespace);
        Ok(Pod { number, netns, result: Value::Null })
    }

    pub(crate) fn name(&self) -> &'a str {
        &self.contender.name
    }

    pub(crate) fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Adds a pod with one port.
    pub(crate) fn populate(&mut self) -> Result<Pod> {
        Ok(self.add()?.0)
    }

    /// Adds a pod with one port, and deletes it.
    pub(crate) fn life(&mut self) -> Result<(Run, Run)> {
        let (pod, add) = self.add()?;
        Ok((add.all, self.del(&pod)?.into_iter().sum()))
    }

    fn add(&mut self) -> Result<(Pod, Times)> {
        let mut pod = self.pod()?;
        let ports = ports(&pod)?;
        let mut times = Vec::new();
        for plugin in 0..self.plugins.len() {
            let prev = Some(&pod.result).filter(|result| !result.is_null());
            let (result, time) = self.call(plugin, "ADD", &pod, &ports, prev)?;
            times.push(time);
            pod.result = result;
        }
        let first = times.first().copied().ok_or("the chain is empty")?;
        Ok((pod, Times { all: times.into_iter().sum(), first }))
    }

    /// Calls DEL of each plugin, the last one first.
    fn del(&self, pod: &Pod) -> Result<Vec<Run>> {
        let ports = ports(pod)?;
        let turns = (0..self.plugins.len()).rev();
        turns.map(|plugin| Ok(self.call(plugin, "DEL", pod, &ports, Some(&pod.result))?.1)).collect()
    }
}

/// Returns the pod's port on the node, which leads to [`CONTAINER_PORT`].
pub(crate) fn ports(pod: &Pod) -> Result<[u16; 1]> {
    Ok([10_000 + u16::try_from(pod.number)?])
}

pub(crate) fn measure(args: &Args, sandbox: &Sandbox, report: &mut Report) -> Result<()> {
    let rounds = (args.samples / 2).max(5);
    let mut nodes = args
        .plugins()
        .map(|contender| Node::new(sandbox, contender, "chain", &CHAINED.map(|kind| (kind, Value::Null))))
        .collect::<Result<Vec<_>>>()?;
    let mut netavark = args.netavark.as_deref().map(|file| netavark::Node::new(sandbox, file)).transpose()?;
    for pods in sizes(args) {
        announce(&format!("chain, {pods} pods"));
        for node in &mut nodes {
            while node.pods < pods {
                progress(&format!("chain: {} has {} of {pods} pods", node.contender.name, node.pods));
                node.add()?;
                node.pods += 1;
            }
        }
        let mut rows: Vec<([Row; 3], Vec<Row>)> = nodes
            .iter()
            .map(|node| {
                let row = |what| Row::new("chain", what, &node.contender.name);
                let parts = CHAINED.iter().rev().map(|kind| row(part_name(kind, pods))).collect();
                ([add_name(pods), del_name(pods), bridge_name(pods)].map(row), parts)
            })
            .collect();
        // netavark's node has one pod.
        let mut third = netavark.as_mut().filter(|_| pods == 1).map(|node| {
            (node, [add_name(pods), del_name(pods)].map(|what| Row::new("chain", what, netavark::NAME)))
        });
        for round in 0..=rounds {
            progress(&format!("chain, {pods} pods: round {round} of {rounds}"));
            let mut turns: Vec<_> = nodes.iter_mut().zip(&mut rows).collect();
            if round % 2 == 1 {
                turns.reverse();
            }
            for (node, ([adds, dels, bridges], parts)) in turns {
                let (pod, add) = node.add()?;
                let del = node.del(&pod)?;
                // The first run has cold kernel caches.
                if round > 0 {
                    adds.push(&add.all);
                    dels.push(&del.iter().copied().sum());
                    for (part, time) in parts.iter_mut().zip(&del) {
                        part.push(time);
                    }
                    bridges.push(&add.first);
                }
            }
            if let Some((node, [adds, dels])) = &mut third {
                let (add, del) = node.life()?;
                if round > 0 {
                    adds.push(&add);
                    dels.push(&del);
                }
            }
        }
        report.rows.extend(third.into_iter().flat_map(|(_, rows)| rows));
        report.rows.extend(rows.into_iter().flat_map(|(whole, parts)| whole.into_iter().chain(parts)));
    }
    ten::measure(args, sandbox, report)
}

/// Returns the numbers of pods that exist before a measurement.
pub(crate) fn sizes(args: &Args) -> Vec<usize> {
    let most = args.pods.last().copied().unwrap_or(1).min(MOST);
    if most > 1 { vec![1, most] } else { vec![1] }
}

pub(crate) fn add_name(pods: usize) -> String {
    format!("ADD of the chain, {pods} pods")
}

pub(crate) fn del_name(pods: usize) -> String {
    format!("DEL of the chain, {pods} pods")
}

pub(crate) fn part_name(kind: &str, pods: usize) -> String {
    format!("DEL of the chain's {kind} alone, {pods} pods")
}

pub(crate) fn bridge_name(pods: usize) -> String {
    format!("ADD of the chain's bridge alone, {pods} pods")
}
