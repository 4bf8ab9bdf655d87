//! Wrong environment variables: missing, empty, not UTF-8 or malformed.

use serde_json::json;

use super::{Change, Table};

pub(super) fn variables(table: &mut Table) {
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
    // lo already exists.
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
    // The plugin's own namespace.
    for plugin in ["bridge", "loopback"] {
        table.env("CNI_NETNS", "/proc/self/ns/net", 8, "netns").of(plugin);
        table.env("CNI_NETNS", "/proc/thread-self/ns/net", 8, "netns").of(plugin);
    }
    for path in ["/nowhere", "relative", ":", "/etc/hostname"] {
        table.env("CNI_PATH", path, 104, "host-local");
    }
}
