//! Hosts and their pods.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::process::Run;
use crate::sandbox::{Namespace, Sandbox};
use crate::{Contender, Result, Scenario};

/// A way to run a plugin (see [`crate::process`]).
type Runner<T> = fn(Command, &[u8]) -> Result<(Vec<u8>, T)>;

/// The host of one contender.
pub(crate) struct Host<'a> {
    contender: &'a Contender,
    scenario: Scenario,
    /// A name that no other host of this run has.
    label: String,
    namespace: Namespace,
    config: Value,
    leases: PathBuf,
    /// The namespaces of the pods and of the samples. They are kept until the end, so that the kernel doesn't remove
    /// namespaces during a measurement.
    namespaces: Vec<Namespace>,
    pods: usize,
    /// The index of the bridge, which only the floor needs.
    bridge: String,
}

/// The outcome of many concurrent calls.
#[derive(Debug)]
pub(crate) struct Burst {
    pub(crate) wall: Duration,
    /// The time of each call.
    pub(crate) calls: Vec<Duration>,
    pub(crate) errors: Vec<String>,
    /// The number of addresses that more than one pod got.
    pub(crate) duplicates: usize,
}

impl<'a> Host<'a> {
    /// Returns a host for measurement `tag`.
    pub(crate) fn named(
        sandbox: &Sandbox,
        contender: &'a Contender,
        scenario: &Scenario,
        tag: &str,
    ) -> Result<Self> {
        const NETWORK: &str = "bench";
        let name = format!("{}-{}-{tag}", contender.name, scenario.name);
        let data_dir = sandbox.state_dir().join(&name);
        let mut ranges = vec![json!([{"subnet": "10.99.0.0/16"}])];
        let mut routes = vec![json!({"dst": "0.0.0.0/0"})];
        if scenario.dual_stack {
            ranges.push(json!([{"subnet": "fd99::/64"}]));
            routes.push(json!({"dst": "::/0"}));
        }
        let config = json!({
            // The newest version that plugins from Debian 12 support.
            "cniVersion": "1.0.0",
            "name": NETWORK,
            "type": "bridge",
            "bridge": "cnibench0",
            "isGateway": true,
            "ipMasq": scenario.masquerade,
            "ipam": {"type": "host-local", "dataDir": data_dir, "ranges": ranges, "routes": routes},
        });
        let mut host = Host {
            namespace: Namespace::new(&name)?,
            label: name,
            contender,
            scenario: *scenario,
            config,
            leases: data_dir.join(NETWORK),
            namespaces: Vec::new(),
            pods: 0,
            bridge: String::new(),
        };
        if contender.floor {
            host.set_up_floor()?;
        }
        Ok(host)
    }

    /// Creates the bridge, which plugins create themselves.
    fn set_up_floor(&mut self) -> Result<()> {
        let mut command = Command::new(&self.contender.dir);
        command.args(["setup", "cnibench0", "10.99.0.1/16"]);
        if self.scenario.dual_stack {
            command.arg("fd99::1/64");
        }
        self.namespace.enter()?;
        let (output, _) = crate::process::timed(command, b"")?;
        self.bridge = String::from_utf8(output)?.trim().to_owned();
        Ok(())
    }

    pub(crate) fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    pub(crate) fn config(&self) -> &Value {
        &self.config
    }

