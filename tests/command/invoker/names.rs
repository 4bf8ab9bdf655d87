//! Tests completion in real shells. Each runs the script that `cnimble completions` prints, from the place where the
//! packages install it.

use std::collections::BTreeSet;
use std::fs;

use cnimble_tests::{Pod, command, need, plugin_dir};

use super::Node;

/// Prints bash's completions for the last word of a line.
const BASH: &str = r#"
    . "$DATA/bash-completion/completions/cnimble"
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

/// The same in fish, which adds a description after a tab. `string` fails if there is nothing to replace.
const FISH: &str = r#"
    . $DATA/fish/vendor_completions.d/cnimble.fish
    complete -C "cnimble $argv" | string replace -r '\t.*' ''
    true
"#;

/// The same in zsh. A second zsh on a terminal receives the key, and its `compadd` prints the words.
const ZSH: &str = r#"
    zmodload zsh/zpty
    cat >$ZDOTDIR/rc <<'END'
PROMPT=
fpath=($DATA/zsh/vendor-completions $fpath)
autoload -Uz compinit
compinit -u -d $ZDOTDIR/dump
bindkey '^I' complete-word
compadd() {
    if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]]; then builtin compadd "$@"; return; fi
    typeset -a hits
    builtin compadd -A hits "$@"
    for hit in $hits; do print -r -- "HIT:$IPREFIX$hit"; done
}
finish() { print -r -- DONE; exit; }
comppostfuncs=(finish)
print -r -- READY
END
    zpty z zsh -f -i
    zpty -w z ". $ZDOTDIR/rc"
    while zpty -r z line; do [[ $line == READY* ]] && break; done
    zpty -n -w z "cnimble $*"$'\t'
    while zpty -r z line; do
        line=${line//[$'\r\n']/}
        [[ $line == *HIT:* ]] && print -r -- ${line##*HIT:}
        [[ $line == *DONE* ]] && break
    done
"#;

/// Returns a shell's completions for the last word of this line.
fn offered_by(shell: &str, node: &Node, words: &[&str]) -> BTreeSet<String> {
    let dir = node.host.dir();
    // The command is found under its own name, as on a machine with an installed package.
    let bin = dir.join("bin");
    if !bin.join("cnimble").exists() {
        fs::create_dir_all(&bin).unwrap();
        std::os::unix::fs::symlink(fs::canonicalize(command()).unwrap(), bin.join("cnimble")).unwrap();
        for (shell, place) in [
            ("bash", "bash-completion/completions/cnimble"),
            ("zsh", "zsh/vendor-completions/_cnimble"),
            ("fish", "fish/vendor_completions.d/cnimble.fish"),
        ] {
            let script = std::process::Command::new(command()).args(["completions", shell]).output().unwrap();
            let place = dir.join("share").join(place);
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::write(place, script.stdout).unwrap();
        }
    }
    // The shell has its own /run.
    let mut line = node.host.command("unshare");
    let namespaces =
        "mount -t tmpfs none /run; mkdir /run/netns; touch /run/netns/blue /run/netns/green; exec \"$@\"";
    line.args(["--mount", "--propagation", "private", "sh", "-c", namespaces, "sh"]);
    match shell {
        "bash" => line.args(["bash", "-c", BASH, "bash"]).args(words),
        "fish" => line.args(["fish", "--no-config", "-c", FISH, "--"]).args(words),
        _ => line.args(["zsh", "-f", "-c", ZSH, "zsh"]).args(words),
    };
    line.env("NETCONFPATH", node.conf()).env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
    line.env("DATA", dir.join("share")).env("ZDOTDIR", dir).env("HOME", dir).env("TERM", "xterm");
    let text = cnimble_tests::Outcome::of(&mut line).success().text();
    text.lines().map(|line| line.trim_end().to_owned()).filter(|line| !line.is_empty()).collect()
}

fn offered(node: &Node, words: &[&str]) -> Vec<String> {
    offered_by("bash", node, words).into_iter().collect()
}

/// Completes each argument that has names, in each shell.
#[test]
fn each_shell_completes_each_argument_as_the_packages_install_it() {
    need!("bash", "zsh", "fish", "unshare", "mount");
    let node = Node::new();
    node.bridge("backend", "1.0.0");
    node.host.ip("link add uplink type bridge");
    let pod = Pod::new();
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web";
    let line = ["add", "backend", pod.path(), "--container-id", "c0ffee", "-i", "net1", "--args", args];
    node.cnimble(plugin_dir(), &line).run().success();
    let cache = node.cache();
    let cache = cache.to_str().unwrap();
    let (network, container, pods) = ("backend", "c0ffee", "shop/web");
    let lines: Vec<(Vec<&str>, &str)> = vec![
        (vec!["add", "ba"], network),
        (vec!["del", "ba"], network),
        (vec!["check", "ba"], network),
        (vec!["gc", "ba"], network),
        (vec!["status", "ba"], network),
        (vec!["validate", "ba"], network),
        (vec!["events", "--network", "ba"], network),
        (vec!["run", "--own-network", "ba"], network),
        (vec!["ipam", "blocks", "ba"], network),
        (vec!["add", "backend", "gre"], "green"),
        (vec!["del", "backend", "--container-id", "c0"], container),
        (vec!["del", "backend", "-i", "ne"], "net1"),
        (vec!["stats", "sho"], pods),
        (vec!["trace", "sho"], pods),
        (vec!["pod", "status", "sho"], pods),
        (vec!["pod", "down", "sho"], pods),
        (vec!["cri", "inspect", "sho"], pods),
        (vec!["cri", "down", "sho"], pods),
        (vec!["init", "macvlan", "lan", "--master", "upl"], "uplink"),
        (vec!["schema", "host-d"], "host-device"),
        (vec!["explain", "isDef"], "isDefaultGateway"),
        (vec!["explain", "ipam.rang"], "ipam.ranges"),
        (vec!["explain", "chain-o"], "chain-order"),
        (vec!["completions", "fi"], "fish"),
        (vec!["init", "contain"], "containerd"),
        (vec!["run", "--log-format", "js"], "json"),
        (vec!["hand"], "hand-over"),
        (vec!["doctor", "--repa"], "--repair"),
    ];
    for shell in ["bash", "zsh", "fish"] {
        for (words, wanted) in &lines {
            let words = [&["--cache-dir", cache], words.as_slice()].concat();
            let offered = offered_by(shell, &node, &words);
            assert!(offered.contains(*wanted), "{shell}: {words:?}: {offered:?}");
        }
        assert!(offered_by(shell, &node, &["add", "nothing-beg"]).is_empty(), "{shell}");
    }
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
    // The line names another directory.
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
    assert!(offered(&node, &["--cache-dir", cache, "pod", "status", ""]).contains(&"shop/web".to_owned()));
    assert_eq!(offered(&node, &["--cache-dir", cache, "del", "backend", "--container-id", "c"]), ["c0ffee"]);
}
