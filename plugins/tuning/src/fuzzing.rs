//! Entry points for fuzzers.

use crate::backup::Backup;
use crate::config::Config;

pub(crate) fn config(config: &Config) {
    for sysctl in &config.sysctls {
        // Sysctls below net/ belong to the namespace of the pod, and no key may lead out of that directory.
        assert!(sysctl.path.starts_with("net/") && !sysctl.path.split('/').any(|part| part == ".."));
    }
}

pub fn backup(bytes: &[u8]) {
    let Ok(backup) = Backup::parse(bytes) else { return };
    let _ = backup.settings();
    let again = backup.to_json().map_err(|err| err.to_string());
    assert_eq!(again.map(|text| Backup::parse(&text).ok()), Ok(Some(backup)));
}
