//! The sysctls that the node's administrator allows: a regular expression in each line of a file. A key is allowed if
//! one of them matches a part of it. Without the file all keys are allowed, and with an empty file none.

use std::path::Path;

use regex_lite::Regex;

use cnimble_cni::Error;
use cnimble_os::files::{self as files, IfPresent, Links};

use crate::config::Sysctl;

/// The file of the node's administrator, which the Go plugin reads as well.
pub(crate) const FILE: &str = "/etc/cni/tuning/allowlist.conf";

/// The largest file that is read, in bytes.
const LIMIT: usize = 1 << 20;

/// Checks that the keys are allowed, in the form in which the configuration has them. Fails with code 7 for a key that
/// is not allowed or a bad line, and with code 5 if the file cannot be read. Without sysctls the file is not read.
pub(crate) fn check(sysctls: &[Sysctl], file: &Path) -> Result<(), Error> {
    if sysctls.is_empty() {
        return Ok(());
    }
    let read = files::read(file, LIMIT, Links::Follow).if_present();
    let Some(text) = read.map_err(|err| Error::io("read", file, &err))? else { return Ok(()) };
    let text = String::from_utf8(text)
        .map_err(|_| Error::config(format!("{} is not valid UTF-8", file.display())))?;
    let mut allowed = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let regex = Regex::new(line.trim()).map_err(|err| {
            Error::config(format!("{} line {}: {err}", file.display(), number + 1)).details(line.trim())
        })?;
        allowed.push(regex);
    }
    match sysctls.iter().find(|sysctl| !allowed.iter().any(|regex| regex.is_match(&sysctl.key))) {
        None => Ok(()),
        Some(refused) => {
            let lines: Vec<&str> = allowed.iter().map(Regex::as_str).collect();
            Err(Error::config(format!("sysctl: {} is not allowed on this node", refused.key))
                .details(format!("{} allows [{}]", file.display(), lines.join(" "))))
        }
    }
}

#[cfg(test)]
mod tests {
    use cnimble_cni::Code;

    use super::*;

    fn sysctl(key: &str) -> Sysctl {
        Sysctl { key: key.into(), path: key.replace('.', "/"), value: "1".into() }
    }

    #[test]
    fn one_match_is_enough() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("allowlist.conf");
        let ask = |key: &str| check(&[sysctl("net.core.somaxconn"), sysctl(key)], &file);
        ask("net.ipv4.x").unwrap();
        std::fs::write(&file, "\n ^net\\.core\\.(somaxconn|x)$ \r\n^net.ipv4.conf.IFNAME.[a-z_]*$\n")
            .unwrap();
        ask("net.core.x").unwrap();
        ask("net.ipv4.conf.IFNAME.rp_filter").unwrap();
        ask("net/ipv4/conf/IFNAME/rp_filter").unwrap();
        for key in ["net.core.xx", "net.ipv4.conf.eth0.rp_filter", "net.ipv4.conf.IFNAME.rp_filter/x"] {
            let err = ask(key).unwrap_err();
            assert_eq!(err.code, Code::INVALID_CONFIG);
            assert!(err.msg.contains(key), "{err}");
        }
    }

    #[test]
    fn an_empty_list_allows_nothing_and_a_broken_one_neither() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("allowlist.conf");
        std::fs::write(&file, "\n").unwrap();
        assert_eq!(check(&[sysctl("net.x")], &file).unwrap_err().code, Code::INVALID_CONFIG);
        check(&[], &file).unwrap();
        std::fs::write(&file, "net\n(\n").unwrap();
        let err = check(&[sysctl("net.x")], &file).unwrap_err();
        assert!(err.code == Code::INVALID_CONFIG && err.msg.contains("line 2"), "{err}");
        assert_eq!(check(&[sysctl("net.x")], dir.path()).unwrap_err().code, Code::IO);
    }
}
