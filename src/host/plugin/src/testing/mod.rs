//! A harness for the tests of a plugin. Needs root, and the feature `testing`.
//!
//! A [`Trial`] runs the plugin's executable in a network namespace that stands for the host, with another one as the
//! pod. In each call `/run` and `/var/lib` are directories of the trial, which are empty at first. All of it ends with
//! the trial, so nothing of the machine changes, and trials do not meet each other.
//!
//! The harness looks at what a plugin can leave behind with `ip`, `bridge` and `tc` (iproute2) and `nft`.
//!
//! ```no_run
//! use cnimble_plugin::testing::Trial;
//! use cnimble_plugin::cni::serde_json::json;
//!
//! // In a test of a package: env!("CARGO_BIN_EXE_anycast").
//! let trial = Trial::chained("target/debug/anycast", json!({"address": "192.0.2.80/32"}));
//! trial.walk();
//! trial.kill_at_each_step();
//! ```
// A test stops at the first surprise.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod directories;
mod state;

use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command as Process, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use serde_json::{Value, json};

use cnimble_cni::{Attachment, CniResult, Code, Error, Interface, IpConfig, Owner, Verb, Version, cidr};
use cnimble_netlink::link::{self, Change, NewVeth};
use cnimble_netlink::{NetNs, Netlink, addr};
use cnimble_os::files::begun;

use directories::Directories;
use state::State;

const NETWORK: &str = "trial";
const IFNAME: &str = "eth0";
const VETH: &str = "veth-trial";
const ADDRESS: &str = "192.0.2.2/24";

/// The pauses in milliseconds before a state that differs is looked at again.
const PAUSES: [u64; 3] = [50, 350, 1500];

/// A plugin, its configuration, two namespaces, and the directories that it writes to.
pub struct Trial {
    program: PathBuf,
    config: Value,
    container: String,
    directories: Directories,
    host: NetNs,
    pod: NetNs,
    prev: Option<CniResult>,
}

impl Trial {
    /// A trial of the plugin in the file `program`. The file has the plugin's type as its name. `config` has its own keys.
    ///
    /// # Panics
    /// Panics without the privilege to make a namespace, as all methods do if something is not as it should be.
    pub fn new(program: impl Into<PathBuf>, config: Value) -> Self {
        static TRIALS: AtomicUsize = AtomicUsize::new(0);
        let number = TRIALS.fetch_add(1, Ordering::Relaxed);
        let trial = Trial {
            program: program.into(),
            config,
            container: format!("trial-{}-{number}", std::process::id()),
            directories: Directories::new(),
            host: NetNs::create().expect("a new network namespace: run the test as root"),
            pod: NetNs::create().unwrap(),
            prev: None,
        };
        for ns in [&trial.host, &trial.pod] {
            let mut netlink = Netlink::open_in(ns).unwrap();
            set_up(&mut netlink, "lo");
        }
        trial
    }

    /// Returns a trial with a previous plugin: the pod has `eth0` with an address, and calls have its result as
    /// prevResult.
    pub fn chained(program: impl Into<PathBuf>, config: Value) -> Self {
        let mut trial = Self::new(program, config);
        let mut host = Netlink::open_in(&trial.host).unwrap();
        let mut pod = Netlink::open_in(&trial.pod).unwrap();
        let veth = NewVeth {
            name: VETH,
            mac: None,
            master: None,
            up: true,
            mtu: None,
            peer_name: IFNAME,
            peer_mac: None,
            peer_ns: trial.pod.as_fd(),
        };
        host.execute(link::add_veth(&veth)).unwrap();
        set_up(&mut pod, IFNAME);
        let (outer, inner) = (host.link(VETH).unwrap(), pod.link(IFNAME).unwrap());
        let address = cidr::parse_cidr(ADDRESS).unwrap();
        pod.execute(addr::add(inner.index, IFNAME, address)).unwrap();
        let mut prev = CniResult::default();
        for (link, sandbox) in [(outer, String::new()), (inner, trial.netns())] {
            prev.interfaces.push(Interface::new(link.name, link.mac.unwrap().to_string(), sandbox));
        }
        let mut ip = IpConfig::new(address, None);
        ip.interface = Some(1);
        prev.ips.push(ip);
        trial.prev = Some(prev);
        trial
    }

