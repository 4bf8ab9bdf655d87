//! The input from a runtime: configurations, arguments and results.

use serde_json::Value;

use cnimble_cni::{CniArgs, CniResult, Error, NetworkList, PluginConfig, Version, json};
use cnimble_plugin::{Call, Command};
use cnimble_plugins::PLUGINS;

/// Parses stdin of a plugin, for every plugin and verb.
pub fn config(bytes: &[u8]) {
    let _ = PluginConfig::version_of(bytes);
    let strict = PluginConfig::parse(bytes);
    let lax = PluginConfig::parse_for_del(bytes);
    // DEL accepts all that ADD accepts, and more.
    assert!(strict.is_err() || matches!(&lax, Ok((_, None))));
    let Ok((config, _)) = lax else { return };
    every_plugin_reads(&config, bytes, "IP=10.1.2.9/24;GATEWAY=10.1.2.1;MAC=02:00:00:00:00:01");
}

/// Parses the configuration in every plugin, with these CNI_ARGS.
fn every_plugin_reads(config: &PluginConfig, stdin: &[u8], args: &str) {
    let mut call = Call::new(Command::Add, config.clone(), stdin.to_vec());
    (call.container_id, call.ifname, call.raw_args) = ("c".into(), "eth0".into(), args.into());
    for plugin in PLUGINS {
        let _ = plugin.read_config(&call);
    }
}

/// Parses a file of /etc/cni/net.d.
pub fn list(bytes: &[u8]) {
    for list in [NetworkList::parse(bytes), NetworkList::parse_single(bytes)].into_iter().flatten() {
        assert!(cnimble_cni::names::is_identifier(&list.name));
        for entry in &list.plugins {
            let config = list.configuration(entry, &Default::default());
            // Our own output must be accepted as input.
            let read = PluginConfig::parse_for_del(config.to_string().as_bytes());
            assert!(read.is_err() || read.is_ok_and(|(read, _)| read.name == list.name));
        }
    }
}

/// Parses the value of CNI_ARGS.
pub fn args(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let Ok(args) = CniArgs::parse(&text) else { return };
    for (key, _) in args.pairs() {
        assert!(args.get(key).is_some());
    }
    let again: Vec<String> = args.pairs().iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(CniArgs::parse(&again.join(";")).unwrap(), args);
    let _ = args.allow(&["IP", "GATEWAY", "MAC"]);
    let config = br#"{"name":"n","cniVersion":"1.0.0","type":"t","ipam":{"type":"host-local","subnet":"10.1.2.0/24"}}"#;
    every_plugin_reads(&PluginConfig::parse(config).unwrap(), config, &text);
}

/// Parses the answer of a plugin or a delegate: a result of any version, or an error.
pub fn result(bytes: &[u8]) {
    if let Some(err) = Error::from_json(bytes) {
        let again = Error::from_json(err.to_json(Version::LATEST).as_bytes()).unwrap();
        assert_eq!((again.code, &again.msg, &again.details), (err.code, &err.msg, &err.details));
    }
    let Ok(value) = json::parse_object(bytes, "result") else { return };
    for fallback in Version::ALL {
        let Ok(result) = CniResult::from_value(&value, *fallback, "") else { continue };
        for version in Version::ALL {
            let Ok(form) = result.to_value(*version) else { continue };
            let text = result.to_json(*version).unwrap();
            let read = |value: &Value| CniResult::from_value(value, Version::V0_1_0, "").unwrap();
            // Older formats can't express everything. Their contents survive.
            let once = read(&form);
            assert_eq!(read(&serde_json::from_str(&text).unwrap()), once);
            let twice = read(&once.to_value(*version).unwrap());
            assert_eq!(once, twice, "{version}");
            if *version == Version::LATEST {
                assert_eq!(once.ips, result.ips);
                assert_eq!(once.interfaces, result.interfaces);
            }
        }
    }
}
