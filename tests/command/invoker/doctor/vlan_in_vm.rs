//! A gateway of a vlan, in the virtual machine.

use serde_json::{Value, json};

use cnimble_tests::{Lan, Pod, in_vm, plugin_dir};

use super::{Node, findings};

#[test]
fn the_gateway_of_a_vlan_follows_the_uplink() {
    in_vm!();
    let node = Node::new();
    let _lan = Lan::behind(&node.host, "up0");
    node.host.ip("address add 10.7.0.2/24 dev up0");
    node.host.ip("route add default via 10.7.0.1 dev up0");
    let ipam = json!({"type": "host-local", "dataDir": node.host.data_dir(), "ranges": [[{"subnet": "10.9.0.0/24"}]]});
    let bridge = json!({"type": "bridge", "bridge": "br1", "isDefaultGateway": true, "vlan": 7, "mtuAuto": true, "ipam": ipam});
    node.network("tagged", &json!({"cniVersion": "1.0.0", "name": "tagged", "plugins": [bridge]}));
    let pod = Pod::new();
    node.add(plugin_dir(), "tagged", &pod, "one", 8001);
    for mtu in [1400, 9000, 1500] {
        node.host.ip(&format!("link set up0 mtu {mtu}"));
        node.doctor(&["--grace", "0", "--repair"]);
        assert_eq!(findings(&node.doctor(&["--grace", "0"]), 0), [] as [Value; 0]);
        let mtus = node.host.links().into_iter().map(|link| node.host.link(&link)["mtu"].clone());
        let mtus: Vec<_> = mtus.filter(|of| *of != 65536).collect();
        assert!(mtus.len() == 5 && mtus.iter().all(|of| *of == mtu), "{mtu}: {mtus:?}");
        let size = mtu - 28;
        pod.sh(&format!("ping -M do -c 1 -W 5 -s {size} 10.9.0.1"));
    }
}
