//! Accepted and refused configurations, with the texts of errors.

use serde_json::{Value, json};

use super::*;

fn read_with(document: &Value, args: &str) -> Result<Config, Error> {
    let mut document = document.clone();
    let object = document.as_object_mut().unwrap();
    object.entry("name").or_insert("net".into());
    object.entry("cniVersion").or_insert("1.0.0".into());
    let config = PluginConfig::parse(document.to_string().as_bytes())?;
    Config::read(&config, &CniArgs::parse(args)?)
}

fn read(document: &Value) -> Result<Config, Error> {
    read_with(document, "")
}

fn sets(document: &Value) -> Vec<String> {
    read(document).unwrap().sets.iter().map(RangeSet::to_string).collect()
}

fn requested(document: &Value, args: &str) -> Vec<String> {
    let config = read_with(document, args).unwrap();
    config.requested.iter().map(IpAddr::to_string).collect()
}

#[test]
fn ranges_are_awaited_where_the_runtime_gives_them_and_has_not() {
    let awaits =
        |document: Value| awaits_ranges(&PluginConfig::parse(document.to_string().as_bytes()).unwrap());
    let capable = json!({ "ipRanges": true });
    let (ranges, none) = (json!([[{ "subnet": "10.0.0.0/24" }]]), Value::Null);
    for (capabilities, runtime, own, single, expected) in [
        (&capable, &none, &none, &none, true),
        (&none, &none, &none, &none, false),
        (&json!({ "ipRanges": false }), &none, &none, &none, false),
        (&capable, &ranges, &none, &none, false),
        (&capable, &none, &ranges, &none, false),
        (&capable, &none, &none, &json!("10.0.0.0/24"), false),
    ] {
        let document = json!({ "capabilities": capabilities, "runtimeConfig": { "ipRanges": runtime },
            "ipam": { "ranges": own, "subnet": single } });
        assert_eq!(awaits(document.clone()).unwrap(), expected, "{document}");
    }
}

#[test]
fn excluded_addresses_are_in_no_range() {
    let ranges = json!([[{ "subnet": "10.0.0.0/28", "exclude": ["10.0.0.8/29", "10.0.0.3"] }]]);
    for document in [
        json!({ "ipam": { "ranges": ranges } }),
        json!({ "ipam": {}, "runtimeConfig": { "ipRanges": ranges } }),
        json!({ "ipam": { "subnet": "10.0.0.0/28", "exclude": ["10.0.0.3", "10.0.0.12/29"] } }),
    ] {
        assert_eq!(sets(&document), ["10.0.0.1-10.0.0.2,10.0.0.4-10.0.0.7"], "{document}");
        let config = read(&document).unwrap();
        // All of the two ranges but the gateway.
        let capacity: u128 = config.sets[0].ranges().iter().map(|range| config.capacity(range)).sum();
        assert_eq!(capacity, 5);
    }
    let message = |ipam: Value| read(&json!({ "ipam": ipam })).unwrap_err().to_string();
    let outside = message(json!({ "ranges": [[{ "subnet": "10.0.0.0/28", "exclude": ["10.0.1.1"] }]] }));
    assert!(outside.contains("exclude: 10.0.1.1/32 is not in network 10.0.0.0/28"), "{outside}");
    assert!(outside.contains("see ipam.ranges[0][0]"), "{outside}");
    let all = message(json!({ "subnet": "10.0.0.0/28", "exclude": ["10.0.0.0/28"] }));
    assert!(all.contains("exclude leaves no address of 10.0.0.1-10.0.0.14"), "{all}");
    let nothing = message(json!({ "ranges": ranges, "exclude": ["10.0.0.4"] }));
    assert!(nothing.contains("ipam.exclude: ipam.subnet is missing"), "{nothing}");
    let text = message(json!({ "subnet": "10.0.0.0/28", "exclude": ["ten"] }));
    assert!(text.contains("invalid IP address: ten"), "{text}");
}

#[test]
fn early_versions_have_one_address_of_a_family() {
    let reads = |version: &str, subnets: &[&str]| {
        let ranges: Vec<Value> = subnets.iter().map(|subnet| json!([{ "subnet": subnet }])).collect();
        let read = read(&json!({ "cniVersion": version, "ipam": { "ranges": ranges } }));
        read.map(|config| config.sets.len()).map_err(|err| err.msg)
    };
    let (four, six) = (["10.0.0.0/24", "10.0.1.0/24"], ["fd00::/64", "fd01::/64"]);
    for version in ["0.1.0", "0.2.0"] {
        for fine in [&four[..1], &six[..1], &[four[0], six[0]]] {
            assert_eq!(reads(version, fine), Ok(fine.len()), "{version}");
        }
        for many in [four, six] {
            let err = reads(version, &many).unwrap_err();
            assert!(err.ends_with("does not support more than 1 address per family"), "{err}");
        }
    }
    assert_eq!((reads("0.3.0", &four), reads("0.3.0", &six)), (Ok(2), Ok(2)));
}

