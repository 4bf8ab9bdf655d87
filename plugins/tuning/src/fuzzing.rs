//! Entry points for fuzzers: the configuration, and the reader of backups.

use crate::backup::Backup;
use crate::config::Config;

/// Checks what holds for every accepted configuration.
pub(crate) fn config(config: &Config) {
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
