//! Members of a real etcd in the namespace of a host, and faults of them.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use cnimble_tests::tls::Identity;
use cnimble_tests::{Background, Host, unique, wait_until};

use super::node;

/// The time limit of a wait, which only a failing test reaches.
const PATIENCE: f32 = 120.0;

/// The path of a backup.
pub(super) type Backup = PathBuf;

/// Whether a node that has not heard of etcd since a backup needs an agent to know that it was restored.
pub(super) const NEEDS_AGENTS: bool = false;

pub(super) struct Etcd<'h> {
    host: &'h Host,
    /// The addresses of the members.
    ips: Vec<String>,
    tls: Option<Tls>,
    members: Vec<Option<Background>>,
    generation: u32,
}

/// The certificates and keys for TLS of the members and of etcdctl.
#[derive(Clone)]
pub(super) struct Tls {
    pub(super) ca: PathBuf,
    pub(super) server: Identity,
    pub(super) client: Identity,
}

/// Returns the path of a program of etcd: the installed one, or the one in the directory
/// CNIMBLE_ETCD_DIR.
fn program(name: &str) -> PathBuf {
    std::env::var_os("CNIMBLE_ETCD_DIR").map_or_else(|| name.into(), |dir| PathBuf::from(dir).join(name))
}

fn ip(n: usize) -> String {
    // 127.0.0.1 would be the source address of every process.
    format!("127.0.0.{}", n + 11)
}

/// Returns the key and value of the configuration for a number of members.
pub(super) fn config(_host: &Host, members: usize) -> (&'static str, Value) {
    let urls: Vec<String> = (0..members).map(|n| format!("http://{}:2379", ip(n))).collect();
    ("etcd", json!({"endpoints": urls}))
}

impl<'h> Etcd<'h> {
    /// Starts `count` members and waits for a leader.
    pub(super) fn start(host: &'h Host, count: usize) -> Self {
        Self::start_with(host, count, None)
    }

    /// Same as `start`. With certificates, clients need one as well.
    pub(super) fn start_with(host: &'h Host, count: usize, tls: Option<Tls>) -> Self {
        let mut etcd = Self::unready(host, count, tls);
        etcd.members();
        etcd
    }

    /// Starts one member at an address of the host.
    pub(super) fn start_at(host: &'h Host, ip: &str) -> Self {
        let mut etcd = Self::unready(host, 1, None);
        etcd.ips = vec![ip.to_owned()];
        etcd.members();
        etcd
    }

    /// Sets the certificates of members that are started from now on, and of etcdctl.
    pub(super) fn trust(&mut self, tls: Tls) {
        self.tls = Some(tls);
    }

    fn members(&mut self) {
        for n in 0..self.members.len() {
            self.member(n);
        }
        self.settle();
    }

    /// Returns members that aren't started.
    pub(super) fn unready(host: &'h Host, count: usize, tls: Option<Tls>) -> Self {
        let ips = (0..count).map(ip).collect();
        Etcd { host, ips, tls, members: (0..count).map(|_| None).collect(), generation: 0 }
    }

