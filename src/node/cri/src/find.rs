//! Finds the socket of the container runtime.

use std::ffi::OsStr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use cnimble_os::files::{self, Links};

use crate::CriError;
use crate::clean::clean;

/// crictl's configuration file.
pub const CRICTL_CONFIG: &str = "/etc/crictl.yaml";

/// crictl's variable for the endpoint.
pub const ENDPOINT_VARIABLE: &str = "CONTAINER_RUNTIME_ENDPOINT";

/// The default sockets of containerd, CRI-O, k3s (and RKE2), cri-dockerd.
pub const USUAL: [&str; 4] = [
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/cri-dockerd.sock",
];

/// The largest size of crictl's file, in bytes.
const LIMIT: usize = 1 << 20;

/// Returns the socket's path from the given endpoint, crictl's variable, or crictl's file, whichever comes first.
/// Without any of these, returns the first of [`USUAL`] that exists. A configured path is not checked.
///
/// # Errors
/// Fails if the endpoint is no path of a Unix socket, and if there is none at all.
pub fn find_socket(given: Option<&OsStr>) -> Result<PathBuf, CriError> {
    if let Some(given) = given.filter(|given| !given.is_empty()) {
        return path_of(&given.to_string_lossy(), "");
    }
    if let Some(endpoint) = std::env::var_os(ENDPOINT_VARIABLE).filter(|endpoint| !endpoint.is_empty()) {
        return path_of(&endpoint.to_string_lossy(), ENDPOINT_VARIABLE);
    }
    if let Some(endpoint) = configured(Path::new(CRICTL_CONFIG)) {
        return path_of(&endpoint, CRICTL_CONFIG);
    }
    usual(Path::new("/"))
        .ok_or_else(|| CriError::NoSocket { tried: USUAL.into_iter().map(PathBuf::from).collect() })
}

/// Returns the first of the usual sockets below `root` that exists.
fn usual(root: &Path) -> Option<PathBuf> {
    let mut paths = USUAL.into_iter().map(|path| root.join(path.trim_start_matches('/')));
    paths.find(|path| std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_socket()))
}

/// Returns the path in `unix:///run/x.sock`, `unix:/run/x.sock` or the path itself. `origin` says in errors where the
/// endpoint is from; it is empty for the user's own.
fn path_of(endpoint: &str, origin: &str) -> Result<PathBuf, CriError> {
    let path =
        endpoint.strip_prefix("unix://").or_else(|| endpoint.strip_prefix("unix:")).unwrap_or(endpoint);
    if path.starts_with('/') || (path.contains('/') && !path.contains(':')) {
        return Ok(PathBuf::from(path));
    }
    let origin = if origin.is_empty() { String::new() } else { format!(" (in {origin})") };
    Err(CriError::Endpoint { endpoint: clean(endpoint), origin })
}

/// Returns `runtime-endpoint` from crictl's file. It returns `None` without the file or the key.
fn configured(file: &Path) -> Option<String> {
    let text = files::read(file, LIMIT, Links::Follow).ok()?;
    endpoint(&String::from_utf8(text).ok()?)
}

/// Returns the value of `runtime-endpoint`. The file is YAML, but crictl itself writes and documents one plain key a
/// line.
fn endpoint(text: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.strip_prefix("runtime-endpoint:"))?;
    let value = line.split(" #").next().unwrap_or_default().trim();
    let value = value.trim_matches(|quote| quote == '"' || quote == '\'');
    (!value.is_empty()).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_as_crictl_reads_them() {
        let of = |text: &str| endpoint(text);
        assert_eq!(
            of("timeout: 2\nruntime-endpoint: \"unix:///run/x.sock\" # here\ndebug: true\n").as_deref(),
            Some("unix:///run/x.sock")
        );
        assert_eq!(of("runtime-endpoint: ''\n"), None);
        assert_eq!(of("image-endpoint: unix:///run/y.sock\n"), None);
        for text in ["unix:///run/x.sock", "unix:/run/x.sock", "/run/x.sock"] {
            assert_eq!(path_of(text, "").unwrap(), Path::new("/run/x.sock"), "{text}");
        }
        for text in ["mynet", "tcp://127.0.0.1:1", "npipe:////./pipe/x", "unix://x", "\u{1b}[0m"] {
            let err = path_of(text, "a file").unwrap_err().to_string();
            assert!(err.contains("names no Unix socket (in a file)") && !err.contains('\u{1b}'), "{err}");
        }
    }

    #[test]
    fn each_runtimes_socket_is_found_where_it_listens_by_default() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(usual(root.path()), None);
        // The last first: each one found goes before those that are there already.
        for socket in [
            "run/cri-dockerd.sock",
            "run/k3s/containerd/containerd.sock",
            "run/crio/crio.sock",
            "run/containerd/containerd.sock",
        ] {
            let path = root.path().join(socket);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            // A file that isn't a socket is no runtime.
            std::fs::write(&path, "").unwrap();
            assert_ne!(usual(root.path()).as_ref(), Some(&path));
            std::fs::remove_file(&path).unwrap();
            let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
            assert_eq!(usual(root.path()), Some(path));
        }
    }

    #[test]
    fn a_pipe_in_the_place_of_crictls_file_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(configured(dir.path()), None);
        let pipe = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert_eq!(configured(&pipe), None);
    }
}
