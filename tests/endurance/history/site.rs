//! The node: its networks, its processes, and the kills.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use cnimble_tests::{LIMIT, Node, command, run_beside};

use super::log::{Facts, Log, Meaning, Outcome};
use super::plan::{Kill, Net, Target};
use crate::chain::Set;

/// A node with three networks for the workers and one for pods.
pub(crate) struct Site {
    pub(crate) node: Node,
    pub(crate) log: Log,
    pub(crate) go: Option<&'static Path>,
}

/// The directory of the networks, for everything that doesn't use the first file.
const CONF: &str = "/etc/cni/net.d";

impl Net {
    pub(crate) const ALL: [Net; 4] = [Net::Own, Net::Mixed, Net::Listed, Net::Pods];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Net::Own => "own",
            Net::Mixed => "mixed",
            Net::Listed => "listed",
            Net::Pods => "pods",
        }
    }

    /// Returns the plugins, each with masquerading and ports, on a separate bridge.
    pub(crate) fn plugins(self) -> Vec<Value> {
        let ranges = match self {
            Net::Own => json!([[{"subnet": "10.216.0.0/18"}], [{"subnet": "fd00:216::/64"}]]),
            Net::Mixed => json!([[{"subnet": "10.216.64.0/18"}]]),
            Net::Listed => json!([[{"subnet": "10.216.128.0/18"}]]),
            Net::Pods => json!([[{"subnet": "10.216.192.0/18"}]]),
        };
        let bridge = json!({
            "type": "bridge", "bridge": self.bridge(), "isGateway": true, "ipMasq": true,
            "ipam": {"type": "host-local", "ranges": ranges},
        });
        vec![bridge, json!({"type": "portmap", "capabilities": {"portMappings": true}})]
    }

    pub(crate) fn bridge(self) -> String {
        format!("br-{}", self.name())
    }

    /// Returns the version that both sets support, or the one with GC where it is used.
    pub(crate) fn version(self) -> &'static str {
        if self == Net::Listed { "1.1.0" } else { "1.0.0" }
    }
}

impl Site {
    pub(crate) fn new(log: Log, go: Option<&'static Path>) -> Self {
        let node = Node::new();
        let site = Site { node, log, go };
        // The first file is the node's default network.
        for (number, net) in [(10, Net::Pods), (20, Net::Own), (20, Net::Mixed), (20, Net::Listed)] {
            let list = json!({"cniVersion": net.version(), "name": net.name(), "plugins": net.plugins()})
                .to_string();
            site.put(&format!("{CONF}/{number}-{}.conflist", net.name()), &list);
        }
        // As containerd and CRI-O require it for ports.
        site.node.set_sysctl("ipv4/ip_forward", "1");
        site
    }

    /// Returns the path of a node's file for the test.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.node.path(path)
    }

    /// Writes a file of the node atomically.
    pub(crate) fn put(&self, path: &str, text: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let new = path.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, path).unwrap();
    }

    pub(crate) fn plugins(&self, set: Set) -> &Path {
        match set {
            Set::Ours => Path::new("/opt/cni/bin"),
            Set::Go => self.go.expect("the plan knows whether there are Go plugins"),
        }
    }

    /// Returns the command `cnimble ARGS…` on the node.
    pub(crate) fn cnimble(&self, set: Set, args: &[&str]) -> Command {
        let mut cnimble = self.node.command(command().to_str().unwrap());
        cnimble.args(args).env("CNI_PATH", self.plugins(set)).env("NETCONFPATH", CONF);
        cnimble
    }

    /// Runs an operation to its end, and logs both. `told` gets the output.
    pub(crate) fn operate(
        &self,
        by: &Operation<'_>,
        command: &mut Command,
        told: impl FnOnce(&str) -> Facts,
    ) -> bool {
        let begun = self.log.begin(by.actor, by.meaning, by.who, &by.what);
        let (outcome, text) = run(command, "", by.kill);
        let outcome = outcome.of(by.set);
        let good = outcome == Outcome::Done;
        let told = if good { told(&text) } else { Facts::new() };
        self.log.end(begun, outcome, told);
        good
    }
}

/// An operation to be run.
pub(crate) struct Operation<'o> {
    pub(crate) actor: &'o str,
    pub(crate) meaning: Meaning,
    pub(crate) who: &'o str,
    pub(crate) what: String,
    pub(crate) kill: Option<Kill>,
    /// The set of plugins that it uses.
    pub(crate) set: Set,
}

/// Runs a command, and kills it or one of its plugins if that is planned. Returns the outcome and the output.
pub(crate) fn run(command: &mut Command, stdin: &str, kill: Option<Kill>) -> (Outcome, String) {
    let mut killed = None;
    let is_doctor = command.get_args().any(|argument| argument == "doctor");
    let output = run_beside(command, stdin.as_bytes(), LIMIT, |pid| {
        killed = kill.and_then(|kill| strike(pid, kill));
    });
    let output = match output {
        Ok(output) => output,
        Err(slow) => return (Outcome::Failed(slow), String::new()),
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let status = output.status;
    let why = || format!("{status}: {} {}", text.trim(), String::from_utf8_lossy(&output.stderr).trim());
    let outcome = match killed {
        _ if status.success() => Outcome::Done,
        // The doctor has left something alone, such as a part of a pod that comes or goes at this moment.
        _ if is_doctor && status.code() == Some(6) => Outcome::Done,
        Some(name) => Outcome::Killed(format!("{name}; {}", why())),
        None => Outcome::Failed(why()),
    };
    (outcome, text)
}

/// Waits, and kills the target among the process's descendants. Returns its name if it was found.
fn strike(root: u32, kill: Kill) -> Option<String> {
    std::thread::sleep(Duration::from_millis(kill.after));
    // A plugin may be about to start.
    let end = Instant::now() + Duration::from_millis(50);
    loop {
        let below = below(root);
        let is_command = |name: &str| name == "cnimble";
        let is_tool = |name: &str| ["nsenter", "unshare", "env"].contains(&name);
        let found = below.iter().find(|(_, name)| match kill.target {
            Target::Command => is_command(name),
            Target::Plugin => !is_command(name) && !is_tool(name),
        });
        if let Some((pid, name)) = found {
            let pid = nix::unistd::Pid::from_raw(*pid);
            return nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL)
                .is_ok()
                .then(|| name.clone());
        }
        if below.is_empty() || Instant::now() > end {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the process and its descendants, with the names of their programs.
fn below(root: u32) -> Vec<(i32, String)> {
    let mut found = Vec::new();
    let mut todo = vec![root];
    while let Some(pid) = todo.pop() {
        if let Ok(program) = std::fs::read_link(format!("/proc/{pid}/exe")) {
            let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
            found.push((i32::try_from(pid).unwrap(), name));
        }
        for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            todo.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
    }
    found
}
