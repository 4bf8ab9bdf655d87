//! The readers of the configuration and of backups, for fuzzers.

use cnimble_cni::PluginConfig;
use cnimble_plugin::{Call, Command, Undo};

use crate::backup::Backup;
use crate::config::{Config, DataDir};

/// Takes any configuration.
pub fn config(config: &PluginConfig) {
    let _ = DataDir::read(config);
    let call = Call {
        command: Command::Add,
        container_id: "c".into(),
        netns: String::new(),
        ifname: "eth0".into(),
        raw_args: "MAC=02:00:00:00:00:01".into(),
        path: Vec::new(),
        config: config.clone(),
        stdin: Vec::new(),
        undo: Undo::new(),
        plugins: &[],
        program: "/none".into(),
        home: None,
    };
    let Ok(config) = Config::read(&call, "eth0") else { return };
    for sysctl in &config.sysctls {
        // What is below net/ is the pod's own, and a key never leads out of it.
        assert!(sysctl.path.starts_with("net/") && !sysctl.path.split('/').any(|part| part == ".."));
    }
}

/// Takes any bytes for a backup.
pub fn backup(bytes: &[u8]) {
    let Ok(backup) = Backup::parse(bytes) else { return };
    let _ = backup.settings();
    let again = backup.to_json().map_err(|err| err.to_string());
    assert_eq!(again.map(|text| Backup::parse(&text).ok()), Ok(Some(backup)));
}
