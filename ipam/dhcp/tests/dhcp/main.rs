//! Tests of the plugin dhcp with various servers. Each test has its own socket, and so its own lease daemon.
#![cfg(test)]

mod cgroup;
mod changes;
mod daemon;
mod fifty;
mod gateway;
mod in_vm;
mod kea;
mod killed;
mod lies;
mod life;
mod lifetime;
mod on_link;
mod options;
mod private;
mod real;
mod reference;
mod renewal;
mod server;
mod units;
mod v6;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Network, PATIENCE, Pod, wait_until};
use server::{Manner, Server};

/// The server's, and the first that it gives.
const OWN: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 1);
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 50);

/// With a bridge for a server.
fn host() -> Host {
    let host = Host::hasty();
    host.ip("link add br0 type bridge");
    host.ip("address add 10.8.0.1/24 dev br0");
    host.ip("link set br0 up");
    host
}

fn socket(host: &Host) -> PathBuf {
    host.dir().join("dhcp.sock")
}

/// On that bridge, by DHCP.
fn network(host: &Host) -> Network<'_> {
    let ipam = json!({"type": "dhcp", "daemonSocketPath": socket(host)});
    let config =
        json!({"cniVersion": "1.1.0", "name": "lan", "type": "bridge", "bridge": "br0", "ipam": ipam});
    Network::new(host, config)
}

/// With leases of an hour.
fn server(host: &Host) -> Server {
    Server::start(host, OWN, Manner::new(FIRST, 3600))
}

fn leases(host: &Host) -> Vec<PathBuf> {
    let mut all = lease_files(host);
    // The lease daemon writes under another name first.
    all.retain(|path| !path.file_name().unwrap().to_string_lossy().starts_with('.'));
    all
}

/// All except the lock.
fn lease_files(host: &Host) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(host.dir().join("dhcp.leases")) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.file_name().unwrap() != "lock").collect()
}

fn daemons(socket: &Path) -> Vec<i32> {
    let of = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        let path = socket.to_str()?.as_bytes();
        (words.contains(&&b"daemon"[..]) && words.contains(&path)).then_some(pid)
    };
    std::fs::read_dir("/proc").unwrap().filter_map(of).collect()
}

/// It has left no files.
#[track_caller]
fn assert_ended(host: &Host) {
    assert!(wait_until(PATIENCE, || daemons(&socket(host)).is_empty()), "the lease daemon goes on");
    assert!(!socket(host).exists() && lease_files(host).is_empty(), "{:?}", lease_files(host));
}

#[track_caller]
fn wait_for(pod: &Pod, addresses: &[&str]) {
    assert!(wait_until(PATIENCE, || ipv4(pod) == addresses), "{:?}, expected {addresses:?}", ipv4(pod));
}

fn ipv4(pod: &Pod) -> Vec<String> {
    let all = pod.addrs("eth0");
    all.into_iter().filter(|address| !address.contains(':')).collect()
}

#[track_caller]
fn address(result: &Value) -> &str {
    assert_eq!(result["ips"].as_array().unwrap().len(), 1, "{result:#}");
    result["ips"][0]["address"].as_str().unwrap()
}
