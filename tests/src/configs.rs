//! Configurations that tests start from.

use serde_json::{Value, json};

use crate::Host;

/// The versions of the specification, oldest first.
pub const VERSIONS: &[&str] = &["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// The newest version that the plugins under test and the test both know.
pub fn newest() -> &'static str {
    use std::sync::OnceLock;
    static NEWEST: OnceLock<&str> = OnceLock::new();
    NEWEST.get_or_init(|| {
        let answer = Host::new().call("bridge").command("VERSION").run().result();
        let known = |version: &&&str| {
            let supported = answer["supportedVersions"].as_array().unwrap();
            supported.iter().any(|other| other == **version)
        };
        VERSIONS.iter().rev().find(known).unwrap()
    })
}

/// bridge `br0` with gateway and host-local on 10.1.2.0/24, a default route.
pub fn v4(host: &Host) -> Value {
    json!({
        "cniVersion": newest(),
        "name": "net4",
        "type": "bridge",
        "bridge": "br0",
        "isGateway": true,
        "ipam": {
            "type": "host-local",
            "dataDir": host.data_dir(),
            "ranges": [[{"subnet": "10.1.2.0/24"}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    })
}

/// As [`v4`], with fd00:1:2::/64 as well.
pub fn dual(host: &Host) -> Value {
    let mut config = v4(host);
    config["name"] = "net64".into();
    config["ipam"]["ranges"] = json!([[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00:1:2::/64"}]]);
    config["ipam"]["routes"] = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
    config
}

/// A bridge without addresses.
pub fn layer2() -> Value {
    json!({
        "cniVersion": newest(),
        "name": "net2",
        "type": "bridge",
        "bridge": "br0",
    })
}

/// host-local on its own.
pub fn ipam(host: &Host) -> Value {
    let mut config = v4(host);
    config["type"] = "host-local".into();
    config
}

/// The configuration of loopback.
pub fn loopback() -> Value {
    json!({"cniVersion": newest(), "name": "cni-loopback", "type": "loopback"})
}
