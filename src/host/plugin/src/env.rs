//! The CNI_* variables (specification 1.1.0, section 2 "Parameters"). All missing ones are reported at once.

use std::ffi::OsString;
use std::path::PathBuf;

use cnimble_cni::{Code, Error, names};

use super::Command;

/// The values of the variables. Those that are not set are empty.
#[derive(Debug, Default)]
pub(super) struct Env {
    pub(super) container_id: String,
    pub(super) netns: String,
    pub(super) ifname: String,
    pub(super) args: String,
    pub(super) path: Vec<PathBuf>,
    /// Whether CNI_NETNS may be the plugin's own namespace (`CNI_NETNS_OVERRIDE`).
    pub(super) netns_override: bool,
}

/// Returns the variables that the verb needs.
fn required(command: Command) -> &'static [&'static str] {
    match command {
        Command::Add | Command::Check => &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"],
        Command::Del => &["CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"],
        Command::Gc | Command::Status => &["CNI_PATH"],
        _ => &[],
    }
}

/// Splits CNI_PATH. An empty entry would mean the current directory, so it is left out.
fn directories(path: &std::ffi::OsStr) -> Vec<PathBuf> {
    std::env::split_paths(path).filter(|dir| !dir.as_os_str().is_empty()).collect()
}

/// Returns a variable that `get` reads, or an empty text without it. Fails with code 4 if it is not valid UTF-8.
fn read_text(name: &str, get: &dyn Fn(&str) -> Option<OsString>) -> Result<String, Error> {
    match get(name) {
        None => Ok(String::new()),
        Some(value) => value.into_string().map_err(|_| invalid(format!("{name} is not valid UTF-8"))),
    }
}

fn invalid(msg: String) -> Error {
    Error::new(Code::INVALID_ENVIRONMENT, msg)
}

impl Env {
    /// Reads the variables by `get`. Fails with code 4 and the invalid one, or all missing ones: `required env
    /// variables [A,B] missing`.
    pub(super) fn read(command: Command, get: impl Fn(&str) -> Option<OsString>) -> Result<Self, Error> {
        let required = required(command).iter().copied();
        let missing: Vec<&str> =
            required.filter(|name| get(name).is_none_or(|value| value.is_empty())).collect();
        if !missing.is_empty() {
            return Err(invalid(format!("required env variables [{}] missing", missing.join(","))));
        }
        let env = Env {
            container_id: read_text("CNI_CONTAINERID", &get)?,
            netns: read_text("CNI_NETNS", &get)?,
            ifname: read_text("CNI_IFNAME", &get)?,
            // loopback must not fail because of a variable that it never reads. Bytes that are no UTF-8 are replaced,
            // and the other plugins refuse the replacement.
            args: get("CNI_ARGS").map(|args| args.to_string_lossy().into_owned()).unwrap_or_default(),
            path: get("CNI_PATH").map(|path| directories(&path)).unwrap_or_default(),
            netns_override: matches!(
                read_text("CNI_NETNS_OVERRIDE", &get)?.as_str(),
                "1" | "t" | "T" | "true" | "True" | "TRUE"
            ),
        };
        if matches!(command, Command::Add | Command::Check | Command::Del) {
            env.validate(command)?;
        }
        Ok(env)
    }

    fn validate(&self, command: Command) -> Result<(), Error> {
        if !names::is_identifier(&self.container_id) {
            return Err(invalid(format!(
                "invalid CNI_CONTAINERID \"{}\": it must start with a letter or digit and hold only letters, digits, _ . -",
                self.container_id.escape_default()
            )));
        }
        // DEL finds no interface of such a name, and must succeed.
        let problem = match command {
            Command::Add => names::new_interface_problem(&self.ifname),
            _ => names::interface_problem(&self.ifname),
        };
        if let Some(problem) = problem {
            return Err(invalid(format!(
                "invalid CNI_IFNAME \"{}\": {problem}",
                self.ifname.escape_default()
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(command: Command, vars: &[(&str, &str)]) -> Result<Env, Error> {
        let vars: Vec<(String, String)> = vars.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        Env::read(command, |name| vars.iter().find(|(k, _)| k == name).map(|(_, v)| v.into()))
    }

    #[test]
    fn a_pattern_is_no_name_for_a_new_interface() {
        let vars =
            [("CNI_CONTAINERID", "a"), ("CNI_NETNS", "/n"), ("CNI_IFNAME", "eth%d"), ("CNI_PATH", "/x")];
        let err = read(Command::Add, &vars).unwrap_err();
        assert_eq!(
            (err.code, err.msg.contains("contains %")),
            (Code::INVALID_ENVIRONMENT, true),
            "{}",
            err.msg
        );
        assert!(read(Command::Del, &vars).is_ok());
    }

    #[test]
    fn names_all_missing_variables_at_once() {
        let err = read(Command::Add, &[("CNI_IFNAME", "eth0"), ("CNI_NETNS", "")]).unwrap_err();
        assert_eq!(err.code, Code::INVALID_ENVIRONMENT);
        assert_eq!(err.msg, "required env variables [CNI_CONTAINERID,CNI_NETNS,CNI_PATH] missing");
        assert!(
            read(Command::Del, &[("CNI_CONTAINERID", "a"), ("CNI_IFNAME", "eth0"), ("CNI_PATH", "/x")])
                .is_ok()
        );
        assert!(read(Command::Version, &[]).is_ok());
    }

    /// An empty directory would be the caller's current one.
    #[test]
    fn plugins_are_looked_for_in_the_named_directories_only() {
        let env = read(Command::Gc, &[("CNI_PATH", ":/opt/cni/bin::/usr/lib/cni:")]).unwrap();
        assert_eq!(env.path, ["/opt/cni/bin", "/usr/lib/cni"].map(PathBuf::from));
    }

    #[test]
    fn refuses_what_could_leave_a_directory() {
        for id in ["../x", ".", "a/b", "a b", "-a", "é"] {
            let vars = [("CNI_CONTAINERID", id), ("CNI_IFNAME", "eth0"), ("CNI_PATH", "/x")];
            assert_eq!(read(Command::Del, &vars).unwrap_err().code, Code::INVALID_ENVIRONMENT, "{id}");
        }
        for ifname in ["..", "a/b", "a:b", "a b", "sixteen-bytes-xx"] {
            let vars = [("CNI_CONTAINERID", "a"), ("CNI_IFNAME", ifname), ("CNI_PATH", "/x")];
            assert_eq!(read(Command::Del, &vars).unwrap_err().code, Code::INVALID_ENVIRONMENT, "{ifname}");
        }
    }
}