    pub(crate) fn name(&self) -> &'a str {
        &self.contender.name
    }

    /// Returns the number of pods.
    pub(crate) fn pods(&self) -> usize {
        self.pods
    }

    /// Adds one pod that stays.
    pub(crate) fn populate(&mut self) -> Result<()> {
        let pod = self.new_pod()?;
        let (result, _) = self.run(crate::process::timed, "ADD", &pod, None)?;
        self.check_result(&result)?;
        self.pods += 1;
        Ok(())
    }

    /// Returns `count` pods that the caller adds and deletes.
    pub(crate) fn new_pods(&mut self, count: usize) -> Result<Vec<Pod>> {
        (0..count).map(|_| self.new_pod()).collect()
    }

    /// Adds the pods concurrently. Returns the result of each, which is null for one that failed.
    pub(crate) fn add_at_once(&self, pods: &[Pod]) -> Result<(Burst, Vec<Value>)> {
        let calls = pods.iter().map(|pod| self.command("ADD", pod, None)).collect();
        let (mut add, outputs) = self.at_once(calls)?;
        let (mut results, mut addresses) = (Vec::new(), Vec::new());
        for output in outputs {
            let result = match output {
                Some(output) => serde_json::from_slice(&output)?,
                None => Value::Null,
            };
            if !result.is_null() {
                self.check_result(&result)?;
            }
            let ips = result.get("ips").and_then(Value::as_array).into_iter().flatten();
            addresses.extend(ips.filter_map(|ip| Some(ip.get("address")?.to_string())));
            results.push(result);
        }
        let all = addresses.len();
        addresses.sort_unstable();
        addresses.dedup();
        add.duplicates = all - addresses.len();
        Ok((add, results))
    }

    /// Deletes the pods concurrently.
    pub(crate) fn del_at_once(&self, pods: &[Pod], results: Vec<Value>) -> Result<Burst> {
        let with =
            |(pod, result): (&Pod, Value)| self.command("DEL", pod, Some(result).filter(|it| !it.is_null()));
        Ok(self.at_once(pods.iter().zip(results).map(with).collect())?.0)
    }

    /// Runs the calls concurrently. Returns the output of each that succeeds.
    fn at_once(&self, calls: Vec<(Command, Vec<u8>)>) -> Result<(Burst, Vec<Option<Vec<u8>>>)> {
        self.namespace.enter()?;
        let (ends, wall) = crate::process::burst(calls)?;
        let calls = ends.iter().map(|end| end.wall).collect();
        let mut burst = Burst { wall, calls, errors: Vec::new(), duplicates: 0 };
        let keep =
            |end: crate::process::Call| end.output.map_err(|err| burst.errors.push(err.to_string())).ok();
        let outputs = ends.into_iter().map(keep).collect();
        Ok((burst, outputs))
    }

    /// Returns a pod that the caller adds and deletes.
    pub(crate) fn pod(&mut self) -> Result<Pod> {
        self.new_pod()
    }

    /// Runs ADD and measures it.
    pub(crate) fn add(&self, pod: &Pod) -> Result<(Value, Run)> {
        self.run(crate::process::timed, "ADD", pod, None)
    }

    /// Runs DEL and measures it.
    pub(crate) fn del(&self, pod: &Pod, result: Value) -> Result<Run> {
        Ok(self.run(crate::process::timed, "DEL", pod, Some(result))?.1)
    }

    /// Adds a pod and deletes it.
    pub(crate) fn add_and_del<T>(&mut self, runner: Runner<T>) -> Result<(Measured<T>, Measured<T>)> {
        let pod = self.new_pod()?;
        let (result, add) = self.run(runner, "ADD", &pod, None)?;
        self.check_result(&result)?;
        let kernel_ns = result.as_u64();
        let (output, del) = self.run(runner, "DEL", &pod, Some(result))?;
        Ok((Measured { figure: add, kernel_ns }, Measured { figure: del, kernel_ns: output.as_u64() }))
    }

    /// Checks that exactly the pods that stay have leases.
    pub(crate) fn verify(&self) -> Result<()> {
        if self.contender.floor {
            return Ok(());
        }
        let leases = self.leases()?;
        let expected = self.pods * self.addresses();
        if leases == expected {
            return Ok(());
        }
        Err(format!("{}: {leases} leases in {} instead of {expected}", self.name(), self.leases.display())
            .into())
    }

    /// Returns the number of leases.
    pub(crate) fn leases(&self) -> Result<usize> {
        let mut leases = 0;
        for entry in std::fs::read_dir(&self.leases)? {
            let name = entry?.file_name();
            leases += usize::from(name.to_string_lossy().parse::<std::net::IpAddr>().is_ok());
        }
        Ok(leases)
    }

    /// Returns the number of addresses of a pod.
    fn addresses(&self) -> usize {
        1 + usize::from(self.scenario.dual_stack)
    }

    fn new_pod(&mut self) -> Result<Pod> {
        let number = self.namespaces.len();
        let namespace = Namespace::new(&format!("{}-{number}", self.label))?;
        let path = namespace.path().to_owned();
        self.namespaces.push(namespace);
        Ok(Pod { number, container_id: format!("{number:064x}"), netns: path })
    }

    fn check_result(&self, result: &Value) -> Result<()> {
        if self.contender.floor {
            return Ok(());
        }
        match result.get("ips").and_then(Value::as_array) {
            Some(ips) if ips.len() == self.addresses() => Ok(()),
            _ => Err(format!("{}: wrong number of addresses in {result}", self.name()).into()),
        }
    }

    /// Runs the plugin on this host.
    fn run<T>(
        &self,
        runner: Runner<T>,
        verb: &str,
        pod: &Pod,
        prev_result: Option<Value>,
    ) -> Result<(Value, T)> {
        let (command, stdin) = self.command(verb, pod, prev_result);
        self.namespace.enter()?;
        let (output, figure) = runner(command, &stdin).map_err(|err| format!("{verb}: {err}"))?;
        let result = if output.is_empty() { Value::Null } else { serde_json::from_slice(&output)? };
        Ok((result, figure))
    }

    /// Returns the call that a runtime on this host would make, and its stdin.
    pub(crate) fn command(&self, verb: &str, pod: &Pod, prev_result: Option<Value>) -> (Command, Vec<u8>) {
        if self.contender.floor {
            return (self.floor_command(verb, pod), Vec::new());
        }
        let mut config = self.config.clone();
        if let (Some(result), Some(config)) = (prev_result, config.as_object_mut()) {
            config.insert("prevResult".into(), result);
        }
        let mut command = Command::new(self.contender.dir.join("bridge"));
        command
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", &pod.container_id)
            .env("CNI_NETNS", &pod.netns)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", &self.contender.dir);
        if self.contender.waits {
            command.env("CNIMBLE_DEL_WAIT", "1");
        }
        (command, config.to_string().into_bytes())
    }

    fn floor_command(&self, verb: &str, pod: &Pod) -> Command {
        let mut command = Command::new(&self.contender.dir);
        let (name, host) = (format!("v{}", pod.number), pod.number + 2);
        if verb == "DEL" {
            command.args(["del", &name]);
            return command;
        }
        command.arg("add").arg(&pod.netns).args([&self.bridge, &name]);
        command.args([&format!("10.99.{}.{}/16", host >> 8, host & 255), "10.99.0.1"]);
        if self.scenario.dual_stack {
            command.args([&format!("fd99::{host:x}/64"), "fd99::1"]);
        }
        command
    }
}

/// A figure of one verb.
pub(crate) struct Measured<T> {
    pub(crate) figure: T,
    /// The kernel's share of the time, as reported by the floor.
    pub(crate) kernel_ns: Option<u64>,
}

pub(crate) struct Pod {
    number: usize,
    pub(crate) container_id: String,
    pub(crate) netns: PathBuf,
}
