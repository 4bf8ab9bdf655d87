use serde_json::json;

use super::*;
use crate::spec::Code;

fn read(version: Version, value: &Value) -> Result<CniResult, Error> {
    CniResult::from_value(value, version, "prevResult")
}

#[test]
fn errors_have_the_path() {
    for (version, value, msg) in [
        (
            Version::V1_0_0,
            json!({ "ips": [{ "address": "10.1.2.3" }] }),
            "prevResult.ips[0].address: invalid CIDR address: 10.1.2.3",
        ),
        (Version::V1_0_0, json!({ "ips": [{}] }), "prevResult.ips[0]: missing field `address`"),
        (Version::V1_0_0, json!({ "ips": [null] }), "prevResult.ips[0]: missing field `address`"),
        (
            Version::V1_0_0,
            json!({ "ips": [{ "address": "10.0.0.1/8", "gateway": "x" }] }),
            "prevResult.ips[0].gateway: invalid IP address: x",
        ),
        (
            Version::V1_0_0,
            json!({ "ips": [{ "address": "10.0.0.1/8", "interface": -2 }] }),
            "prevResult.ips[0].interface: invalid value: integer `-2`, expected an index into the list of interfaces",
        ),
        (
            Version::V0_4_0,
            json!({ "routes": [{ "dst": "10.0.0.0" }] }),
            "prevResult.routes[0].dst: invalid CIDR address: 10.0.0.0",
        ),
        (
            Version::V1_1_0,
            json!({ "routes": [{ "dst": "::/0", "scope": 256 }] }),
            "prevResult.routes[0].scope: invalid value: integer `256`, expected u8",
        ),
        (
            Version::V0_2_0,
            json!({ "ip4": { "ip": "10.0.0.1/8", "routes": [{ "dst": "x" }] } }),
            "prevResult.ip4.routes[0].dst: invalid CIDR address: x",
        ),
        (Version::V0_1_0, json!({ "ip6": {} }), "prevResult.ip6: missing field `ip`"),
        (
            Version::V1_0_0,
            json!({ "dns": { "search": ["a", 1] } }),
            "prevResult.dns.search[1]: invalid type: integer `1`, expected a string",
        ),
        (
            Version::V1_0_0,
            json!({ "cniVersion": 1 }),
            "prevResult.cniVersion: invalid type: integer `1`, expected a string",
        ),
        (Version::V1_0_0, json!([]), "prevResult: invalid type: list, expected an object"),
    ] {
        let err = read(version, &value).unwrap_err();
        assert_eq!((err.code, err.msg.as_str()), (Code::INVALID_CONFIG, msg), "{value}");
    }
}

#[test]
fn reads_what_runtimes_and_old_plugins_write() {
    let result = read(
        Version::V0_3_0,
        &json!({
            "IPs": [{ "version": "4", "interface": -1, "address": "10.0.0.2/24", "gateway": "" }],
            "routes": null, "dns": {}, "interfaces": [{ "name": "eth0", "mtu": 0 }],
        }),
    )
    .unwrap();
    assert_eq!((result.ips[0].interface, result.ips[0].gateway), (None, None));
    assert_eq!(result.interfaces[0].mtu, None);
    assert!(result.dns.is_empty());
}

#[test]
fn without_an_address_there_is_no_old_form() {
    let err = CniResult::default().to_json(Version::V0_2_0).unwrap_err();
    assert_eq!(err.code, Code::INCOMPATIBLE_VERSION);
    assert_eq!(err.msg, "cannot convert: no valid IP addresses");
    assert_eq!(
        CniResult::default().to_json(Version::V0_3_0).unwrap(),
        "{\n    \"cniVersion\": \"0.3.0\",\n    \"dns\": {}\n}"
    );
}