#[test]
fn a_network_tells_where_its_leases_are() {
    let list = |ipams: &[Value]| {
        let plugins: Vec<Value> =
            ipams.iter().map(|ipam| json!({ "type": "bridge", "ipam": ipam })).collect();
        let list = json!({ "cniVersion": "1.0.0", "name": "net", "plugins": plugins });
        NetworkList::parse(list.to_string().as_bytes()).unwrap()
    };
    let list = list(&[
        json!({ "type": "host-local", "dataDir": "/a" }),
        json!({ "type": "host-local", "dataDir": "" }),
        json!({ "type": "host-local" }),
        json!({ "type": "static", "dataDir": "/b" }),
        Value::Null,
    ]);
    assert_eq!(data_dirs(&list), [PathBuf::from("/a"), PathBuf::from("/b")]);
    let used: Vec<bool> = list.plugins.iter().map(is_used_by).collect();
    assert_eq!(used, [true, true, true, false, false]);
}

#[test]
fn range_sets_come_in_the_order_of_the_reference() {
    let document = json!({
        "ipam": {
            "ranges": [[{ "subnet": "10.3.0.0/30" }, { "subnet": "10.4.0.0/30" }]],
            "subnet": "10.2.0.0/24", "rangeStart": "10.2.0.9", "rangeEnd": "10.2.0.9",
        },
        "runtimeConfig": { "IPRanges": [[{ "Subnet": "10.1.0.0/30", "RangeStart": "10.1.0.2" }]] },
    });
    assert_eq!(
        sets(&document),
        ["10.1.0.2-10.1.0.2", "10.2.0.9-10.2.0.9", "10.3.0.1-10.3.0.2,10.4.0.1-10.4.0.2"]
    );
    // Without a subnet the oldest form isn't there at all, whatever else it says.
    let document =
        json!({ "ipam": { "rangeStart": "1.1.1.1", "subnet": "", "ranges": [[{ "subnet": "::/0" }]] } });
    assert_eq!(sets(&document).len(), 1);
}

#[test]
fn requested_addresses_come_in_order_and_once() {
    let document = json!({
        "ipam": { "subnet": "10.0.0.0/24" },
        "args": { "cni": { "ips": ["10.0.0.6", "10.0.0.5/24"] } },
        "runtimeConfig": { "ips": ["fd00::1/64", "10.0.0.6"] },
    });
    assert_eq!(requested(&document, "IP=10.0.0.5/16"), ["10.0.0.5", "10.0.0.6", "fd00::1"]);
    assert_eq!(requested(&document, "IP="), ["10.0.0.6", "10.0.0.5", "fd00::1"]);
    let document =
        json!({ "ipam": { "subnet": "10.0.0.0/24" }, "args": null, "runtimeConfig": { "ips": null } });
    assert!(requested(&document, "").is_empty());
    let err = read_with(&document, "IP=10.0.0").unwrap_err();
    assert_eq!(
        (err.code, err.msg.as_str()),
        (Code::INVALID_ENVIRONMENT, "CNI_ARGS: IP: cannot understand ip: 10.0.0")
    );
}

#[test]
fn everything_else_is_read_and_defaulted() {
    let config = read(&json!({ "ipam": {
        "SUBNET": "fd00::/64", "dataDir": "/tmp/x", "resolvConf": "/etc/resolv.conf",
        "routes": [{ "dst": "::/0", "gw": "fd00::9", "mtu": 1400, "advmss": 1300, "priority": 5, "table": 100, "scope": 0 }],
    } }))
    .unwrap();
    assert_eq!(config.store, Path::new("/tmp/x/net"));
    assert_eq!(config.resolv_conf.as_deref(), Some(Path::new("/etc/resolv.conf")));
    let route = &config.routes[0];
    assert_eq!(
        (route.mtu, route.advmss, route.priority, route.table),
        (Some(1400), Some(1300), Some(5), Some(100))
    );
    let config =
        read(&json!({ "ipam": { "subnet": "fd00::/64", "dataDir": "", "resolvConf": "", "routes": null } }))
            .unwrap();
    assert_eq!(config.store, Path::new("/var/lib/cni/networks/net"));
    assert_eq!(config.resolv_conf, None);
}

