//! Completion as bash does it: the script that `cnimble completions` prints is run by a bash, which asks.

use std::fs;

use cnimble_tests::{Pod, command, need, plugin_dir};

use super::Node;

/// What bash offers for the last word of this line.
fn offered(node: &Node, words: &[&str]) -> Vec<String> {
    let script = r#"
        set -u
        mount -t tmpfs none /run
        mkdir /run/netns
        touch /run/netns/{blue,green}
        eval "$(cnimble completions bash)"
        COMP_WORDS=(cnimble "$@")
        COMP_CWORD=$#
        COMP_TYPE=9
        COMP_LINE="${COMP_WORDS[*]}"
        COMP_POINT=${#COMP_LINE}
        completion=$(complete -p cnimble)
        [[ $completion =~ -F\ ([^ ]+) ]]
        "${BASH_REMATCH[1]}" cnimble "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}" 2>/dev/null
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    // With a /run of its own.
    let mut bash = node.host.command("unshare");
    bash.args(["--mount", "--propagation", "private", "bash"]);
    // The command is found under its own name, as on a machine where it is installed.
    let bin = node.host.dir().join("bin");
    fs::create_dir_all(&bin).unwrap();
    if !bin.join("cnimble").exists() {
        std::os::unix::fs::symlink(fs::canonicalize(command()).unwrap(), bin.join("cnimble")).unwrap();
    }
    bash.args(["-c", script, "bash"]).args(words).env("NETCONFPATH", node.conf());
    bash.env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
    let text = cnimble_tests::Outcome::of(&mut bash).success().text();
    text.lines().map(|line| line.trim_end().to_owned()).filter(|line| !line.is_empty()).collect()
}

#[test]
fn bash_completes_names_of_networks_namespaces_pods_and_containers() {
    need!("bash", "unshare", "mount");
    let node = Node::new();
    node.bridge("backend", "1.0.0");
    node.bridge_with("blue", "1.0.0", "10.1.3.0/24");
    assert_eq!(offered(&node, &["add", "b"]), ["backend", "blue"]);
    assert_eq!(offered(&node, &["check", "bl"]), ["blue"]);
    assert_eq!(offered(&node, &["validate", "--strict", "ba"]), ["backend"]);
    assert_eq!(offered(&node, &["ev"]), ["events"]);
    assert_eq!(offered(&node, &["add", "backend", "g"]), ["green"]);
    // Another directory that is on the line.
    let other = node.host.dir().join("other.d");
    fs::create_dir(&other).unwrap();
    fs::copy(node.conf().join("blue.conflist"), other.join("blue.conflist")).unwrap();
    assert_eq!(offered(&node, &["--conf-dir", other.to_str().unwrap(), "add", "b"]), ["blue"]);

    let pod = Pod::new();
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web";
    let line = ["add", "backend", pod.path(), "--container-id", "c0ffee", "--args", args];
    node.cnimble(plugin_dir(), &line).run().success();
    let cache = node.cache();
    let cache = cache.to_str().unwrap();
    assert_eq!(offered(&node, &["--cache-dir", cache, "stats", "sh"]), ["shop/web"]);
    assert_eq!(offered(&node, &["--cache-dir", cache, "pod", "status", ""])[0], "shop/web");
    assert_eq!(offered(&node, &["--cache-dir", cache, "del", "backend", "--container-id", "c"]), ["c0ffee"]);
}