    fn url(&self, n: usize) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}:2379", self.ips[n])
    }

    fn dir(&self, n: usize) -> PathBuf {
        self.host.dir().join(format!("etcd-{}-{n}", self.generation))
    }

    fn peers(&self) -> String {
        let peers = (0..self.members.len()).map(|n| format!("m{n}=http://{}:2380", self.ips[n]));
        peers.collect::<Vec<_>>().join(",")
    }

    /// Starts a member, also again after a kill.
    pub(super) fn member(&mut self, n: usize) {
        let mut command = self.host.command(program("etcd"));
        let peer = format!("http://{}:2380", self.ips[n]);
        command.arg(format!("--name=m{n}")).arg("--data-dir").arg(self.dir(n));
        command.arg(format!("--listen-client-urls={}", self.url(n)));
        command.arg(format!("--advertise-client-urls={}", self.url(n)));
        if let Some(tls) = &self.tls {
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(&tls.ca);
            command.arg("--cert-file").arg(&tls.server.certificate).arg("--key-file").arg(&tls.server.key);
        }
        command
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"));
        command.arg(format!("--initial-cluster={}", self.peers())).arg("--unsafe-no-fsync");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.members[n] = Some(Background::start(&mut command));
    }

    /// Kills a member with SIGKILL by dropping it.
    pub(super) fn kill(&mut self, n: usize) {
        self.members[n] = None;
    }

    pub(super) fn signal(&self, n: usize, signal: Signal) {
        let pid = self.members[n].as_ref().unwrap().pid();
        kill(Pid::from_raw(pid as i32), signal).unwrap();
    }

    /// Cuts a member off from the others and from its clients.
    pub(super) fn cut(&self, n: usize) {
        node::cut(self.host, &self.ips[n]);
    }

    pub(super) fn heal(&self) {
        node::heal(self.host);
    }

    pub(super) fn ctl(&self, args: &str) -> Command {
        let urls: Vec<String> = (0..self.members.len()).map(|n| self.url(n)).collect();
        let mut command = self.host.command(program("etcdctl"));
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", urls.join(",")));
        if let Some(tls) = &self.tls {
            command.arg("--cacert").arg(&tls.ca);
            command.arg("--cert").arg(&tls.client.certificate).arg("--key").arg(&tls.client.key);
        }
        command.args(args.split_whitespace());
        command
    }

    #[track_caller]
    pub(super) fn put(&self, key: &str, value: &str) {
        assert!(self.ctl("put").arg(key).arg(value).output().unwrap().status.success(), "{key}");
    }

    /// Removes all that cnimble has written.
    pub(super) fn empty(&self) {
        assert!(self.ctl("del --prefix /cnimble/").output().unwrap().status.success());
    }

    /// Returns the keys and values of a prefix, line by line.
    pub(super) fn get(&self, prefix: &str) -> String {
        let output = self.ctl("get --prefix").arg(prefix).output().unwrap();
        assert!(output.status.success(), "{prefix}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the number of entries in the log.
    pub(super) fn index(&self) -> u64 {
        let output = self.ctl("endpoint status -w json").output().unwrap();
        let status: Value = serde_json::from_slice(&output.stdout).unwrap();
        status[0]["Status"]["raftAppliedIndex"].as_u64().unwrap()
    }

    /// Waits until all members answer.
    pub(super) fn settle(&self) {
        let healthy = || self.ctl("endpoint health").output().is_ok_and(|output| output.status.success());
        assert!(wait_until(PATIENCE, healthy), "etcd has no leader");
    }

    /// Saves a backup and returns its path.
    pub(super) fn backup(&self) -> PathBuf {
        let file = self.host.dir().join(unique("backup"));
        let mut command = self.host.command(program("etcdctl"));
        let endpoint = format!("--endpoints={}", self.url(0));
        command.env("ETCDCTL_API", "3").arg(endpoint).args(["snapshot", "save"]).arg(&file);
        assert!(command.output().unwrap().status.success());
        file
    }

    /// Restores a backup as an operator does, with the same names, URLs and token.
    pub(super) fn restore(&mut self, file: &std::path::Path) {
        for n in 0..self.members.len() {
            self.kill(n);
            std::fs::remove_dir_all(self.dir(n)).unwrap();
        }
        self.generation += 1;
        for n in 0..self.members.len() {
            let mut command = self.ctl("snapshot restore");
            command.arg(file).arg("--data-dir").arg(self.dir(n)).arg(format!("--name=m{n}"));
            command.arg(format!("--initial-cluster={}", self.peers()));
            command.arg(format!("--initial-advertise-peer-urls=http://{}:2380", self.ips[n]));
            assert!(command.output().unwrap().status.success());
        }
        for n in 0..self.members.len() {
            self.member(n);
        }
        self.settle();
    }
}
