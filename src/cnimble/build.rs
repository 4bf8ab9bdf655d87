//! Sets the commit for `--version`.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=CNIMBLE_COMMIT");
    let given = std::env::var("CNIMBLE_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(|| {
        // The unpacked sources of a release can lie inside the work tree of another project.
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

/// Returns `None` without git or a repository.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
