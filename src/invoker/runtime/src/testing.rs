//! Plugins that are small shell scripts, for the tests of this crate and of those above it.
// A test stops at the first surprise.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use cnimble_cni::NetworkList;

use super::{Attach, Invoker, Stderr};

/// Writes down every call, and fails where a test has put an error: `<dir>/fail-<plugin>-<verb>` holds what it prints
/// then.
const RECORDER: &str = r#"#!/bin/sh
name=${0##*/}; dir=${0%/*}
number=$(cat "$dir/../count"); echo $((number + 1)) >"$dir/../count"
cat >"$dir/../stdin.$number"
echo "$CNI_COMMAND $name" >>"$dir/../calls"
env | grep ^CNI_ | sort >"$dir/../env.$number"
if [ -e "$dir/../fail-$name-$CNI_COMMAND" ]; then
    cat "$dir/../fail-$name-$CNI_COMMAND"
    exit 1
fi
case $CNI_COMMAND in
ADD) cat "$dir/../result-$name" 2>/dev/null || echo '{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.2/24"}],"by":"'$name'"}' ;;
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["0.3.1","0.4.0","1.0.0","1.1.0"]}' ;;
esac
"#;

/// A directory with plugins, a cache, and notes about what was called.
pub struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    /// Returns a bench with recorders of these names.
    pub fn new(plugins: &[&str]) -> Self {
        let bench = Bench { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(bench.path().join("bin")).unwrap();
        bench.write("count", "0");
        bench.write("calls", "");
        for name in plugins {
            bench.plugin(name, RECORDER);
        }
        bench
    }

    /// The directory of this bench.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Writes a file of the bench, say the result of a plugin.
    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).unwrap();
    }

    /// An executable; renamed into place, as a fork elsewhere may hold the file open for writing (ETXTBSY).
    pub fn plugin(&self, name: &str, script: &str) -> PathBuf {
        let path = self.path().join("bin").join(name);
        let status = std::process::Command::new("sh")
            .args([
                "-c",
                r#"printf %s "$1" >"$2.new" && chmod 755 "$2.new" && mv "$2.new" "$2""#,
                "-",
                script,
            ])
            .arg(&path)
            .status();
        assert!(status.unwrap().success());
        assert!(fs::metadata(&path).unwrap().permissions().mode() & 0o100 != 0);
        path
    }

    /// Makes a verb of a plugin fail with this code.
    pub fn fail(&self, plugin: &str, verb: &str, code: u32) {
        let error = json!({"cniVersion": "1.0.0", "code": code, "msg": format!("{plugin} is sulking")});
        self.write(&format!("fail-{plugin}-{verb}"), &error.to_string());
    }

    /// An invoker of these plugins, with a cache in the bench.
    pub fn invoker(&self) -> Invoker {
        Invoker::new([self.path().join("bin")])
            .with_cache_dir(self.path().join("cache"))
            .with_stderr(Stderr::Capture)
    }

    /// The calls since the last time, as `VERB plugin`.
    pub fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path().join("calls")).unwrap();
        self.write("calls", "");
        text.lines().map(str::to_owned).collect()
    }

    /// The configuration that call `number` got, from 0.
    pub fn stdin(&self, number: usize) -> Value {
        let text = fs::read(self.path().join(format!("stdin.{number}"))).unwrap();
        serde_json::from_slice(&text).unwrap()
    }

    /// The `CNI_*` variables that call `number` got.
    pub fn env(&self, number: usize) -> String {
        fs::read_to_string(self.path().join(format!("env.{number}"))).unwrap()
    }
}

/// A network `net` of plugins without options.
pub fn network(version: &str, plugins: &[&str]) -> NetworkList {
    let plugins: Vec<Value> = plugins.iter().map(|name| json!({"type": name})).collect();
    NetworkList::from_value(json!({"cniVersion": version, "name": "net", "plugins": plugins})).unwrap()
}

/// An attachment of the container `id`.
pub fn attach(id: &str) -> Attach {
    Attach::new(id, "/run/netns/x", "eth0")
}