#[test]
fn says_what_is_wrong_and_where() {
    let ranges = |ranges: Value| json!({ "ipam": { "ranges": ranges } });
    for (document, msg, details) in [
        (json!({}), "IPAM config missing 'ipam' key", ""),
        (json!({ "ipam": null }), "IPAM config missing 'ipam' key", ""),
        (json!({ "ipam": {} }), "no IP ranges specified", "give ipam.ranges"),
        (ranges(json!([])), "no IP ranges specified", "give ipam.ranges"),
        (
            json!({ "ipam": { "subnet": "10.0.0.0/24", "keepFor": -1 } }),
            "ipam.keepFor: invalid value: integer `-1`, expected u64",
            "",
        ),
        (ranges(json!([[]])), "invalid range set 0: empty range set", "see ipam.ranges[0]"),
        (ranges(json!([[{}]])), "invalid range set 0: subnet is missing", "see ipam.ranges[0][0]"),
        (
            ranges(json!([[{ "subnet": "10.0.0.0/24" }, { "subnet": "10.0.0" }]])),
            "ipam.ranges[0][1].subnet: invalid CIDR address: 10.0.0",
            "",
        ),
        (
            ranges(json!([[{ "subnet": "10.0.0.0/24", "gateway": "x" }]])),
            "ipam.ranges[0][0].gateway: invalid IP address: x",
            "",
        ),
        (
            ranges(json!([{ "subnet": "10.0.0.0/24" }])),
            "ipam.ranges[0]: invalid type: object, expected a list",
            "",
        ),
        (
            ranges(
                json!([[{ "subnet": "10.0.0.0/24" }], [{ "subnet": "10.1.0.0/16" }, { "subnet": "10.0.0.1/24" }]]),
            ),
            "invalid range set 1: Network has host bits set. For a subnet mask of length 24 the network address is 10.0.0.0",
            "see ipam.ranges[1][1]",
        ),
        (
            ranges(json!([[{ "subnet": "10.0.0.0/24" }, { "subnet": "fd00::/64" }]])),
            "invalid range set 0: mixed address families",
            "see ipam.ranges[0]",
        ),
        (
            json!({
                "ipam": { "subnet": "10.0.0.0/24", "ranges": [[{ "subnet": "fd00::/64" }], [{ "subnet": "10.0.0.0/25" }]] },
            }),
            "range set 0 overlaps with 2",
            "see ipam.subnet and ipam.ranges[1]",
        ),
        (
            json!({ "ipam": { "subnet": "10.0.0.0/32" } }),
            "invalid range set 0: Network 10.0.0.0/32 too small to allocate from",
            "see ipam.subnet",
        ),
        (
            json!({ "ipam": { "subnet": "10.0.0.0/24" }, "runtimeConfig": { "ipRanges": [[{ "subnet": "fd00::/128" }]] } }),
            "invalid range set 0: Network fd00::/128 too small to allocate from",
            "see runtimeConfig.ipRanges[0][0]",
        ),
        (
            json!({ "ipam": { "subnet": "10.0.0.0/24" }, "args": { "cni": { "ips": [""] } } }),
            "args.cni.ips[0]: invalid IP address: ",
            "",
        ),
        (
            json!({ "ipam": { "subnet": "10.0.0.0/24" }, "runtimeConfig": { "ips": ["10.0.0.1/99"] } }),
            "runtimeConfig.ips[0]: invalid IP address: 10.0.0.1/99",
            "",
        ),
        (
            json!({ "ipam": { "subnet": "10.0.0.0/24", "dataDir": "/a\u{0}b" } }),
            "ipam.dataDir: a path can't hold a NUL character",
            "",
        ),
        (
            json!({ "ipam": { "subnet": "10.0.0.0/24", "routes": [{ "dst": "x" }] } }),
            "ipam.routes[0].dst: invalid CIDR address: x",
            "",
        ),
        (
            json!({ "cniVersion": "0.2.0", "ipam": { "ranges": [[{ "subnet": "10.0.0.0/24" }], [{ "subnet": "10.0.1.0/24" }]] } }),
            "CNI version 0.2.0 does not support more than 1 address per family",
            "",
        ),
    ] {
        let err = read(&document).unwrap_err();
        assert_eq!((err.code, err.msg.as_str()), (Code::INVALID_CONFIG, msg), "{document}");
        assert!(
            err.details.starts_with(details) && err.details.is_empty() == details.is_empty(),
            "{}",
            err.details
        );
    }
    let two = json!({ "cniVersion": "0.2.0", "ipam": { "ranges": [[{ "subnet": "10.0.0.0/24" }], [{ "subnet": "fd00::/64" }]] } });
    assert_eq!(sets(&two).len(), 2);
}

#[test]
fn del_needs_nothing_but_the_store() {
    let config = |text: &Value| PluginConfig::parse(text.to_string().as_bytes()).unwrap();
    let bad = json!({ "cniVersion": "1.0.0", "name": "n", "ipam": { "dataDir": "/d", "ranges": 5, "subnet": [] }, "args": 7 });
    assert_eq!(store_path(&config(&bad)).unwrap(), Path::new("/d/n"));
    let err = store_path(&config(&json!({ "name": "n" }))).unwrap_err();
    assert_eq!(err.msg, "IPAM config missing 'ipam' key");
}
