//! Pastes blocks of pages. `scripts/stress pages` pastes all of them in a fresh Debian, with the packages.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use cnimble_tests::{LIMIT, command, need, plugin_dir, run_limited};

use crate::scripts::script;

/// Returns the lines of blocks marked `sh pasted`, without those that install or remove packages.
fn blocks(page: &str) -> String {
    let text = fs::read_to_string(script("..").join(page)).unwrap();
    let mut inside = false;
    let mut lines = String::new();
    for line in text.lines() {
        match line {
            "```sh pasted" => inside = true,
            "```" => inside = false,
            _ if inside && !line.starts_with("apt ") && !line.starts_with("scripts/") => {
                lines += line;
                lines.push('\n');
            }
            _ => {}
        }
    }
    lines
}

/// Pastes the blocks of a page into a shell. Each line has to succeed.
#[track_caller]
fn paste(page: &str) {
    need!("ip", "nft");
    let dir = tempfile::tempdir().unwrap();
    symlink(command(), dir.path().join("cnimble")).unwrap();
    symlink(script("../examples").canonicalize().unwrap(), dir.path().join("examples")).unwrap();
    let text = blocks(page);
    assert!(text.contains("cnimble "), "{page} has no blocks: {text}");
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", &text]).current_dir(dir.path());
    shell.env("PATH", path).env("CNI_PATH", plugin_dir());
    let output = run_limited(&mut shell, b"", LIMIT);
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{page}: {said}");
}

#[test]
fn the_readmes_blocks_work_in_their_order() {
    paste("README.md");
}

#[test]
fn the_first_pod_of_the_commands_page_works() {
    paste("docs/COMMAND.md");
}

#[test]
fn the_first_manifest_and_the_first_sandbox_work() {
    paste("docs/PODS.md");
}

/// Returns the blocks of JSON of a page, also those in lists.
fn networks(text: &str) -> Vec<String> {
    let parts = text.split("```");
    parts.filter_map(|part| part.strip_prefix("json\n")).map(str::to_owned).collect()
}

#[test]
fn the_networks_of_the_quick_starts_have_no_fault() {
    let pages = fs::read_dir(script("../docs/start")).unwrap().map(|entry| entry.unwrap().path());
    let mut count = 0;
    for page in pages {
        for network in networks(&fs::read_to_string(&page).unwrap()) {
            count += 1;
            let mut cnimble = Command::new(command());
            cnimble.args(["validate", "--strict", "--offline", "-"]).env("CNI_PATH", plugin_dir());
            let output = run_limited(&mut cnimble, network.as_bytes(), LIMIT);
            let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}: {said}", page.display());
        }
    }
    assert!(count >= 3, "{count} networks are too few");
}
