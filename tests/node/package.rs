//! Tests the contents of packages by `scripts/package`. `scripts/package.d/try` tries their installation.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use cnimble_tests::{need, plugin_dir, skip};

use crate::scripts::script;

/// Returns the names in a directory.
fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).unwrap_or_else(|err| panic!("{}: {err}", dir.display()));
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Returns the plugins, by their folders.
fn plugins() -> BTreeSet<String> {
    let root = script("..");
    let mut found = names(&root.join("plugins"));
    found.extend(names(&root.join("ipam")));
    found.remove("multicall");
    found
}

/// The directories of a kind of package in an unpacked tree.
struct Tree {
    plugins: PathBuf,
    command: PathBuf,
    cluster: PathBuf,
    bin: &'static str,
    cni: &'static str,
}

fn trees(dir: &Path) -> [Tree; 3] {
    [
        ("deb", "usr/bin", "usr/lib/cni"),
        ("rpm", "usr/bin", "opt/cni/bin"),
        ("tar", "usr/local/bin", "opt/cni/bin"),
    ]
    .map(|(kind, bin, cni)| Tree {
        plugins: dir.join(kind).join("plugins"),
        command: dir.join(kind).join("command"),
        cluster: dir.join(kind).join("cluster"),
        bin,
        cni,
    })
}

/// `scripts/package.d/stage` reads the release of the Go plugins, for the field `Provides`, from a line of the source.
#[test]
fn packages_find_the_release_of_the_go_plugins() {
    let stage = fs::read_to_string(script("package.d/stage")).unwrap();
    let line = stage.lines().find(|line| line.starts_with("reference() ")).unwrap();
    let output = Command::new("bash")
        .args(["-c", &format!("{line}\nreference")])
        .env("ROOT", script("").parent().unwrap())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.trim().split('.').all(|part| part.parse::<u32>().is_ok()), "{text:?}");
}

