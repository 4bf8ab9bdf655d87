//! Every parameter and key, wrong in every way: one CNI error with the specification's
//! code, exit status 1, exactly one JSON object, and a host on which nothing has changed.
// Tests stop at the first surprise; clippy doesn't see that this whole crate is one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use cnimble_tests::{Call, Host, Pod, Snapshot, announce, configs, need, skip};
use serde_json::{Value, json};

/// One wrong call and what the answer must be.
struct Row {
    name: String,
    verb: &'static str,
    plugin: &'static str,
    change: Change,
    code: u64,
    /// What message or details must contain, whatever the case of its letters.
    says: String,
}

/// How the call differs from one that would succeed.
enum Change {
    /// A variable has another value; `None` takes it away.
    Env(&'static str, Option<Vec<u8>>),
    /// stdin is something else.
    Stdin(Vec<u8>),
    /// These keys of the configuration have other values.
    Keys(Vec<(String, Value)>),
    /// The key is missing.
    Without(&'static str),
    /// The whole configuration.
    Config(Value),
}

#[derive(Default)]
struct Table(Vec<Row>);

impl Table {
    fn row(&mut self, name: String, change: Change, code: u64, says: &str) -> &mut Row {
        self.0.push(Row { name, verb: "ADD", plugin: "bridge", change, code, says: says.to_lowercase() });
        self.0.last_mut().unwrap()
    }

    fn env(&mut self, key: &'static str, value: &str, code: u64, says: &str) -> &mut Row {
        let change = Change::Env(key, Some(value.into()));
        self.row(format!("{key}={value:.40}"), change, code, says)
    }

    fn no_env(&mut self, key: &'static str) -> &mut Row {
        self.row(format!("no {key}"), Change::Env(key, None), 4, key)
    }

    fn stdin(&mut self, bytes: &[u8], code: u64, says: &str) -> &mut Row {
        let name = format!("stdin {:.40}", String::from_utf8_lossy(bytes));
        self.row(name, Change::Stdin(bytes.into()), code, says)
    }

    fn key(&mut self, pointer: &str, value: Value, code: u64, says: &str) -> &mut Row {
        let name = format!("{pointer} = {value}");
        self.row(name, Change::Keys(vec![(pointer.into(), value)]), code, says)
    }

    /// As [`key`](Self::key), in host-local called on its own.
    fn ipam(&mut self, pointer: &str, value: Value, code: u64, says: &str) -> &mut Row {
        self.key(pointer, value, code, says).of("host-local")
    }

    /// An ADD of host-local with this list of range sets.
    fn ranges(&mut self, ranges: Value, says: &str) -> &mut Row {
        self.ipam("/ipam/ranges", ranges, 7, says)
    }
}

impl Row {
    fn of(&mut self, plugin: &'static str) -> &mut Row {
        self.plugin = plugin;
        self
    }

    fn on(&mut self, verb: &'static str) -> &mut Row {
        self.verb = verb;
        self
    }

    fn and(&mut self, pointer: &str, value: Value) -> &mut Row {
        let Change::Keys(keys) = &mut self.change else {
            panic!("only for keys");
        };
        keys.push((pointer.into(), value));
        self
    }
}

fn environment(table: &mut Table) {
    for key in ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"] {
        table.no_env(key);
        table.no_env(key).on("CHECK");
        table.env(key, "", 4, key);
    }
    for key in ["CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"] {
        table.no_env(key).on("DEL");
        table.no_env(key).of("host-local");
        table.no_env(key).of("loopback").on("DEL");
    }
    for verb in ["GC", "STATUS"] {
        for plugin in ["bridge", "host-local", "loopback"] {
            table.no_env("CNI_PATH").of(plugin).on(verb);
        }
    }
    for verb in ["add", "ADDD", " ADD", "ADD ", "VERSION1", "\u{1f980}"] {
        table.env("CNI_COMMAND", verb, 4, "unknown CNI_COMMAND");
    }
    let not_utf8 = |key: &'static str| Change::Env(key, Some(b"a\xff".to_vec()));
    for key in ["CNI_CONTAINERID", "CNI_IFNAME", "CNI_ARGS", "CNI_NETNS"] {
        table.row(format!("{key} is not UTF-8"), not_utf8(key), 4, key);
    }
    table.row("CNI_COMMAND is not UTF-8".into(), not_utf8("CNI_COMMAND"), 4, "unknown CNI_COMMAND");
    for id in ["-a", ".", "..", "../x", "a/b", "a b", "a\nb", "a;b", "\u{e9}", "_a", "a\"b", "a$b"] {
        table.env("CNI_CONTAINERID", id, 4, "CNI_CONTAINERID");
        table.env("CNI_CONTAINERID", id, 4, "CNI_CONTAINERID").on("DEL");
    }
    let names = [
        "sixteen-bytes-xx",
        ".",
        "..",
        "a/b",
        "a:b",
        "a b",
        "a\tb",
        "a\nb",
        "\u{fc}\u{fc}\u{fc}\u{fc}\u{fc}\u{fc}\u{fc}\u{fc}",
    ];
    for name in names {
        table.env("CNI_IFNAME", name, 4, "CNI_IFNAME");
        table.env("CNI_IFNAME", name, 4, "CNI_IFNAME").on("DEL");
    }
    // lo is there already.
    table.env("CNI_IFNAME", "lo", 102, "lo");
    for args in ["IP", "IP=1=2", "=1", ";", "MAC=02:00:00:00:00:01;;IP=10.1.2.9", " "] {
        table.env("CNI_ARGS", args, 4, "CNI_ARGS");
        table.env("CNI_ARGS", args, 4, "CNI_ARGS").of("host-local");
    }
    table.env("CNI_ARGS", "Other=1", 4, "Other");
    table.env("CNI_ARGS", "IgnoreUnknown=0;Other=1;More=2", 4, "Other");
    table.env("CNI_ARGS", "ip=10.1.2.9", 4, "ip");
    table.env("CNI_ARGS", "IgnoreUnknown=perhaps", 4, "IgnoreUnknown");
    for mac in [
        "banana",
        "02:00:00:00:00",
        "02:00:00:00:00:00:01",
        "02:00:00:00:00:0g",
        "01:00:5e:00:00:01",
        "ff:ff:ff:ff:ff:ff",
        "00:00:00:00:00:00",
    ] {
        table.env("CNI_ARGS", &format!("MAC={mac}"), 4, "MAC");
        table.key("/runtimeConfig", json!({"mac": mac}), 7, "mac");
        table.key("/args", json!({"cni": {"mac": mac}}), 7, "mac");
    }
    for ip in ["banana", "10.1.2", "10.1.2.300", "10.1.2.9/33", "10.1.2.9/x", "fd00::g"] {
        table.env("CNI_ARGS", &format!("IP={ip}"), 4, "IP");
        table.env("CNI_ARGS", &format!("IP={ip}"), 4, "IP").of("host-local");
    }
    for (ip, says) in [
        ("10.9.9.9", "failed to allocate all requested IPs"),
        ("10.1.2.1", "gateway"),
        ("10.1.2.0", "10.1.2.0"),
        ("10.1.2.255", "10.1.2.255"),
        ("fd00:9::9", "failed to allocate all requested IPs"),
    ] {
        table.env("CNI_ARGS", &format!("IP={ip}"), 101, says);
        table.env("CNI_ARGS", &format!("IP={ip}"), 101, says).of("host-local");
    }
    for path in ["/var/run/netns/nowhere", "relative/path", "/proc/4194304/ns/net"] {
        table.env("CNI_NETNS", path, 8, path);
        table.env("CNI_NETNS", path, 8, path).of("loopback");
    }
    for path in ["/etc/hostname", "/tmp", "/proc/self/ns/mnt", "/dev/null"] {
        table.env("CNI_NETNS", path, 8, path);
        table.env("CNI_NETNS", path, 8, path).of("loopback");
        table.env("CNI_NETNS", path, 8, path).on("CHECK");
    }
    // The plugin's own.
    for plugin in ["bridge", "loopback"] {
        table.env("CNI_NETNS", "/proc/self/ns/net", 8, "netns").of(plugin);
        table.env("CNI_NETNS", "/proc/thread-self/ns/net", 8, "netns").of(plugin);
    }
    for path in ["/nowhere", "relative", ":", "/etc/hostname"] {
        table.env("CNI_PATH", path, 104, "host-local");
    }
}

fn standard_input(table: &mut Table) {
    let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
    let object = br#"{"cniVersion":"1.0.0","name":"n","type":"bridge"}"#;
    for plugin in ["bridge", "host-local", "loopback"] {
        for bytes in [
            b"".as_slice(),
            b" \n",
            b"null",
            b"[]",
            b"3",
            b"\"text\"",
            b"{",
            b"{\"name\":",
            b"{'name':'n'}",
            b"\xff\xfe{}",
            b"\0",
            b"{\"name\":\"\xff\"}",
            b"{\"name\":\"n\",}",
            &[object.as_slice(), b"garbage"].concat(),
            &[object.as_slice(), object].concat(),
            &deep,
            br#"{"name":"\ud800"}"#,
            br#"{"name":"n","mtu":1e999}"#,
        ] {
            table.stdin(bytes, 6, "").of(plugin);
        }
    }
    let mut large = vec![b' '; 17 << 20];
    large.extend_from_slice(object);
    table.row("17 MB on stdin".into(), Change::Stdin(large), 5, "larger");
}

fn common_keys(table: &mut Table) {
    for plugin in ["bridge", "host-local", "loopback"] {
        for version in ["9.9.9", "1.0", "banana", "0.9.0", "1.0.0 ", "v1.0.0"] {
            table.key("/cniVersion", json!(version), 1, "incompatible CNI versions").of(plugin);
        }
        for version in [json!(1), json!(1.0), json!([]), json!({}), json!(true)] {
            table.key("/cniVersion", version, 7, "cniVersion").of(plugin);
        }
        for name in [json!(""), json!(null)] {
            table.key("/name", name, 7, "missing network name").of(plugin);
        }
        table.row("no name".into(), Change::Without("name"), 7, "missing network name").of(plugin);
        for name in ["a/b", "../x", ".", "..", " ", "-a", "a b", "a\nb", "\u{e9}", "a\u{0}b"] {
            table.key("/name", json!(name), 7, "network name").of(plugin);
        }
        for name in [json!(5), json!([]), json!({}), json!(true)] {
            table.key("/name", name, 7, "name").of(plugin);
        }
        table.key("/type", json!(5), 7, "type").of(plugin);
    }
    for (value, says) in [
        (json!(5), "prevResult"),
        (json!("x"), "prevResult"),
        (json!([]), "prevResult"),
        (json!({"ips": 5}), "prevResult.ips"),
        (json!({"ips": [5]}), "prevResult.ips[0]"),
        (json!({"ips": [{"address": "banana"}]}), "prevResult.ips[0].address"),
        (json!({"ips": [{"address": "10.1.2.3"}]}), "prevResult.ips[0].address"),
        (json!({"ips": [{"address": "10.1.2.3/24", "gateway": "x"}]}), "prevResult.ips[0].gateway"),
        (json!({"ips": [{"address": "10.1.2.3/24", "interface": "x"}]}), "prevResult.ips[0].interface"),
        (json!({"interfaces": [{"name": 5}]}), "prevResult.interfaces[0].name"),
        (json!({"interfaces": {}}), "prevResult.interfaces"),
        (json!({"routes": [{"dst": "x"}]}), "prevResult.routes[0].dst"),
        (json!({"dns": {"nameservers": "x"}}), "prevResult.dns.nameservers"),
    ] {
        // DEL goes on without (tests/shapes.rs).
        for (plugin, verb) in [("bridge", "CHECK"), ("bridge", "ADD"), ("loopback", "ADD")] {
            table.key("/prevResult", value.clone(), 7, says).on(verb).of(plugin);
        }
    }
    let unknown = json!({"cniVersion": "7.7.7"});
    table.key("/prevResult", unknown, 1, "prevResult").on("CHECK");
    table.row("CHECK without prevResult".into(), Change::Without("prevResult"), 7, "prevResult").on("CHECK");
    for verb in ["GC", "STATUS"] {
        for version in ["0.1.0", "0.4.0", "1.0.0"] {
            table.key("/cniVersion", json!(version), 1, verb).on(verb);
            table.key("/cniVersion", json!(version), 1, verb).on(verb).of("loopback");
        }
    }
    for version in ["0.1.0", "0.3.1"] {
        table.key("/cniVersion", json!(version), 1, "CHECK").on("CHECK");
    }
    for list in [
        json!(5),
        json!("x"),
        json!({}),
        json!([5]),
        json!([{"containerID": 5, "ifname": "eth0"}]),
        json!([{"containerID": "a"}]),
        json!([{"ifname": "eth0"}]),
        json!([{"containerID": "a", "ifname": []}]),
        json!([[]]),
        json!(true),
    ] {
        let config = |mut config: Value| {
            config["cni.dev/valid-attachments"] = list.clone();
            Change::Config(config)
        };
        for plugin in ["bridge", "host-local"] {
            let base = json!({
                "cniVersion": "1.1.0", "name": "n", "type": plugin, "bridge": "br0",
                "ipam": {"type": "host-local", "subnet": "10.1.2.0/24", "dataDir": "/nowhere/networks"},
            });
            let name = format!("valid-attachments {list}");
            table.row(name, config(base), 7, "cni.dev/valid-attachments").on("GC").of(plugin);
        }
    }
}

fn bridge_keys(table: &mut Table) {
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
    for mtu in
        [json!("1500"), json!(-1), json!(1.5), json!(67), json!(65536), json!(4294967296_u64), json!([])]
    {
        table.key("/mtu", mtu, 7, "mtu");
    }
    for vlan in [json!("5"), json!(-1), json!(4095), json!(65541), json!(1.5), json!({})] {
        table.key("/vlan", vlan, 7, "vlan");
    }
    for trunk in [
        json!(5),
        json!({}),
        json!([5]),
        json!([{}]),
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
    // What the IPAM plugin says comes through with its own code, and nothing is left.
    table.key("/ipam/ranges", json!([[{"subnet": "banana"}]]), 7, "ipam.ranges[0][0].subnet");
    table.key("/ipam/ranges", json!([]), 7, "no IP ranges specified");
    // Only the kernel knows what it takes (v4 by way of v6 is possible, say).
    table.key("/ipam/routes", json!([{"dst": "fd00:9::/64", "gw": "10.1.2.1"}]), 100, "fd00:9::/64");
}

fn host_local_keys(table: &mut Table) {
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
    for subnet in ["10.1.2.0/31", "10.1.2.0/32", "fd00::/127", "fd00::/128"] {
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

/// The call of a row, on a host whose pod is there.
fn call<'h>(host: &'h Host, pod: &Pod, row: &Row) -> Call<'h> {
    let mut config = match row.plugin {
        "bridge" => configs::v4(host),
        "host-local" => configs::ipam(host),
        _ => configs::loopback(),
    };
    if row.verb == "CHECK" {
        config["prevResult"] = json!({
            "cniVersion": configs::newest(),
            "interfaces": [{"name": "br0"}, {"name": "veth1"}, {"name": "eth0", "sandbox": pod.path()}],
        });
    }
    let mut call = host.call(row.plugin).command(row.verb).attachment("bad", pod.path(), "eth0");
    match &row.change {
        Change::Env(key, Some(value)) => call = call.env(key, OsStr::from_bytes(value)),
        Change::Env(key, None) => call = call.unset(key),
        Change::Stdin(bytes) => return call.stdin(bytes.clone()),
        Change::Keys(keys) => {
            for (pointer, value) in keys {
                let (parent, key) = pointer.rsplit_once('/').unwrap();
                config.pointer_mut(parent).unwrap()[key] = value.clone();
            }
        }
        Change::Without(key) => {
            config.as_object_mut().unwrap().remove(*key);
        }
        Change::Config(whole) => config = whole.clone(),
    }
    call.config(&config)
}

/// What is wrong with the answer; `None` if nothing is.
fn judge(row: &Row, call: &Call<'_>) -> Option<String> {
    let outcome = call.run();
    let error = match outcome.try_error() {
        Ok(error) => error,
        Err(why) => return Some(why),
    };
    let all = error.all().to_lowercase();
    if error.code != row.code {
        return Some(format!("code {} instead of {}: {}", error.code, row.code, error.all()));
    }
    if !all.contains(&row.says) {
        return Some(format!("doesn't say \"{}\": {}", row.says, error.all()));
    }
    // go-cni takes these words for "already removed".
    if all.contains("not found") || (row.verb == "DEL" && all.contains("no such file or directory")) {
        return Some(format!("says what runtimes swallow: {}", error.all()));
    }
    if !outcome.stderr.is_empty() {
        return Some(format!("logs without being asked: {}", outcome.stderr));
    }
    None
}

#[test]
fn one_error_and_nothing_changed() {
    need!("ip", "nft");
    if configs::newest() < "1.1.0" {
        skip!("the plugins know {} at most", configs::newest());
    }
    let mut table = Table::default();
    environment(&mut table);
    standard_input(&mut table);
    common_keys(&mut table);
    bridge_keys(&mut table);
    host_local_keys(&mut table);
    let rows = &table.0;
    // Panics of rows are told in one list at the end.
    let failures: Vec<String> = std::thread::scope(|scope| {
        let workers = 4;
        let threads: Vec<_> = (0..workers)
            .map(|worker| {
                scope.spawn(move || {
                    let host = Host::new();
                    let pod = Pod::new();
                    let before = Snapshot::of(&host);
                    let pod_before = Snapshot::of_ns(&pod);
                    let mut failures = Vec::new();
                    let mut host = (host, before);
                    for row in rows.iter().skip(worker).step_by(workers) {
                        let mut wrong: Vec<String> =
                            judge(row, &call(&host.0, &pod, row)).into_iter().collect();
                        let diff =
                            host.1.diff(&Snapshot::of(&host.0)) + &pod_before.diff(&Snapshot::of_ns(&pod));
                        if !diff.is_empty() {
                            wrong.push(format!("changes the host:\n{diff}"));
                            // The next rows start from a clean one.
                            let fresh = Host::new();
                            let before = Snapshot::of(&fresh);
                            host = (fresh, before);
                        }
                        for wrong in wrong {
                            failures.push(format!("{} {}, {}: {wrong}", row.plugin, row.verb, row.name));
                        }
                    }
                    failures
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    announce("NOTE", &format!("{} rows", rows.len()));
    assert!(rows.len() >= 150, "{} rows", rows.len());
    assert!(failures.is_empty(), "{} of {} rows:\n{}", failures.len(), rows.len(), failures.join("\n"));
}