    /// The namespace of the pod.
    pub fn pod(&self) -> &NetNs {
        &self.pod
    }

    /// The namespace that stands for the host.
    pub fn host(&self) -> &NetNs {
        &self.host
    }

    /// Calls a verb in a version, with this result as prevResult. Returns what the plugin printed.
    ///
    /// # Errors
    /// The error that the plugin printed.
    pub fn call(&self, verb: Verb, version: Version, prev: Option<&CniResult>) -> Result<String, Error> {
        let config = self.config(version, prev);
        let mut child = self.spawn(verb);
        write(&mut child, &config);
        answer(&child.wait_with_output().unwrap())
    }

    /// Walks through the plugin's contract in each version that it supports: ADD, CHECK, STATUS, GC that keeps the
    /// attachment, and DEL twice. Other versions are refused.
    ///
    /// Afterwards host and pod are as before: links, addresses, nexthops, routes, rules, permanent neighbours, forwarding
    /// and multicast entries, VLANs, traffic control, packet rules and sysctls, and files below `/run` and `/var/lib`.
    /// Connection tracking is not looked at, nor are IPsec, processes, locks, and files elsewhere.
    ///
    /// # Panics
    /// Panics at the first violation, and names what was left.
    pub fn walk(&self) {
        let versions = self.versions();
        for version in Version::ALL {
            if !versions.contains(version) {
                let refused = self.call(Verb::Add, *version, self.prev.as_ref());
                assert_eq!(refused.unwrap_err().code, Code::INCOMPATIBLE_VERSION, "ADD in {version}");
                continue;
            }
            let before = self.state();
            self.walk_through(*version);
            self.assert_state(&before, &format!("after ADD and DEL in {version}"));
        }
    }

    fn walk_through(&self, version: Version) {
        let answer = self.must(Verb::Add, version, self.prev.as_ref());
        let document: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(document.get("cniVersion"), Some(&json!(version.as_str())), "the result of ADD");
        let result = CniResult::from_value(&document, version, "result of ADD").unwrap();
        if version >= Version::V0_4_0 {
            self.must(Verb::Check, version, Some(&result));
        }
        if version >= Version::V1_1_0 {
            self.must(Verb::Status, version, None);
            self.must(Verb::Gc, version, None);
            self.must(Verb::Check, version, Some(&result));
        }
        self.must(Verb::Del, version, Some(&result));
        assert!(
            self.prev.is_none() || self.is_del_noted(),
            "a plugin behind another one has `Role::Chained`, because the departure goes on after its DEL"
        );
        self.must(Verb::Del, version, Some(&result));
    }

    /// Calls a verb and returns what it prints.
    ///
    /// # Panics
    /// Panics if the verb fails.
    fn must(&self, verb: Verb, version: Version, prev: Option<&CniResult>) -> String {
        self.call(verb, version, prev).unwrap_or_else(|err| panic!("{verb} in {version}: {err}"))
    }

    /// Kills ADD, and then DEL, after each of its system calls in turn. The next DEL leaves host and pod as before, as in
    /// [`Trial::walk`].
    ///
    /// # Panics
    /// Panics if that DEL fails or leaves something.
    pub fn kill_at_each_step(&self) {
        let version = *self.versions().last().expect("a version that both know");
        let before = self.state();
        for victim in [Verb::Add, Verb::Del] {
            for step in 1.. {
                if victim == Verb::Del {
                    self.call(Verb::Add, version, self.prev.as_ref()).unwrap();
                }
                let killed = self.killed_after(victim, version, step);
                let cleaned = self.call(Verb::Del, version, self.prev.as_ref());
                cleaned.unwrap_or_else(|err| panic!("DEL after {victim}, killed at step {step}: {err}"));
                self.assert_state(&before, &format!("after {victim}, killed at step {step}, and DEL"));
                if !killed {
                    break;
                }
            }
        }
    }

