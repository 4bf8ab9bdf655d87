//! Names the commit that is built, for `--version`.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=CNIMBLE_COMMIT");
    let given = std::env::var("CNIMBLE_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(|| {
        // A release's sources may lie unpacked inside another project's work tree.
        git(&["ls-files", "--error-unmatch", "build.rs"])?;
        for file in ["HEAD", "logs/HEAD"] {
            let path = git(&["rev-parse", "--git-path", file])?;
            if Path::new(&path).exists() {
                println!("cargo::rerun-if-changed={path}");
            }
        }
        git(&["rev-parse", "--short=12", "HEAD"])
    });
    println!("cargo::rustc-env=CNIMBLE_COMMIT={}", commit.unwrap_or_else(|| "unknown".to_owned()));
}

/// What git prints; `None` without git or without a repository.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
