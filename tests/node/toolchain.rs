//! How the scripts find a Rust that is new enough, on machines whose apt has other versions.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use cnimble_tests::script as write_script;

use crate::scripts::script;

/// A machine on which `need_cargo` of `scripts/lib.sh` runs. Its programs are stand-ins, so nothing is installed.
struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    /// `rustc` and `rustc_web` are the versions that apt would install, an empty one means that apt has none.
    fn new(rustc: &str, rustc_web: &str) -> Self {
        let machine = Machine { dir: tempfile::tempdir().unwrap() };
        for dir in ["bin", "scripts"] {
            fs::create_dir(machine.dir.path().join(dir)).unwrap();
        }
        for name in ["lib.sh", "debian.sh"] {
            fs::copy(script(name), machine.dir.path().join("scripts").join(name)).unwrap();
        }
        fs::write(machine.dir.path().join("Cargo.toml"), "rust-version = \"1.88\"\n").unwrap();
        machine.program(
            "apt-cache",
            &format!(
                "case $2 in rustc) v='{rustc}' ;; rustc-web) v='{rustc_web}' ;; esac
                 [ -z \"$v\" ] || printf '%s:\\n  Installed: (none)\\n  Candidate: %s\\n' \"$2\" \"$v\""
            ),
        );
        for tool in ["bash", "sh", "sed", "sort", "head", "cut", "paste", "cat", "id"] {
            let path = ["/usr/bin", "/bin"].map(|dir| Path::new(dir).join(tool));
            let path = path.iter().find(|path| path.exists()).unwrap();
            symlink(path, machine.dir.path().join("bin").join(tool)).unwrap();
        }
        machine.program("cc", "echo /usr/lib/libc.a");
        machine.program("apt-get", "printf 'Inst x\\nRemv cargo [0.66]\\nRemv rustc [1.63]\\n'");
        machine
    }

    fn program(&self, name: &str, body: &str) {
        write_script(&self.dir.path().join("bin").join(name), &format!("#!/bin/sh\n{body}\n"));
    }

    /// Gives the machine a toolchain.
    fn with_rust(self, version: &str) -> Self {
        self.program("rustc", &format!("echo 'rustc {version} (2023-01-10)'"));
        self.program("cargo", "exit 1");
        self
    }

    /// Calls `need_cargo`. Its stdout names the packages that it would install.
    fn need_cargo(&self) -> Output {
        let line = "ROOT=$PWD; source scripts/lib.sh
            PATH=$PWD/bin
            need_packages() { echo \"$@\"; }
            need_cargo";
        let mut bash = Command::new("bash");
        bash.args(["-c", line])
            .current_dir(self.dir.path())
            .env("HOME", self.dir.path())
            .env_remove("CARGO_HOME");
        bash.output().unwrap()
    }

    /// Asserts that `need_cargo` installs nothing, fails, and says this.
    #[track_caller]
    fn assert_refused(&self, text: &str) {
        let output = self.need_cargo();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(text), "{said}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{said}");
    }
}

#[test]
fn a_rust_that_is_too_old_is_not_replaced_and_the_command_for_it_is_told() {
    let machine = Machine::new("1.63.0+dfsg1-2", "1.96.0+dfsg1-1~deb12u1").with_rust("1.63.0");
    machine.assert_refused(
        "Rust 1.63.0 is too old, 1.88 is needed; update it with: apt-get install cargo-web rustc-web (this removes: cargo rustc)",
    );
    machine.program("rustup", "exit 1");
    machine.assert_refused("Rust 1.63.0 is too old, 1.88 is needed; update it with: rustup update stable");
    let machine = Machine::new("1.63.0+dfsg1-2", "1.85.0+dfsg3-1~deb12u3").with_rust("1.63.0");
    machine.assert_refused("get Rust with: curl");
}

#[test]
fn nothing_is_installed_if_apt_has_no_rust_that_is_new_enough() {
    let machine = Machine::new("1.63.0+dfsg1-2", "1.85.0+dfsg3-1~deb12u3");
    machine.assert_refused(
        "apt has none that is new enough (rustc 1.63.0, rustc-web 1.85.0); get Rust with: curl",
    );
    Machine::new("", "").assert_refused("(rustc missing, rustc-web missing)");
}

#[test]
fn the_first_package_that_is_new_enough_is_installed() {
    for (rustc, rustc_web, expected) in [
        ("1.63.0+dfsg1-2", "1.96.0+dfsg1-1~deb12u1", "cargo-web rustc-web ca-certificates\n"),
        ("1:1.97.1+dfsg1-2", "1.96.0+dfsg1-1", "cargo rustc ca-certificates\n"),
    ] {
        let output = Machine::new(rustc, rustc_web).need_cargo();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    }
    let output = Machine::new("", "").with_rust("1.88.0").need_cargo();
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
}
