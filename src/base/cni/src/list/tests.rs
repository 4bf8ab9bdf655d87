//! Lists, good and bad, and what is made of their entries.

use serde_json::json;

use super::*;
use crate::{Attachment, Code};

fn parse(value: &Value) -> Result<NetworkList, Error> {
    NetworkList::parse(value.to_string().as_bytes())
}

fn message(value: &Value) -> (u32, String) {
    let err = parse(value).unwrap_err();
    (err.code.0, err.msg)
}

#[test]
fn reads_a_list() {
    let list = parse(&json!({
        "cniVersion": "1.0.0", "name": "net", "disableCheck": true, "disableGC": "TRUE",
        "plugins": [
            { "type": "bridge", "mtu": 1400 },
            { "type": "portmap", "capabilities": { "portMappings": true, "bandwidth": false, "x": null } },
        ],
    }))
    .unwrap();
    assert_eq!((list.name.as_str(), list.version), ("net", Version::V1_0_0));
    assert_eq!((list.disable_check, list.disable_gc, list.load_only_inlined_plugins), (true, true, false));
    assert_eq!(list.plugins[0].document, json!({ "type": "bridge", "mtu": 1400 }));
    assert_eq!(list.plugins[1].capabilities, ["portMappings"]);
}

#[test]
fn a_portmap_without_the_capability_hears_of_no_ports() {
    let list = parse(&json!({ "name": "n", "plugins": [
        { "type": "portmap", "capabilities": { "portMappings": true } },
        { "type": "portmap", "capabilities": { "portMappings": false, "bandwidth": true } },
        { "type": "portmap" },
        { "type": "bridge" },
    ] }))
    .unwrap();
    let lacks: Vec<bool> = list.plugins.iter().map(ListEntry::lacks_ports).collect();
    assert_eq!(lacks, [false, true, true, false]);
    assert!(list.takes("portMappings") && list.takes("bandwidth") && !list.takes("mac"));
}

#[test]
fn the_highest_known_version_wins() {
    let version = |value: Value| {
        let mut value = value;
        value["name"] = json!("n");
        value["plugins"] = json!([{ "type": "x" }]);
        parse(&value).map(|list| list.version.as_str()).map_err(|err| err.code.0)
    };
    assert_eq!(version(json!({})), Ok("0.1.0"));
    assert_eq!(version(json!({ "cniVersion": "0.4.0" })), Ok("0.4.0"));
    assert_eq!(version(json!({ "cniVersions": ["0.3.1", "1.0.0", "0.4.0"] })), Ok("1.0.0"));
    assert_eq!(version(json!({ "cniVersion": "1.1.0", "cniVersions": ["0.3.1"] })), Ok("1.1.0"));
    assert_eq!(version(json!({ "cniVersion": "0.4.0", "cniVersions": ["1.2.0", "2.0.0"] })), Ok("0.4.0"));
    assert_eq!(version(json!({ "cniVersion": "0.4.0", "cniVersions": [] })), Ok("0.4.0"));
    assert_eq!(version(json!({ "cniVersion": "0.4.0", "cniVersions": null })), Ok("0.4.0"));
    assert_eq!(version(json!({ "cniVersions": [] })), Ok("0.1.0"));
    assert_eq!(version(json!({ "cniVersion": "2.0.0" })), Err(1));
    assert_eq!(version(json!({ "cniVersions": ["2.0.0", "1.2.0"] })), Err(1));
    assert_eq!(version(json!({ "cniVersions": ["1.0"] })), Err(7));
    assert_eq!(version(json!({ "cniVersions": "1.0.0" })), Err(7));
}

#[test]
fn errors() {
    let plugins = json!([{ "type": "x" }]);
    for (value, code, msg) in [
        (json!([]), 6, "network configuration: invalid type: list, expected an object"),
        (json!({ "plugins": plugins }), 7, "missing network name"),
        (json!({ "name": 1, "plugins": plugins }), 7, "name: invalid type: integer `1`, expected a string"),
        (json!({ "name": "../x", "plugins": plugins }), 7, "invalid network name \"../x\""),
        (json!({ "name": "n", "plugins": [] }), 7, "plugins: the list is empty"),
        (json!({ "name": "n", "plugins": {} }), 7, "plugins: invalid type: object, expected a list"),
        (
            json!({ "name": "n", "loadOnlyInlinedPlugins": "true" }),
            7,
            "plugins: missing, and loadOnlyInlinedPlugins rules out any other source",
        ),
        (json!({ "name": "n", "plugins": [{ "type": "a" }, {}] }), 7, "plugins[1]: missing plugin type"),
        (
            json!({ "name": "n", "plugins": ["x"] }),
            7,
            "plugins[0]: invalid type: string \"x\", expected an object",
        ),
        (
            json!({ "name": "n", "plugins": [{ "type": "a", "capabilities": { "ips": "yes" } }] }),
            7,
            "plugins[0].capabilities.ips: invalid type: string \"yes\", expected a boolean",
        ),
        (
            json!({ "name": "n", "disableCheck": "yes", "plugins": plugins }),
            7,
            "disableCheck: invalid value: string \"yes\", expected true or false",
        ),
        (
            json!({ "name": "n", "cniVersions": ["1.0.0", 1], "plugins": plugins }),
            7,
            "cniVersions[1]: invalid type: integer `1`, expected a string",
        ),
        (
            json!({ "name": "n", "cniVersions": ["1.0.0", "x"], "plugins": plugins }),
            7,
            "cniVersions[1]: invalid version: x",
        ),
    ] {
        assert_eq!(message(&value), (code, msg.to_owned()), "{value}");
    }
}

