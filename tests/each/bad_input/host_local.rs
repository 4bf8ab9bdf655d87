//! Wrong values of host-local's own keys.

use serde_json::{Value, json};

use super::{Change, Table};

pub(super) fn keys(table: &mut Table) {
    table
        .row("no ipam".into(), Change::Without("ipam"), 7, "IPAM config missing 'ipam' key")
        .of("host-local");
    table.ipam("/ipam", json!(null), 7, "IPAM config missing 'ipam' key");
    table.ipam("/ipam", json!({"type": "host-local"}), 7, "no IP ranges specified");
    for ipam in [json!(5), json!("x"), json!(true)] {
        table.ipam("/ipam", ipam, 7, "ipam");
    }
    for ranges in [json!(5), json!("x"), json!({"subnet": "10.1.2.0/24"})] {
        table.ranges(ranges, "ipam.ranges");
    }
    table.ranges(json!([]), "no IP ranges specified");
    table.ranges(json!(null), "no IP ranges specified");
    table.ranges(json!([[]]), "empty range set");
    table.ranges(json!([[{"subnet": "10.1.2.0/24"}], []]), "invalid range set 1: empty range set");
    table.ranges(json!([{"subnet": "10.1.2.0/24"}]), "ipam.ranges[0]");
    table.ranges(json!([[5]]), "ipam.ranges[0][0]");
    table.ranges(json!([[{}]]), "subnet");
    for subnet in [
        json!("banana"),
        json!("10.1.2.0"),
        json!("10.1.2.0/33"),
        json!("10.1.2/24"),
        json!("10.1.2.0/-1"),
        json!("10.1.2.0/24/24"),
        json!("10.1.2.0/ 24"),
        json!("010.1.2.0/24"),
        json!("fd00::/129"),
        json!("fd00::g/64"),
        json!(5),
        json!([]),
    ] {
        table.ranges(json!([[{"subnet": "10.7.7.0/24"}, {"subnet": subnet}]]), "ipam.ranges[0][1].subnet");
        table.ipam("/ipam/subnet", subnet, 7, "ipam.subnet");
    }
    table.ranges(
        json!([[{"subnet": "10.1.2.5/24"}]]),
        "has host bits set. For a subnet mask of length 24 the network address is 10.1.2.0",
    );
    table.ranges(json!([[{"subnet": "fd00::5/64"}]]), "host bits set");
    for subnet in ["10.1.2.0/32", "fd00::/128"] {
        table.ranges(json!([[{"subnet": subnet}]]), "too small to allocate from");
    }
    let in_range = |key: &str, value: Value| {
        let mut range = json!({"subnet": "10.1.2.0/24"});
        range[key] = value;
        json!([[range]])
    };
    for (key, says) in [("rangeStart", "RangeStart"), ("rangeEnd", "RangeEnd")] {
        table
            .ranges(in_range(key, json!("10.9.9.9")), &format!("{says} 10.9.9.9 not in network 10.1.2.0/24"));
        table.ranges(in_range(key, json!("fd00::1")), "fd00::1");
    }
    for key in ["rangeStart", "rangeEnd", "gateway"] {
        for value in [json!("banana"), json!("10.1.2.9/24"), json!("10.1.2.256"), json!(5), json!({})] {
            table.ranges(in_range(key, value), key);
        }
    }
    table.ranges(in_range("gateway", json!("fd00::1")), "fd00::1");
    table.ranges(
        json!([[{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.20", "rangeEnd": "10.1.2.10"}]]),
        "10.1.2.20",
    );
    table.ranges(json!([[{"subnet": "10.1.2.0/24"}, {"subnet": "fd00::/64"}]]), "mixed address families");
    table.ranges(json!([[{"subnet": "10.1.2.0/24"}, {"subnet": "10.1.2.0/25"}]]), "overlap");
    table.ranges(
        json!([[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.0.0/16"}]]),
        "range set 0 overlaps with 1",
    );
    table
        .ranges(
            json!([[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/24"}]]),
            "does not support more than 1 address per family",
        )
        .and("/cniVersion", json!("0.2.0"));
    for (routes, says) in [
        (json!(5), "ipam.routes"),
        (json!([5]), "ipam.routes[0]"),
        (json!([{}]), "dst"),
        (json!([{"dst": "banana"}]), "ipam.routes[0].dst"),
        (json!([{"dst": "10.0.0.0"}]), "ipam.routes[0].dst"),
        (json!([{"dst": "10.0.0.0/40"}]), "ipam.routes[0].dst"),
        (json!([{"dst": 5}]), "ipam.routes[0].dst"),
        (json!([{"dst": "10.0.0.0/8", "gw": "banana"}]), "ipam.routes[0].gw"),
        (json!([{"dst": "10.0.0.0/8", "gw": 5}]), "ipam.routes[0].gw"),
        (json!([{"dst": "10.0.0.0/8", "mtu": -1}]), "ipam.routes[0].mtu"),
        (json!([{"dst": "10.0.0.0/8", "mtu": "1400"}]), "ipam.routes[0].mtu"),
        (json!([{"dst": "10.0.0.0/8", "advmss": 1.5}]), "ipam.routes[0].advmss"),
        (json!([{"dst": "10.0.0.0/8", "priority": "x"}]), "ipam.routes[0].priority"),
        (json!([{"dst": "10.0.0.0/8", "table": -1}]), "ipam.routes[0].table"),
        (json!([{"dst": "10.0.0.0/8", "scope": 256}]), "ipam.routes[0].scope"),
    ] {
        table.ipam("/ipam/routes", routes, 7, says);
    }
    for (pointer, value) in [
        ("/ipam/dataDir", json!(5)),
        ("/ipam/dataDir", json!([])),
        ("/ipam/resolvConf", json!(5)),
        ("/ipam/resolvConf", json!({})),
    ] {
        table.ipam(pointer, value, 7, &pointer[1..].replace('/', "."));
    }
    table.ipam("/ipam/dataDir", json!("/etc/hostname/networks"), 5, "/etc/hostname");
    table.ipam("/ipam/dataDir", json!("/proc/self/networks"), 5, "/proc/self/networks");
    table.ipam("/ipam/resolvConf", json!("/nowhere/resolv.conf"), 5, "/nowhere/resolv.conf");
    table.ipam("/ipam/resolvConf", json!("/tmp"), 5, "/tmp");
    for ips in [json!(5), json!("10.1.2.9"), json!({}), json!([5])] {
        table.ipam("/args", json!({"cni": {"ips": ips}}), 7, "args.cni.ips");
        table.ipam("/runtimeConfig", json!({"ips": ips}), 7, "runtimeConfig.ips");
    }
    for ip in ["banana", "10.1.2.9/99", ""] {
        table.ipam("/args", json!({"cni": {"ips": [ip]}}), 7, "args.cni.ips[0]");
        table.ipam("/runtimeConfig", json!({"ips": ["10.1.2.9", ip]}), 7, "runtimeConfig.ips[1]");
    }
    for ips in [json!(["10.1.2.9", "10.1.2.10"]), json!(["192.0.2.1"]), json!(["10.1.2.9", "fd00::9"])] {
        let says = "failed to allocate all requested IPs";
        table.ipam("/runtimeConfig", json!({"ips": ips}), 101, says);
    }
    for ranges in
        [json!(5), json!([5]), json!([[5]]), json!([[{"Subnet": "banana"}]]), json!([[{"subnet": 5}]])]
    {
        table.ipam("/runtimeConfig", json!({"ipRanges": ranges}), 7, "runtimeConfig.ipRanges");
    }
    table.ipam(
        "/ipam/ranges",
        json!([[{"subnet": "10.1.2.0/30", "rangeStart": "10.1.2.1", "rangeEnd": "10.1.2.1"}]]),
        101,
        "no IP addresses available in range set",
    );
}
