//! Tests of the plugin portmap, with real packets on every path.
// All code here is test code and panics on unexpected results.
#![allow(clippy::needless_pass_by_value)]
#![cfg(test)]

mod concurrent;
mod conditions;
mod containers;
mod costs;
mod listeners;
mod localhost;
mod order;
mod owners;
mod packets;
mod published;
mod reference;
mod ruleset;
mod services;
mod stale;
mod switch;
mod undo;
mod verbs;

use serde_json::{Value, json};

use cnimble_cni::{Attachment as Id, Owner};
use cnimble_rules::portmap::{Forward, Mapping, Protocol};
use cnimble_tests::{Attachment, Host, Network, Ns, configs};

/// A node with two pods on a bridge, and an outside network.
struct Site {
    host: Host,
    pods: [Ns; 2],
    world: Ns,
    results: [Value; 2],
}

impl Site {
    fn new() -> Self {
        let (host, pods, world) = (Host::new(), [Ns::new(), Ns::new()], Ns::new());
        host.cable("uplink", &world, "eth0");
        for (ns, link, addrs) in [
            (&*host, "uplink", ["192.0.2.1/24", "2001:db8::1/64"]),
            (&world, "eth0", ["192.0.2.9/24", "2001:db8::9/64"]),
        ] {
            ns.ip(&format!("addr add {} dev {link}", addrs[0]));
            ns.ip(&format!("-6 addr add {} dev {link} nodad", addrs[1]));
        }
        // For packets that aren't masqueraded.
        world.ip("route add 10.1.2.0/24 via 192.0.2.1");
        world.ip("-6 route add fd00:1:2::/64 via 2001:db8::1");
        // With br_netfilter, a frame back to its sender stays on the bridge, which needs this mode.
        let bridge = Network::new(&host, configs::dual(&host)).with("/hairpinMode", json!(true));
        let results = [0, 1].map(|n| bridge.added(&Attachment::new(&format!("pod{n}"), &pods[n])));
        drop(bridge);
        Site { host, pods, world, results }
    }

    fn attachment(&self, pod: usize) -> Attachment {
        Attachment::new(&format!("pod{pod}"), &self.pods[pod])
    }

    fn network(&self, mappings: Value) -> Network<'_> {
        Network::new(
            &self.host,
            json!({
                "cniVersion": configs::newest(), "name": "net64", "type": "portmap",
                "capabilities": {"portMappings": true},
                "runtimeConfig": {"portMappings": mappings},
            }),
        )
    }

    fn add(&self, network: &Network<'_>, pod: usize) -> Value {
        let call = network.call("ADD", &self.attachment(pod), Some(&self.results[pod]));
        let result = call.run().result();
        assert_eq!(result, self.results[pod], "the result is passed on");
        result
    }

    fn ruleset(&self) -> String {
        self.host.nft("-s list ruleset")
    }
}

fn pod_ip(result: &Value, v6: bool) -> String {
    let ips = result["ips"].as_array().unwrap();
    let found = ips.iter().map(|ip| ip["address"].as_str().unwrap()).find(|ip| ip.contains(':') == v6);
    found.unwrap().split('/').next().unwrap().to_owned()
}

fn owner(id: &str) -> Owner {
    Owner { network: "net64".into(), attachment: Id { container_id: id.into(), ifname: "eth0".into() } }
}

fn forward(ports: &[u16], addrs: &[&str]) -> Forward {
    Forward {
        mappings: ports
            .iter()
            .map(|port| Mapping {
                protocol: Protocol::Tcp,
                host_ip: None,
                host_port: *port,
                container_port: 80,
            })
            .collect(),
        addrs: addrs.iter().map(|addr| addr.parse().unwrap()).collect(),
        snat: true,
        masq_all: false,
        mark_bit: 13,
        external_mark_chain: None,
        conditions_v4: Vec::new(),
        conditions_v6: Vec::new(),
    }
}
