//! Hosts and pods: network namespaces in a mount namespace of our own.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use serde_json::{Value, json};

use crate::{Contender, Result, Scenario};

/// Where the namespaces are kept; only this process sees it.
const NAMESPACES: &str = "/run/cnimble-bench";

/// This process, cut off from the machine's network and mounts.
pub(crate) struct Sandbox {
    state_dir: PathBuf,
}

impl Sandbox {
    /// Leaves the machine's namespaces. `/run` becomes empty, so that neither locks
    /// (`/run/xtables.lock`) nor names are shared with anybody.
    pub(crate) fn enter(state_dir: &Path) -> Result<Self> {
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)?;
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
        mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::empty(), none)?;
        std::fs::create_dir(NAMESPACES)?;
        let state_dir = state_dir.join(format!("cnimble-bench-{}", std::process::id()));
        std::fs::create_dir_all(&state_dir)?;
        Ok(Sandbox { state_dir })
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.state_dir);
    }
}

/// A network namespace with a name in the file system, as runtimes make them.
struct Namespace {
    path: PathBuf,
}

impl Namespace {
    fn new(name: &str) -> Result<Self> {
        let path = Path::new(NAMESPACES).join(name);
        File::create(&path)?;
        let target = path.clone();
        // A thread that ends takes its way into the namespace along, and we stay outside.
        std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET)?;
            mount(Some("/proc/thread-self/ns/net"), &target, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        })
        .join()
        .map_err(|_| "making a namespace panicked")??;
        Ok(Namespace { path })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = umount2(&self.path, MntFlags::MNT_DETACH);
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A way to run a plugin; see [`crate::process`].
type Runner<T> = fn(Command, &[u8]) -> Result<(Vec<u8>, T)>;

/// One contender's host.
pub(crate) struct Host<'a> {
    contender: &'a Contender,
    scenario: Scenario,
    namespace: Namespace,
    config: Value,
    leases: PathBuf,
    /// The pods that are there, and those of the samples: kept until the end, so that the
    /// kernel doesn't take namespaces apart while the clock runs.
    namespaces: Vec<Namespace>,
    pods: usize,
}

impl<'a> Host<'a> {
    pub(crate) fn new(sandbox: &Sandbox, contender: &'a Contender, scenario: &Scenario) -> Result<Self> {
        const NETWORK: &str = "bench";
        let data_dir = sandbox.state_dir.join(format!("{}-{}", contender.name, scenario.name));
        let mut ranges = vec![json!([{"subnet": "10.99.0.0/16"}])];
        let mut routes = vec![json!({"dst": "0.0.0.0/0"})];
        if scenario.dual_stack {
            ranges.push(json!([{"subnet": "fd99::/64"}]));
            routes.push(json!({"dst": "::/0"}));
        }
        let config = json!({
            // The newest that plugins from Debian 12 speak.
            "cniVersion": "1.0.0",
            "name": NETWORK,
            "type": "bridge",
            "bridge": "cnibench0",
            "isGateway": true,
            "ipMasq": scenario.masquerade,
            "ipam": {"type": "host-local", "dataDir": data_dir, "ranges": ranges, "routes": routes},
        });
        Ok(Host {
            namespace: Namespace::new(&format!("{}-{}", contender.name, scenario.name))?,
            contender,
            scenario: *scenario,
            config,
            leases: data_dir.join(NETWORK),
            namespaces: Vec::new(),
            pods: 0,
        })
    }

    pub(crate) fn name(&self) -> &'a str {
        &self.contender.name
    }

    /// How many pods are there.
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

    /// Adds a pod and deletes it.
    pub(crate) fn add_and_del<T>(&mut self, runner: Runner<T>) -> Result<(T, T)> {
        let pod = self.new_pod()?;
        let (result, add) = self.run(runner, "ADD", &pod, None)?;
        self.check_result(&result)?;
        let (_, del) = self.run(runner, "DEL", &pod, Some(result))?;
        Ok((add, del))
    }

    /// Whether exactly the pods that stay have leases.
    pub(crate) fn verify(&self) -> Result<()> {
        let mut leases = 0;
        for entry in std::fs::read_dir(&self.leases)? {
            let name = entry?.file_name();
            leases += usize::from(name.to_string_lossy().parse::<std::net::IpAddr>().is_ok());
        }
        let expected = self.pods * self.addresses();
        if leases == expected {
            return Ok(());
        }
        Err(format!("{}: {leases} leases in {} instead of {expected}", self.name(), self.leases.display())
            .into())
    }

    /// How many addresses a pod gets.
    fn addresses(&self) -> usize {
        1 + usize::from(self.scenario.dual_stack)
    }

    fn new_pod(&mut self) -> Result<Pod> {
        let number = self.namespaces.len();
        let namespace = Namespace::new(&format!("{}-{}-{number}", self.contender.name, self.scenario.name))?;
        let path = namespace.path.clone();
        self.namespaces.push(namespace);
        Ok(Pod { container_id: format!("{number:064x}"), netns: path })
    }

    fn check_result(&self, result: &Value) -> Result<()> {
        match result.get("ips").and_then(Value::as_array) {
            Some(ips) if ips.len() == self.addresses() => Ok(()),
            _ => Err(format!("{}: wrong number of addresses in {result}", self.name()).into()),
        }
    }

    /// Runs the plugin as a runtime on this host would.
    fn run<T>(
        &self,
        runner: Runner<T>,
        verb: &str,
        pod: &Pod,
        prev_result: Option<Value>,
    ) -> Result<(Value, T)> {
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
        // Children start in the namespace of the thread that spawns them.
        setns(File::open(&self.namespace.path)?, CloneFlags::CLONE_NEWNET)?;
        let (output, figure) =
            runner(command, config.to_string().as_bytes()).map_err(|err| format!("{verb}: {err}"))?;
        let result = match output.is_empty() {
            true => Value::Null,
            false => serde_json::from_slice(&output)?,
        };
        Ok((result, figure))
    }
}

struct Pod {
    container_id: String,
    netns: PathBuf,
}
