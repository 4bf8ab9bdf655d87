//! Wrong values of bridge's own keys.

use serde_json::json;

use super::Table;

pub(super) fn keys(table: &mut Table) {
    for key in [
        "isGateway",
        "isDefaultGateway",
        "forceAddress",
        "ipMasq",
        "hairpinMode",
        "promiscMode",
        "preserveDefaultVlan",
        "macspoofchk",
        "portIsolation",
        "enabledad",
        "disableContainerInterface",
    ] {
        for value in [json!("true"), json!(1), json!([])] {
            table.key(&format!("/{key}"), value, 7, key);
        }
    }
    for mtu in [json!("1500"), json!(1.5), json!(67), json!(65536), json!(4294967296_u64), json!([])] {
        table.key("/mtu", mtu, 7, "mtu");
    }
    for vlan in [json!("5"), json!(-1), json!(4095), json!(65541), json!(1.5), json!({})] {
        table.key("/vlan", vlan, 7, "vlan");
    }
    for trunk in [
        json!(5),
        json!({}),
        json!([5]),
        json!([{"minID": 5}]),
        json!([{"maxID": 5}]),
        json!([{"minID": 9, "maxID": 5}]),
        json!([{"id": 0}]),
        json!([{"id": 4095}]),
        json!([{"id": -1}]),
        json!([{"id": "5"}]),
        json!([{"minID": 0, "maxID": 5}]),
        json!([{"minID": 1, "maxID": 4095}]),
    ] {
        table.key("/vlanTrunk", trunk, 7, "vlanTrunk");
    }
    for backend in [json!("ebtables"), json!("nft"), json!(5), json!([])] {
        table.key("/ipMasqBackend", backend, 7, "ipMasqBackend").and("/ipMasq", json!(true));
    }
    for family in [json!("ipv5"), json!("IPv4"), json!(4), json!([])] {
        table.key("/ipMasqFamily", family, 7, "ipMasqFamily").and("/ipMasq", json!(true));
    }
    for (key, value) in [("ipMasqExclude", json!(["10.0.0.0/33"])), ("ipMasqAddress", json!("::"))] {
        table.key(&format!("/{key}"), value, 7, key);
    }
    for name in ["a/b", "sixteen-bytes-xx", ".", "..", "a b", "a:b"] {
        table.key("/bridge", json!(name), 7, "bridge");
    }
    for name in [json!(5), json!([]), json!({}), json!(true)] {
        table.key("/bridge", name, 7, "bridge");
    }
    table.key("/bridge", json!("lo"), 102, "not a bridge");
    table.key("/hairpinMode", json!(true), 7, "hairpin").and("/promiscMode", json!(true));
    table.key("/disableContainerInterface", json!(true), 7, "IPAM").and("/ipam/type", json!("host-local"));
    for dns in [
        json!(5),
        json!("x"),
        json!({"nameservers": "1.1.1.1"}),
        json!({"nameservers": [5]}),
        json!({"search": 5}),
        json!({"options": {}}),
        json!({"domain": []}),
    ] {
        table.key("/dns", dns, 7, "dns");
    }
    for ipam in [json!(5), json!("host-local"), json!({"type": 5}), json!({"type": []})] {
        table.key("/ipam", ipam, 7, "ipam");
    }
    for name in ["../host-local", "/usr/lib/cni/host-local", "a/b", ".", ".."] {
        table.key("/ipam/type", json!(name), 7, "plugin name");
    }
    table.key("/ipam/type", json!("no-such-plugin"), 104, "no-such-plugin");
    for (pointer, value) in [
        ("/args", json!(5)),
        ("/args", json!({"cni": 5})),
        ("/args", json!({"cni": {"mac": 5}})),
        ("/runtimeConfig", json!(5)),
        ("/runtimeConfig", json!({"mac": 5})),
    ] {
        table.key(pointer, value, 7, &pointer[1..]);
    }
    // An error of the IPAM plugin keeps its code, and nothing is left.
    table.key("/ipam/ranges", json!([[{"subnet": "banana"}]]), 7, "ipam.ranges[0][0].subnet");
    table.key("/ipam/ranges", json!([]), 7, "no IP ranges specified");
    // Only the kernel knows which routes it accepts (IPv4 via IPv6 is possible, for example).
    table.key("/ipam/routes", json!([{"dst": "fd00:9::/64", "gw": "10.1.2.1"}]), 100, "fd00:9::/64");
}
