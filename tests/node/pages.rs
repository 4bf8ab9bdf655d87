//! Pastes blocks of pages. `scripts/stress pages` pastes all of them in a fresh Debian, with the packages.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
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

/// Runs the block that installs a release, with files named and summed as `scripts/release` does. `apt` is a script that
/// records its arguments. Returns whether the block succeeded, and these arguments.
fn install_of_release(change: impl FnOnce(&Path)) -> (bool, String) {
    let text = fs::read_to_string(script("../README.md")).unwrap();
    let blocks = text.split("```sh\n").filter_map(|part| part.split("```").next());
    let block = blocks.into_iter().find(|block| block.contains("SHA256SUMS")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let [release, here, bin] = ["release", "here", "bin"].map(|name| dir.path().join(name));
    [&release, &here, &bin].into_iter().for_each(|path| fs::create_dir(path).unwrap());
    let arch = Command::new("dpkg").arg("--print-architecture").output().unwrap().stdout;
    let arch = String::from_utf8(arch).unwrap();
    // The name of a package: scripts/package.d/deb/make.
    let make = fs::read_to_string(script("package.d/deb/make")).unwrap();
    assert!(make.contains("file=$out/${name}_$VERSION-${revision}_$arch.deb"), "{make}");
    let version = concat!(env!("CARGO_PKG_VERSION"), "-1");
    for name in ["cnimble", "cnimble-plugins", "cnimble-cluster"] {
        fs::write(release.join(format!("{name}_{version}_{}.deb", arch.trim())), name).unwrap();
    }
    // The last lines of scripts/release.
    let sums = "sha256sum -- * >../sums && mv ../sums SHA256SUMS";
    assert!(Command::new("sh").args(["-c", sums]).current_dir(&release).status().unwrap().success());
    change(&release);
    cnimble_tests::script(&bin.join("apt"), "#!/bin/sh\necho \"$*\" >>apt\n");
    let url = "https://github.com/cnimble/cnimble/releases/download/v${version%-*}";
    assert!(block.contains(url) && block.contains(&format!("version={version} ")), "{block}");
    let mut shell = Command::new("bash");
    shell.args(["-c", &block.replace(url, &format!("file://{}", release.display()))]).current_dir(&here);
    shell.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
    let output = run_limited(&mut shell, b"", LIMIT);
    (output.status.success(), fs::read_to_string(here.join("apt")).unwrap_or_default())
}

#[test]
fn a_release_is_installed_only_with_its_checksums() {
    need!("curl", "dpkg", "sha256sum");
    let (done, apt) = install_of_release(|_| {});
    assert!(done, "{apt}");
    let version = concat!(env!("CARGO_PKG_VERSION"), "-1");
    let words: Vec<&str> = apt.split_whitespace().collect();
    assert_eq!((words[0], words.len()), ("install", 4), "{apt}");
    assert!(words[1].starts_with(&format!("./cnimble_{version}_")), "{apt}");
    assert!(words[2].starts_with(&format!("./cnimble-plugins_{version}_")), "{apt}");
    let packages = |release: &Path| {
        let files = fs::read_dir(release).unwrap().map(|entry| entry.unwrap().path());
        files.filter(|path| path.to_string_lossy().contains("/cnimble_")).collect::<Vec<_>>()
    };
    let change = |release: &Path| packages(release).iter().for_each(|file| fs::write(file, "other").unwrap());
    assert_eq!(install_of_release(change), (false, String::new()), "a file was changed");
    let lose = |release: &Path| packages(release).iter().for_each(|file| fs::remove_file(file).unwrap());
    let (_, apt) = install_of_release(lose);
    assert!(apt.is_empty(), "a file is missing: {apt}");
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
