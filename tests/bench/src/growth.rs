//! Measures the command on a node that gets more and more pods. `add`, `check` and `del` are of one more pod, and `gc`
//! finds nothing dead. `doctor --repair` follows a flush of the ruleset. The network has bridge with ipMasq, portmap with
//! one port, and firewall.

use std::path::PathBuf;
use std::process::Command;

use serde_json::json;

use crate::args::Args;
use crate::process::{Run, timed_quietly};
use crate::report::{Report, Row};
use crate::sandbox::{Namespace, Sandbox};
use crate::{Contender, Result, announce, progress};

const VERBS: [&str; 7] = ["add", "check", "del", "gc", "tree", "doctor", "doctor --repair"];
/// The seconds that a file must be old for the doctor to judge it.
const GRACE: &str = "0";

/// A node, and its attached pods.
struct Node<'a> {
    command: &'a std::path::Path,
    contender: &'a Contender,
    namespace: Namespace,
    dir: PathBuf,
    /// Kept until the end, so that the kernel doesn't remove namespaces during a measurement.
    namespaces: Vec<Namespace>,
    attached: Vec<usize>,
}

pub(crate) fn measure(args: &Args, sandbox: &Sandbox, report: &mut Report) -> Result<()> {
    let Some(command) = &args.cnimble else { return Err("the section growth needs --cnimble".into()) };
    let Some(contender) = args.plugins().last() else { return Ok(()) };
    let mut node = Node {
        command,
        contender,
        namespace: Namespace::new("growth")?,
        dir: sandbox.state_dir().join("growth"),
        namespaces: Vec::new(),
        attached: Vec::new(),
    };
    node.set_up()?;
    let rounds = (args.samples / 2).max(5);
    for pods in args.pods.iter().copied() {
        announce(&format!("growth, {pods} pods"));
        while node.attached.len() < pods {
            progress(&format!("growth: {} of {pods} pods", node.attached.len()));
            let pod = node.pod()?;
            node.of_pod("add", pod)?;
            node.attached.push(pod);
        }
        node.list()?;
        let mut rows = VERBS.map(|verb| {
            let what = format!("cnimble {verb}");
            Row::new("growth", format!("{what}, {pods} pods"), &contender.name).at(&what, "pods", pods)
        });
        for round in 0..=rounds {
            progress(&format!("growth, {pods} pods: round {round} of {rounds}"));
            let runs = node.round()?;
            // The first round has cold kernel caches.
            for (row, run) in rows.iter_mut().zip(runs).filter(|_| round > 0) {
                row.push(&run);
            }
        }
        report.rows.extend(rows);
    }
    drop(node);
    sandbox.settle()
}

impl Node<'_> {
    /// Writes the network.
    fn set_up(&self) -> Result<()> {
        std::fs::create_dir_all(self.dir.join("net.d"))?;
        let network = json!({"cniVersion": "1.1.0", "name": "growth", "plugins": [
            {"type": "bridge", "bridge": "cnibench0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
                "ipam": {"type": "host-local", "dataDir": self.dir.join("leases"),
                    "ranges": [[{"subnet": "10.99.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "firewall"},
        ]});
        Ok(std::fs::write(self.dir.join("net.d/growth.conflist"), network.to_string())?)
    }

    /// Returns the number of a pod that isn't attached.
    fn pod(&mut self) -> Result<usize> {
        let number = self.namespaces.len();
        self.namespaces.push(Namespace::new(&format!("growth-{number}"))?);
        Ok(number)
    }

    /// Writes the list of attachments for `gc`.
    fn list(&self) -> Result<()> {
        let valid: Vec<_> =
            self.attached.iter().map(|pod| json!({"containerID": id(*pod), "ifname": "eth0"})).collect();
        Ok(std::fs::write(self.dir.join("valid"), json!(valid).to_string())?)
    }

    fn round(&mut self) -> Result<[Run; 7]> {
        let pod = self.pod()?;
        let [add, check, del] = ["add", "check", "del"].map(|verb| self.of_pod(verb, pod));
        let (add, check, del) = (add?, check?, del?);
        let gc = self.run(&["gc", "growth", "--valid-file", &self.file("valid")])?;
        let tree = self.run(&["tree"])?;
        let doctor = ["doctor", "--grace", GRACE, "--data-dir", &self.file("leases")];
        let looked = self.run(&doctor)?;
        self.flush()?;
        let repaired = self.run(&[doctor.as_slice(), &["--repair"]].concat())?;
        Ok([add, check, del, gc, tree, looked, repaired])
    }

    /// Removes all rules of the node.
    fn flush(&self) -> Result<()> {
        self.namespace.enter()?;
        if Command::new("nft").args(["flush", "ruleset"]).status()?.success() {
            Ok(())
        } else {
            Err("nft flush ruleset failed".into())
        }
    }

    fn of_pod(&self, verb: &str, pod: usize) -> Result<Run> {
        let namespace = self.namespaces.get(pod).ok_or("no such pod")?.path().to_string_lossy();
        let ports =
            json!({"portMappings": [{"hostPort": 10_000 + pod, "containerPort": 80, "protocol": "tcp"}]});
        let (id, ports) = (id(pod), ports.to_string());
        self.run(&[verb, "growth", &namespace, "--container-id", &id, "--cap-args", &ports])
    }

    fn run(&self, arguments: &[&str]) -> Result<Run> {
        let mut command = Command::new(self.command);
        command.args(arguments).arg("--cni-path").arg(&self.contender.dir);
        command.args(["--conf-dir", &self.file("net.d"), "--cache-dir", &self.file("cache")]);
        self.namespace.enter()?;
        timed_quietly(command)
    }

    fn file(&self, name: &str) -> String {
        self.dir.join(name).to_string_lossy().into_owned()
    }
}

fn id(pod: usize) -> String {
    format!("{pod:064x}")
}
