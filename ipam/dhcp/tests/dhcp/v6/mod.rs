//! DHCPv6, with servers and routers of a link.

mod changes;
mod kea;
mod life;
mod server;

use std::net::Ipv6Addr;
use std::process::Stdio;

use cnimble_tests::{Background, plugin_dir};
use server::{Manner, Server};

use super::*;

/// The server's, and the first that it gives.
const OWN: &str = "fd00:8::1";
const FIRST: Ipv6Addr = Ipv6Addr::new(0xfd00, 8, 0, 0, 0, 0, 0, 0x50);

/// With a bridge for a server.
fn host() -> Host {
    let host = super::host();
    host.ip(&format!("address add {OWN}/64 dev br0 nodad"));
    // Without ports a bridge has no carrier, and no link-local address.
    host.ip("link add own type veth peer name its");
    host.ip("link set own master br0 up");
    // No router advertisements there.
    host.set_sysctl("ipv6/conf/its/disable_ipv6", "1");
    host.ip("link set its up");
    let own = || host.ip("-6 address show dev br0 scope link -tentative");
    assert!(wait_until(PATIENCE, || own().contains("fe80::")), "{}", own());
    host
}

/// On that bridge, by DHCPv6.
fn network(host: &Host) -> Network<'_> {
    super::network(host).with("/ipam/families", json!(["ipv6"]))
}

/// With leases of an hour.
fn server(host: &Host) -> Server {
    Server::start(host, "br0", b"\0\x03\0\x01server", Manner::new(FIRST, 3600))
}

/// DHCPv4 on the bridge, too.
fn four_server(host: &Host, times: Option<(u32, u32)>) -> crate::server::Server {
    use crate::server::{Manner, Server};
    Server::start(host, super::OWN, Manner { times, ..Manner::new(super::FIRST, 3600) })
}

/// As an administrator does. The test reads its log.
fn start_daemon(host: &Host, options: &[&str]) -> Background {
    let mut command = host.command(plugin_dir().join("dhcp"));
    command.args(["daemon", "-socketpath"]).arg(socket(host)).args(options);
    let log = std::fs::File::create(host.dir().join("daemon.log")).unwrap();
    let daemon = Background::start(command.stdin(Stdio::null()).stderr(log));
    assert!(wait_until(PATIENCE, || socket(host).exists()));
    daemon
}

#[track_caller]
fn wait_for_log(host: &Host, words: &str) {
    let log = || std::fs::read_to_string(host.dir().join("daemon.log")).unwrap();
    assert!(wait_until(PATIENCE, || log().contains(words)), "{words:?} is not in\n{}", log());
}

/// The addresses that a server gave.
fn ipv6(pod: &Pod) -> Vec<String> {
    let all = pod.addrs("eth0");
    all.into_iter().filter(|address| address.starts_with("fd")).collect()
}

#[track_caller]
fn wait_for(pod: &Pod, addresses: &[&str]) {
    assert!(wait_until(PATIENCE, || ipv6(pod) == addresses), "{:?}, expected {addresses:?}", ipv6(pod));
}

/// Preferred and valid, in seconds, if the kernel knows an end.
fn lifetimes(pod: &Pod) -> Option<(u64, u64)> {
    let links = pod.ip_json("address show dev eth0");
    let all = links[0]["addr_info"].as_array().unwrap();
    let own = all.iter().find(|one| one["local"].as_str().unwrap().starts_with("fd"))?;
    let time = |key: &str| own[key].as_u64().unwrap();
    let (preferred, valid) = (time("preferred_life_time"), time("valid_life_time"));
    (valid < u64::from(u32::MAX)).then_some((preferred, valid))
}