    /// False if the verb ended before.
    fn killed_after(&self, verb: Verb, version: Version, step: usize) -> bool {
        let config = self.config(version, self.prev.as_ref());
        let mut child = self.spawn(verb);
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        ptrace::seize(pid, Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_EXITKILL).unwrap();
        ptrace::interrupt(pid).unwrap();
        // It changes nothing before it has its configuration.
        write(&mut child, &config);
        let (mut stops, mut signal) = (0, None);
        loop {
            match waitpid(pid, None).unwrap() {
                WaitStatus::Exited(..) | WaitStatus::Signaled(..) => return false,
                // Two stops for each call: before and after.
                WaitStatus::PtraceSyscall(_) => stops += 1,
                WaitStatus::Stopped(_, arrived) => signal = Some(arrived),
                _ => {}
            }
            if stops == 2 * step {
                kill(pid, Signal::SIGKILL).unwrap();
                waitpid(pid, None).unwrap();
                return true;
            }
            ptrace::syscall(pid, signal.take()).unwrap();
        }
    }

    fn versions(&self) -> Vec<Version> {
        let answer = self.call(Verb::Version, Version::LATEST, None).unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let list = answer.get("supportedVersions").and_then(Value::as_array).cloned().unwrap_or_default();
        Version::ALL.iter().copied().filter(|version| list.contains(&json!(version.as_str()))).collect()
    }

    /// Returns whether the DEL of a chained plugin is noted, as the skeleton does it.
    fn is_del_noted(&self) -> bool {
        let attachment = Attachment { container_id: self.container.clone(), ifname: IFNAME.into() };
        let tag = Owner { network: NETWORK.into(), attachment }.tag();
        self.directories.path_of(begun::DIR).join(tag).exists()
    }

    /// The path of the pod's namespace.
    fn netns(&self) -> String {
        self.pod.path().display().to_string()
    }

    fn config(&self, version: Version, prev: Option<&CniResult>) -> Vec<u8> {
        let mut config = self.config.clone();
        let keys = config.as_object_mut().expect("the configuration is an object");
        keys.insert("cniVersion".into(), version.as_str().into());
        keys.insert("name".into(), NETWORK.into());
        let name = self.program.file_name().expect("the name of the plugin").to_string_lossy();
        keys.entry("type").or_insert_with(|| name.into_owned().into());
        let this = json!([{"containerID": self.container, "ifname": IFNAME}]);
        keys.insert("cni.dev/valid-attachments".into(), this);
        if let Some(prev) = prev {
            keys.insert("prevResult".into(), prev.to_value(version).unwrap());
        }
        config.to_string().into_bytes()
    }

    fn spawn(&self, verb: Verb) -> Child {
        let dir = self.program.parent().expect("the directory of the plugin");
        let mut command = Process::new(&self.program);
        command
            .env("CNI_COMMAND", verb.as_str())
            .env("CNI_CONTAINERID", &self.container)
            .env("CNI_NETNS", self.netns())
            .env("CNI_IFNAME", IFNAME)
            .env("CNI_ARGS", "")
            .env("CNI_PATH", dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        self.directories.spawn(&mut command, &self.host)
    }

    fn state(&self) -> State {
        let mut state = state::of_namespace("host", &self.host);
        state.extend(state::of_namespace("pod", &self.pod));
        for seen in ["/run", "/var/lib"] {
            state::add_files(&self.directories.path_of(seen), seen.as_ref(), &mut state);
        }
        state
    }

    /// Asserts that host and pod are as `before`. The kernel completes some removals a moment later, so a difference is
    /// one if it lasts.
    #[track_caller]
    fn assert_state(&self, before: &State, when: &str) {
        let mut now = self.state();
        for pause in PAUSES {
            if now == *before {
                return;
            }
            std::thread::sleep(Duration::from_millis(pause));
            now = self.state();
        }
        if now == *before {
            return;
        }
        let left: Vec<&String> = now.difference(before).collect();
        let lost: Vec<&String> = before.difference(&now).collect();
        panic!("{when}: left behind: {left:#?}, lost: {lost:#?}");
    }
}

fn set_up(netlink: &mut Netlink, name: &str) {
    let index = netlink.link(name).unwrap().index;
    netlink.execute(link::set(index, name, &Change { up: Some(true), ..Change::default() })).unwrap();
}

/// A plugin that ends before it has read all of it is judged by its answer.
fn write(child: &mut Child, config: &[u8]) {
    let _ = child.stdin.take().unwrap().write_all(config);
}

fn answer(output: &Output) -> Result<String, Error> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    Err(Error::from_json(&output.stdout)
        .unwrap_or_else(|| panic!("{}, and no error of CNI: {text}", output.status)))
}