#[test]
fn packages_have_every_plugin_unit_page_and_licence() {
    let Some(command) = std::env::var_os("CNIMBLE_COMMAND") else {
        skip!("CNIMBLE_COMMAND names no command to pack");
    };
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    std::os::unix::fs::symlink(plugin_dir().join("bridge"), from.join("cnimble-plugins")).unwrap();
    std::os::unix::fs::symlink(&command, from.join("cnimble")).unwrap();
    std::os::unix::fs::symlink(plugin_dir().join("cluster-local-store"), from.join("cluster-local-store"))
        .unwrap();
    // As in a shell that is older than the machine's rustup.
    let path = std::env::var("PATH").unwrap();
    let path: Vec<&str> = path.split(':').filter(|dir| !dir.ends_with("/.cargo/bin")).collect();
    let output = Command::new(script("package"))
        .args(["deb", "rpm", "tar", "--cluster", "--from"])
        .arg(&from)
        .arg("--tree")
        .arg(dir.path())
        .env("PATH", path.join(":"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let pages = dir.path().join("pages");
    assert!(Command::new(&command).arg("man").arg(&pages).output().unwrap().status.success());
    let pages: BTreeSet<String> = names(&pages).iter().map(|page| format!("{page}.gz")).collect();
    let units: BTreeSet<String> = [script(""), script("../ipam/dhcp/systemd")]
        .iter()
        .flat_map(|dir| names(dir))
        .filter(|name| [".service", ".socket", ".timer"].iter().any(|ending| name.ends_with(ending)))
        .collect();
    for tree in trees(dir.path()) {
        let cni = tree.plugins.join(tree.cni);
        assert_eq!(names(&cni), plugins());
        let bridge = fs::metadata(cni.join("bridge")).unwrap();
        let links = if tree.cni.starts_with("opt") { 1 } else { plugins().len() };
        assert_eq!(bridge.nlink() as usize, links, "{}", cni.display());
        assert_eq!(bridge.permissions().mode() & 0o7777, 0o755);
        let by_itself = fs::metadata(tree.plugins.join("usr/sbin/cnimble-plugins")).unwrap();
        let of_a_plugin = |name: &String| fs::metadata(cni.join(name)).unwrap().ino() == by_itself.ino();
        assert!(names(&cni).iter().any(of_a_plugin));

        let share = tree.command.join("usr/share");
        assert_eq!(names(&share.join("man/man1")), pages);
        for completion in ["bash-completion/completions/cnimble", "fish/vendor_completions.d/cnimble.fish"] {
            // The completion script calls the command, which has the words.
            let script = fs::read_to_string(share.join(completion)).unwrap();
            assert!(script.contains("CNIMBLE_COMPLETE"), "{completion}: {script}");
        }
        let systemd = tree.command.join("usr/lib/systemd/system");
        assert_eq!(names(&systemd), units);
        for unit in &units {
            let text = fs::read_to_string(systemd.join(unit)).unwrap();
            // With `-` systemd ignores a path that does not exist, and the service then cannot write there.
            let writable =
                text.lines().find_map(|line| line.strip_prefix("ReadWritePaths=")).unwrap_or_default();
            let made = text.lines().find(|line| line.starts_with("ExecStartPre=+/bin/mkdir -p "));
            for path in writable.split(' ').filter_map(|path| path.strip_prefix('-')) {
                assert!(made.is_some_and(|line| line.contains(path)), "{unit}: {path} may be missing");
            }
            for line in text.lines().filter_map(|line| line.strip_prefix("ExecStart=/")) {
                let program = line.split(' ').next().unwrap();
                let is_there = [&tree.plugins, &tree.command].iter().any(|dir| dir.join(program).exists());
                assert!(
                    is_there && (program.starts_with(tree.bin) || program.starts_with(tree.cni)),
                    "{unit}: {line}"
                );
            }
        }
        let of_cluster = tree.cluster.join(tree.cni);
        assert_eq!(
            names(&of_cluster),
            BTreeSet::from(["cluster-local-etcd", "cluster-local-store"].map(str::to_owned))
        );
        let former = fs::read_link(of_cluster.join("cluster-local-etcd")).unwrap();
        assert_eq!(former, Path::new("cluster-local-store"));
        let packages = [
            (&tree.plugins, "cnimble-plugins"),
            (&tree.command, "cnimble"),
            (&tree.cluster, "cnimble-cluster"),
        ];
        for (package, name) in packages {
            let path = package.join("usr/share/doc").join(name).join("THIRD-PARTY");
            let licences = fs::read_to_string(path).unwrap();
            for said in ["\nserde ", "\nnix ", "MIT OR Apache-2.0", "Permission is hereby granted"] {
                assert!(licences.contains(said), "{name}: no {said:?}");
            }
            assert_links_lead_somewhere(&package.join("usr/share/doc").join(name));
        }
    }
}

/// Each link of an installed page leads to a page beside it, or to a file of the repository on the web.
#[track_caller]
fn assert_links_lead_somewhere(dir: &Path) {
    let web = format!("{}/blob/main/", env!("CARGO_PKG_REPOSITORY"));
    let mut broken = Vec::new();
    for name in names(dir).into_iter().filter(|name| name.ends_with(".md")) {
        let page = fs::read_to_string(dir.join(&name)).unwrap();
        for link in page.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = link.split('#').next().unwrap();
            let leads = match path.strip_prefix(&web) {
                Some(path) => script("..").join(path).exists(),
                None => path.is_empty() || path.contains("://") || dir.join(path).exists(),
            };
            if !leads {
                broken.push(format!("{name}: {link}"));
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere in {}:\n{}", dir.display(), broken.join("\n"));
}

#[test]
fn a_later_build_has_a_newer_version() {
    need!("git", "dpkg");
    let dir = tempfile::tempdir().unwrap();
    let sh = |line: &str| {
        let mut bash = Command::new("bash");
        bash.args(["-euc", line, "bash"]).arg(script("")).current_dir(dir.path());
        bash.env("GIT_CONFIG_GLOBAL", "/dev/null").env("HOME", dir.path());
        let output = bash.output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let version = || sh("source scripts/lib.sh; package_version");
    let commit = || sh("git -c user.name=a -c user.email=a@b commit --quiet --allow-empty --message c");
    sh(
        "mkdir scripts; cp \"$1\"/lib.sh \"$1\"/debian.sh scripts; printf 'version = \"0.1.0\"\\n' >Cargo.toml",
    );
    // As from a tarball of the source.
    assert_eq!(version(), "0.1.0");
    sh("git init --quiet");
    commit();
    sh("git tag v0.1.0");
    assert_eq!(version(), "0.1.0");
    let mut versions = vec![version()];
    for count in 1..12 {
        commit();
        assert!(version().starts_with(&format!("0.1.0+{count}.g")), "{}", version());
        versions.push(version());
    }
    versions.push("0.1.1".to_owned());
    for pair in versions.windows(2) {
        sh(&format!("dpkg --compare-versions {}-1 lt {}-1", pair[0], pair[1]));
    }
    // A version without a tag counts all commits.
    sh("git tag --delete v0.1.0 >/dev/null");
    assert!(version().starts_with("0.1.0+12.g"), "{}", version());
}
