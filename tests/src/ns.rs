//! Network namespaces that live as long as a file descriptor of the test.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::sched::{CloneFlags, setns, unshare};

use crate::process::{LIMIT, PATH, run_limited};
use crate::{Outcome, PATIENCE, wait_until};

/// Settings that a namespace inherits from the machine (net.core.devconf_inherit_init_net), with the values of a new
/// machine.
const INHERITED: [(&str, &str); 7] = [
    ("ipv4/ip_forward", "0"),
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    ("ipv4/conf/all/route_localnet", "0"),
    ("ipv4/conf/default/route_localnet", "0"),
    ("ipv4/conf/all/arp_notify", "0"),
    ("ipv4/conf/default/arp_notify", "0"),
];

/// A network namespace of its own, with lo up, that owes nothing to the machine's settings.
pub struct Ns {
    fd: OwnedFd,
    path: String,
}

impl Ns {
    /// Makes a namespace.
    ///
    /// # Panics
    /// If the kernel refuses.
    #[allow(clippy::new_without_default)] // a default that makes a namespace would surprise
    pub fn new() -> Self {
        let fd = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("unshare(CLONE_NEWNET)");
            let file = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
            unrepeated(&file)
        })
        .join()
        .unwrap();
        let path = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
        let ns = Ns { fd, path };
        ns.ip("link set lo up");
        ns.within(|| {
            for (key, value) in INHERITED {
                std::fs::write(format!("/proc/sys/net/{key}"), value).unwrap();
            }
        });
        ns
    }

    /// An existing namespace, by its path.
    ///
    /// # Panics
    /// If it isn't there.
    pub fn at(path: &Path) -> Self {
        let file = std::fs::File::open(path).unwrap_or_else(|err| panic!("{}: {err}", path.display()));
        let fd = unrepeated(&file);
        let path = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
        Ns { fd, path }
    }

    /// The path of the namespace, for any process, while this value lives. It never leads to another namespace later.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Runs `inside` on a thread in the namespace. There `/proc/sys/net` and
    /// `/proc/thread-self/net` (not `/proc/net`) are the namespace's.
    pub fn within<T: Send>(&self, inside: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let name = std::thread::current().name().unwrap_or("?").to_owned();
            let thread = std::thread::Builder::new().name(name).spawn_scoped(scope, || {
                setns(&self.fd, CloneFlags::CLONE_NEWNET).unwrap();
                inside()
            });
            match thread.unwrap().join() {
                Ok(value) => value,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// A command that will run in the namespace, with a clean environment.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", PATH).env("LC_ALL", "C");
        enter(&mut command, self.fd.as_raw_fd());
        command
    }

    /// Runs a command in the namespace; words are split at white space.
    pub fn run(&self, line: &str) -> Outcome {
        self.run_with(line, b"")
    }

    /// As [`run`](Self::run), with this on stdin.
    pub fn run_with(&self, line: &str, stdin: &[u8]) -> Outcome {
        let mut words = line.split_whitespace();
        let mut command = self.command(words.next().expect("a command"));
        command.args(words);
        Outcome::from(line, run_limited(&mut command, stdin, LIMIT))
    }

    /// Runs a command that must succeed; returns what it printed.
    pub fn sh(&self, line: &str) -> String {
        self.run(line).success().text()
    }

    /// Runs a line of shell that must succeed; returns what it printed.
    pub fn shell(&self, script: &str) -> String {
        let mut command = self.command("sh");
        command.args(["-ec", script]);
        Outcome::from(script, run_limited(&mut command, b"", LIMIT)).success().text()
    }

    /// `ip …`, which must succeed.
    pub fn ip(&self, args: &str) -> String {
        self.sh(&format!("ip {args}"))
    }

    /// `ip -d -j …` as JSON.
    pub fn ip_json(&self, args: &str) -> serde_json::Value {
        let text = self.ip(&format!("-d -j {args}"));
        if text.trim().is_empty() {
            return serde_json::Value::Array(Vec::new());
        }
        serde_json::from_str(&text).unwrap_or_else(|err| panic!("ip -j {args}: {err}\n{text}"))
    }

    /// `nft …`, which must succeed.
    pub fn nft(&self, args: &str) -> String {
        self.sh(&format!("nft {args}"))
    }

    /// The lines of both iptables tables `nat` that name a CNI plugin's chain.
    pub fn cni_nat(&self) -> String {
        self.shell("iptables-nft-save -t nat; ip6tables-nft-save -t nat")
            .lines()
            .filter(|line| line.contains("CNI-"))
            .map(|line| format!("{line}\n"))
            .collect()
    }

    /// Whether a ping is answered, sooner or later. For what must not be answered there is
    /// [`misses`](Self::misses), which doesn't wait.
    pub fn pings(&self, to: &str) -> bool {
        wait_until(PATIENCE, || self.run(&format!("ping -n -c 1 -W 2 {to}")).status == 0)
    }

    /// Whether the very first ping is answered, however long the answer takes.
    pub fn pings_once(&self, to: &str) -> bool {
        self.run(&format!("ping -n -c 1 -W {PATIENCE} {to}")).status == 0
    }

    /// Whether a ping stays without an answer for a second.
    ///
    /// # Panics
    /// If ping itself fails, which says nothing about answers.
    pub fn misses(&self, to: &str) -> bool {
        let ping = self.run(&format!("ping -n -c 1 -W 1 {to}"));
        // 1: no answer; 2: no way there (ping(8)).
        assert!([0, 1, 2].contains(&ping.status), "{}", ping.describe());
        ping.status != 0
    }

    /// The names of the interfaces.
    pub fn links(&self) -> Vec<String> {
        let links = self.ip_json("link show");
        let mut names: Vec<String> = links
            .as_array()
            .unwrap()
            .iter()
            .map(|link| link["ifname"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    }

    /// One interface as `ip -d -j link show` has it, or null.
    pub fn link(&self, name: &str) -> serde_json::Value {
        let links = self.ip_json("link show");
        let found = links.as_array().unwrap().iter().find(|link| link["ifname"] == name);
        found.cloned().unwrap_or_default()
    }

    /// The addresses of an interface as `addr/prefixlen`, without link-local ones.
    pub fn addrs(&self, name: &str) -> Vec<String> {
        let links = self.ip_json(&format!("addr show dev {name}"));
        let mut found = Vec::new();
        for info in links[0]["addr_info"].as_array().into_iter().flatten() {
            if info["scope"] != "link" {
                found.push(format!("{}/{}", info["local"].as_str().unwrap(), info["prefixlen"]));
            }
        }
        found
    }

    /// A sysctl of the namespace: the file below /proc/sys/net.
    pub fn sysctl(&self, file: &str) -> String {
        let path = format!("/proc/sys/net/{file}");
        self.within(|| match std::fs::read_to_string(&path) {
            Ok(text) => text.trim().to_owned(),
            Err(err) => panic!("{path}: {err}"),
        })
    }

    /// Sets a sysctl of the namespace.
    pub fn set_sysctl(&self, file: &str, value: &str) {
        let path = format!("/proc/sys/net/{file}");
        self.within(|| std::fs::write(&path, value).unwrap_or_else(|err| panic!("{path}: {err}")));
    }

    /// Joins two namespaces with a veth pair, both ends up: `here` in this one, `there`
    /// in `other`.
    pub fn cable(&self, here: &str, other: &Ns, there: &str) {
        self.ip(&format!("link add {here} type veth peer name {there} netns {}", other.path));
        self.ip(&format!("link set {here} up"));
        other.ip(&format!("link set {there} up"));
    }
}

/// A pod's network namespace.
pub type Pod = Ns;

/// Makes `command` run in the namespace behind `fd`.
fn enter(command: &mut Command, fd: RawFd) {
    // SAFETY: setns(2) is a plain system call, safe between fork and exec; the descriptor
    // is open in the parent for as long as the command is used (both belong to one test).
    unsafe {
        command.pre_exec(move || {
            if libc::setns(fd, libc::CLONE_NEWNET) == 0 {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error())
            }
        });
    }
}

/// A duplicate of `file` with a number that this process never uses again. So the path of a dead namespace leads nowhere,
/// and not into another test.
fn unrepeated(file: &std::fs::File) -> OwnedFd {
    static LIMIT: Once = Once::new();
    static NEXT: AtomicI32 = AtomicI32::new(500);
    LIMIT.call_once(|| {
        use nix::sys::resource::{Resource, getrlimit, setrlimit};
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    });
    loop {
        let wanted = NEXT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: F_DUPFD_CLOEXEC returns a new descriptor, which nobody else owns.
        let duplicate = unsafe {
            let fd = libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, wanted);
            assert!(fd >= wanted, "descriptor numbers: {}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(fd)
        };
        // Where so many files are open the number may be another file's: that one has a turn.
        if duplicate.as_raw_fd() == wanted {
            return duplicate;
        }
    }
}
