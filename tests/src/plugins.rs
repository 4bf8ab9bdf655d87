//! Where the plugins under test are.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::Sample;

/// The directory of the plugins under test: `CNIMBLE_PLUGIN_DIR`, or this workspace's,
/// built once and hard-linked under every name.
///
/// # Panics
/// If they don't build.
pub fn plugin_dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| match std::env::var_os("CNIMBLE_PLUGIN_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => build(),
    })
}

/// The directory of the Go plugins: `REFERENCE_DIR`, or that of Debian's containernetworking-plugins. `None` without any.
pub fn go_plugins() -> Option<&'static Path> {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    let dir =
        DIR.get_or_init(|| std::env::var_os("REFERENCE_DIR").unwrap_or_else(|| "/usr/lib/cni".into()).into());
    dir.join("bridge").exists().then_some(dir)
}

/// [`go_plugins`], for tests that have ours and theirs meet.
///
/// # Errors
/// The reason that there are none.
pub fn go_to_meet() -> Result<&'static Path, &'static str> {
    match go_plugins() {
        None => Err("the Go plugins are not installed"),
        Some(go) if go == plugin_dir() => Err("the plugins under test are the Go plugins"),
        Some(go) => Ok(go),
    }
}

/// [`go_to_meet`], if they know CNI 1.1.0: releases before 1.5 differ in more than that.
///
/// # Errors
/// The reason that there are none.
pub fn recent_go_to_meet() -> Result<&'static Path, &'static str> {
    let go = go_to_meet()?;
    let mut bridge = Command::new(go.join("bridge"));
    bridge.env_clear().env("CNI_COMMAND", "VERSION");
    let answer = crate::run_limited(&mut bridge, br#"{"cniVersion":"1.0.0"}"#, crate::LIMIT);
    let known = String::from_utf8_lossy(&answer.stdout).contains("1.1.0");
    if known { Ok(go) } else { Err("these Go plugins don't know CNI 1.1.0") }
}

fn build() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["build", "--quiet", "--package", "cnimble-plugins"])
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    let output = command.output().expect("cargo build");
    assert!(output.status.success(), "building cnimble-plugins: {}", String::from_utf8_lossy(&output.stderr));
    let binary = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .find_map(|message| Some(PathBuf::from(message["executable"].as_str()?)))
        .expect("cargo names no executable");
    let dir = binary.with_file_name("plugins-under-test");
    std::fs::create_dir_all(&dir).unwrap();
    for Sample { plugin: name, .. } in Sample::all() {
        // Renamed into place, as another test process may be using the old link. A rename
        // onto the same inode does nothing and leaves the new name.
        let fresh = dir.join(format!(".{name}.{}", std::process::id()));
        std::fs::hard_link(&binary, &fresh).unwrap();
        std::fs::rename(&fresh, dir.join(name)).unwrap();
        let _ = std::fs::remove_file(&fresh);
    }
    dir
}

/// The command under test: `CNIMBLE_COMMAND`, or this workspace's, built once.
///
/// # Panics
/// If it doesn't build.
pub fn command() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| match std::env::var_os("CNIMBLE_COMMAND") {
        Some(path) => PathBuf::from(path),
        None => build_command(),
    })
}

fn build_command() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "--quiet", "--package", "cnimble", "--bin", "cnimble"])
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut messages = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    messages.find_map(|message| Some(PathBuf::from(message["executable"].as_str()?))).unwrap()
}
