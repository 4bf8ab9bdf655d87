//! Wrong input on stdin, and wrong values of the keys that every plugin has.

use serde_json::{Value, json};

use cnimble_tests::Sample;

use super::{Change, Table};

pub(super) fn standard_input(table: &mut Table) {
    let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
    let object = br#"{"cniVersion":"1.0.0","name":"n","type":"bridge"}"#;
    for Sample { plugin, .. } in Sample::all() {
        for bytes in [
            b"".as_slice(),
            b" \n",
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
    // Go reads it as an object without keys.
    table.stdin(b"null", 7, "missing network name").of("bridge");
    let mut large = vec![b' '; 17 << 20];
    large.extend_from_slice(object);
    table.row("17 MB on stdin".into(), Change::Stdin(large), 5, "larger");
}

pub(super) fn common_keys(table: &mut Table) {
    for Sample { plugin, .. } in Sample::all() {
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
        // DEL continues without it (tests/compat/shapes).
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