#[test]
fn a_single_configuration_is_a_list_of_one() {
    let list =
        NetworkList::parse_single(br#"{"cniVersion":"0.3.1","name":"n","type":"bridge","mtu":9}"#).unwrap();
    assert_eq!((list.name.as_str(), list.version), ("n", Version::V0_3_1));
    assert_eq!(list.plugins[0].document["mtu"], 9);
    assert_eq!(NetworkList::from_value(list.document.clone()).unwrap().plugins, list.plugins);
    for (text, msg) in [
        (r#"{"name":"n"}"#, "missing plugin type"),
        (r#"{"type":"t"}"#, "missing network name"),
        ("", "network configuration is empty"),
    ] {
        assert_eq!(NetworkList::parse_single(text.as_bytes()).unwrap_err().msg, msg);
    }
}

#[test]
fn plugins_of_a_folder_are_appended() {
    let mut list = parse(&json!({ "name": "n" })).unwrap();
    assert_eq!(list.clone().complete().unwrap_err().msg, "network \"n\" has no plugins");
    let single = parse(&json!({ "name": "n", "type": "bridge" })).unwrap().complete().unwrap_err();
    assert!(single.details.contains(".conf"), "{single}");
    list.push(ListEntry::parse(br#"{"type":"bridge"}"#).unwrap());
    assert_eq!(list.complete().unwrap().plugins.len(), 1);
    assert_eq!(ListEntry::parse(b"{}").unwrap_err().msg, "missing plugin type");
    assert_eq!(ListEntry::parse(b"[]").unwrap_err().code, Code::DECODE);
}

#[test]
fn injects_what_a_plugin_needs_and_nothing_else() {
    let list = parse(&json!({
        "cniVersions": ["1.0.0", "1.1.0"], "name": "net",
        "plugins": [{
            "type": "x", "Name": "old", "CNIVersion": "0.1.0", "key": [1],
            "capabilities": { "portMappings": true, "mac": true, "ips": false },
            "PrevResult": {},
        }],
    }))
    .unwrap();
    let entry = &list.plugins[0];
    assert_eq!(
        list.configuration(entry, &Injection::default()),
        json!({ "type": "x", "name": "net", "cniVersion": "1.1.0", "key": [1], "PrevResult": {} })
    );
    let args = json!({ "portMappings": [], "ips": ["10.0.0.1"], "other": 1 });
    let prev = json!({ "cniVersion": "1.1.0" });
    let attachment = [Attachment { container_id: "c".into(), ifname: "eth0".into() }];
    let injection = Injection::attachment(Some(&prev), args.as_object().unwrap());
    assert_eq!(
        list.configuration(entry, &injection),
        json!({
            "type": "x", "name": "net", "cniVersion": "1.1.0", "key": [1],
            "prevResult": { "cniVersion": "1.1.0" }, "runtimeConfig": { "portMappings": [] },
        })
    );
    let attachments = json!([{ "containerID": "c", "ifname": "eth0" }]);
    let collected = list.configuration(entry, &Injection::gc(Some(&attachment)));
    assert_eq!(collected["cni.dev/valid-attachments"], attachments);
    assert_eq!(collected["cni.dev/attachments"], attachments);
    let kept = list.configuration(entry, &Injection::status());
    assert_eq!(kept["capabilities"], json!({ "portMappings": true, "mac": true, "ips": false }));
    // No attachment is a list, too.
    let none = list.configuration(entry, &Injection::gc(Some(&[])));
    assert_eq!(none["cni.dev/valid-attachments"], json!([]));
}

#[test]
fn keeps_a_runtime_config_that_was_written_by_hand() {
    let list = parse(&json!({
        "name": "n", "plugins": [{ "type": "x", "runtimeConfig": { "mac": "m" }, "capabilities": { "ips": true } }],
    }))
    .unwrap();
    let args = json!({ "mac": "other" });
    let injection = Injection::attachment(None, args.as_object().unwrap());
    let config = list.configuration(&list.plugins[0], &injection);
    assert_eq!(config["runtimeConfig"], json!({ "mac": "m" }));
    assert_eq!(config["cniVersion"], "0.1.0");
}
