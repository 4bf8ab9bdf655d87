//! Tests of the plugin host-device. A veth's end stands for a network card; the other end is in a network outside.
#![cfg(test)]

mod beside;
mod failures;
mod leftovers;
mod life;
mod reference;
mod state;
mod tamper;

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Lan, Network, Outcome, Pod};

/// Dual-stack, on the device `card`.
fn config(host: &Host) -> Value {
    json!({
        "cniVersion": "1.1.0",
        "name": "cards",
        "type": "host-device",
        "device": "card",
        "dataDir": records(host),
        "ipam": {
            "type": "host-local",
            "dataDir": host.data_dir(),
            "ranges": [
                [{"subnet": "10.7.0.0/24", "rangeStart": "10.7.0.10"}],
                [{"subnet": "fd00:7::/64", "rangeStart": "fd00:7::10"}],
            ],
            "routes": [{"dst": "10.99.0.0/16"}],
        },
    })
}

fn records(host: &Host) -> std::path::PathBuf {
    host.dir().join("records")
}

fn recorded(host: &Host) -> usize {
    std::fs::read_dir(records(host)).map_or(0, Iterator::count)
}

fn leases(host: &Host) -> Vec<String> {
    let all = cnimble_tests::leases(&host.data_dir());
    all.into_iter().filter(|line| line.contains("\\r\\n")).collect()
}

/// As an administrator would set it up. Returns the network that it leads to.
fn card(host: &Host) -> Lan {
    let lan = Lan::behind(host, "card");
    host.ip("link set card down");
    host.ip("link set card mtu 1400 address 02:00:00:00:00:77 alias uplink up");
    host.ip("address add 10.7.0.2/24 brd + dev card");
    host.ip("address add fd00:7::2/64 dev card");
    lan
}

/// The end of a namespace for hardware: the kernel moves it to the host. It destroys virtual devices instead.
fn kernel_gives_back(pod: &Pod, name: &str, host: &Host) {
    pod.ip(&format!("link set {name} netns {}", host.path()));
}

#[track_caller]
fn refused(outcome: &Outcome, code: u64, why: &str) {
    let err = outcome.error();
    assert!(err.code == code && err.all().contains(why), "{err:?}");
}

fn attachment(id: &str, pod: &Pod) -> Attachment {
    Attachment::new(id, pod).ifname("net1")
}

fn names(host: &Host) -> Vec<String> {
    host.links()
}

fn network(host: &Host) -> Network<'_> {
    Network::new(host, config(host))
}
