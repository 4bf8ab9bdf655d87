//! Converts command-line arguments into the namespace, container ID and arguments for plugins.

use std::path::{Component, Path, PathBuf};

use cnimble_cni::CniArgs;
use cnimble_cni::hash::sha512_hex;
use cnimble_liveness::named::Unnamed;
use cnimble_runtime::Attach;

use super::args::Attachment;
use super::report::{Exit, Report, usage};

/// Returns the attachment that the command line and environment describe, as for ADD. Without a container ID it gets
/// that of cnitool for the namespace, and without an interface `eth0`.
///
/// # Errors
/// Fails with a usage error if there is neither a namespace nor a container ID, or if arguments can't be parsed.
pub(super) fn attach(given: &Attachment) -> Result<Attach, Report> {
    let netns = match &given.netns {
        Some(netns) => Some(namespace(netns)?),
        None => None,
    };
    let container_id = match (&given.container_id, netns.as_deref()) {
        (Some(id), _) => id.clone(),
        (None, Some(path)) if !path.is_empty() => container_id(path),
        (None, _) => {
            return Err(usage("neither a namespace nor --container-id was given")
                .hint("name the namespace, or the container with --container-id ID"));
        }
    };
    let ifname = given.ifname.clone().or_else(|| std::env::var("CNI_IFNAME").ok());
    let ifname = ifname.filter(|name| !name.is_empty());
    let mut attach =
        Attach::new(container_id, netns.unwrap_or_default(), ifname.unwrap_or_else(|| "eth0".to_owned()));
    if let Some(text) = &given.args {
        let args = CniArgs::parse(text).map_err(|err| {
            usage(err.msg).hint("write CNI_ARGS as KEY=VALUE;KEY=VALUE, quoted for the shell")
        })?;
        attach.args = args.pairs().to_vec();
    }
    if let Some(text) = given.cap_args.as_deref().filter(|text| !text.is_empty()) {
        attach.capability_args = serde_json::from_str(text).map_err(|err| {
            usage(format!("the capability arguments (CAP_ARGS) are no JSON object: {err}"))
                .hint("for example {\"portMappings\":[{\"hostPort\":8080,\"containerPort\":80}]}")
        })?;
    }
    Ok(attach)
}

/// Fails if the attachment has no namespace, or one whose path doesn't exist.
pub(super) fn must_exist(attach: &Attach, what: &str) -> Result<(), Report> {
    let path = &attach.netns;
    if path.is_empty() {
        return Err(usage("no network namespace was given"));
    }
    match std::fs::metadata(path) {
        Ok(_) => Ok(()),
        Err(err) => {
            Err(Report::because(Exit::Usage, what, format!("there is no network namespace {path}: {err}"))
                .hint("make one with `ip netns add NAME`; `ip netns` lists those that have a name"))
        }
    }
}

/// Returns the absolute path of a namespace. A bare name is one of `ip netns`, and an empty text stays empty. Like
/// cnitool it doesn't follow links, because the container ID depends on the path.
fn namespace(text: &str) -> Result<String, Report> {
    if text.is_empty() {
        return Ok(String::new());
    }
    if !text.contains('/') {
        return Ok(format!("/run/netns/{text}"));
    }
    let path = std::path::absolute(text).map_err(|err| usage(format!("namespace {text}: {err}")))?;
    Ok(clean(&path).to_string_lossy().into_owned())
}

/// Removes `.` and `..` from an absolute path without a look at the files.
fn clean(path: &Path) -> PathBuf {
    let mut out = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            Component::Normal(name) => out.push(name),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    out
}

/// Returns the container ID that cnitool takes for a namespace: `cnitool-` and the first ten bytes of the path's
/// SHA-512.
pub(super) fn container_id(netns: &str) -> String {
    format!("cnitool-{}", sha512_hex(netns, 10))
}

/// Returns the report for a word that names no pod, several, or one that is gone. It is a usage error, except that
/// unreadable records give [`Exit::Files`]. `nothing` says what was looked for.
pub(super) fn unnamed(what: &str, word: &str, unnamed: Unnamed, nothing: &str) -> Report {
    let (exit, why) = match unnamed {
        Unnamed::Nothing => (Exit::Usage, nothing.to_owned()),
        Unnamed::Several(names) => (Exit::Usage, format!("{word} may be {}", names.join(" or "))),
        Unnamed::Gone(why) => (Exit::Usage, why),
        Unnamed::Unreadable(err) => (Exit::Files, err.to_string()),
    };
    Report::because(exit, what, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_ids_are_cnitools() {
        assert_eq!(container_id("/var/run/netns/test0"), "cnitool-f7804cf05731665e13bc");
    }

    #[test]
    fn namespaces_are_absolute_paths() {
        let path = |text| namespace(text).unwrap_or_default();
        assert_eq!(path("blue"), "/run/netns/blue");
        assert_eq!(path("/var/run/netns//x/../test0/."), "/var/run/netns/test0");
        assert_eq!(path("/../a"), "/a");
        let here = std::env::current_dir().unwrap();
        assert_eq!(path("./ns"), here.join("ns").to_str().unwrap());
        assert_eq!(path(""), "");
    }
}
