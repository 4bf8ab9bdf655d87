//! Checks each verb against the rules of docs/COMMAND.md. They concern exit statuses, errors in JSON, a full or closed
//! stdout, and colours.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use cnimble_tests::{Background, LIMIT, Outcome, PATIENCE, Pod, command, need, plugin_dir, wait_until};

use super::verbs::{FINDS, OTHER_FORM, QUIET, STREAMS, VERBS, Verb};
use super::{Node, scripts};

/// A node on which each good line works.
struct Walk {
    node: Node,
    pod: Pod,
    bin: String,
    _serve: Background,
}

impl Walk {
    fn new() -> Self {
        let node = Node::new();
        let dir = node.host.dir().to_owned();
        // Replaces the program that speaks to the store.
        let fake = r#"case $1 in blocks) echo '[]' ;; *) echo '{"released":0}' ;; esac"#;
        let bin = scripts(&dir, &[("cluster-local-store", &format!("cat >/dev/null; {fake}"))]);
        let bin = format!("{}:{}", bin.display(), plugin_dir().display());
        node.bridge("net", "1.1.0");
        node.bridge_with("zgc", "1.1.0", "10.1.3.0/24");
        node.network(
            "zcluster",
            &json!({"cniVersion": "1.0.0", "name": "cluster", "plugins": [
            {"type": "bridge", "ipam": {"type": "cluster-local"}}]}),
        );
        for name in ["web", "other"] {
            let text = format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c}}]}}\n"
            );
            fs::write(dir.join(format!("{name}.yaml")), text).unwrap();
        }
        fs::write(dir.join("file"), "").unwrap();
        fs::create_dir(dir.join("leases")).unwrap();
        let socket = dir.join("cri.sock");
        let mut serve = node.host.command(command());
        serve.args(["serve", "--cri"]).arg(&socket).env("CNI_PATH", &bin).env("NETCONFPATH", node.conf());
        serve.arg("--state-dir").arg(dir.join("cri-state")).arg("--run-dir").arg(dir.join("cri-run"));
        serve.arg("--lock-dir").arg(dir.join("locks")).arg("--cache-dir").arg(dir.join("cri-cache"));
        let log = fs::File::create(dir.join("log")).unwrap();
        serve.stdout(Stdio::null()).stderr(log);
        let serve = Background::start(&mut serve);
        let walk = Walk { node, pod: Pod::new(), bin, _serve: serve };
        let log = || fs::read_to_string(walk.node.host.dir().join("log")).unwrap();
        assert!(
            wait_until(PATIENCE, || walk.run("cri up {dir}/other.yaml --socket {dir}/cri.sock").status == 0),
            "{}",
            log()
        );
        walk.run("pod up {dir}/web.yaml").success();
        walk
    }

    /// Returns the command for a line.
    fn command(&self, line: &str) -> Command {
        let dir = self.node.host.dir().display().to_string();
        let words = line.split(' ').map(|word| word.replace("{dir}", &dir).replace("{pod}", self.pod.path()));
        let mut command = self.node.host.command(command());
        let words: Vec<String> = words.collect();
        let (mut before, mut behind) = (words.clone(), Vec::new());
        if let Some(at) = words.iter().position(|word| word == "--") {
            (before, behind) = (words[..at].to_vec(), words[at..].to_vec());
        }
        command.args(before);
        if !line.contains("--cni-path") {
            command.env("CNI_PATH", &self.bin);
        }
        if !line.contains("--conf-dir") {
            command.env("NETCONFPATH", self.node.conf());
        }
        let verb = line.split(' ').next().unwrap();
        if ["pod", "run", "serve"].contains(&verb) && !line.contains("--state-dir") {
            command.args(["--state-dir", &format!("{dir}/state"), "--run-dir", &format!("{dir}/run")]);
        } else if verb != "pod" {
            command.arg("--cache-dir").arg(self.node.cache());
        }
        command.args(["--lock-dir", &format!("{dir}/locks")]).args(behind);
        command
    }

    fn run(&self, line: &str) -> Outcome {
        Outcome::of(&mut self.command(line))
    }

    /// Runs the line with `--json`.
    fn json(&self, line: &str) -> Outcome {
        let line = match line.split_once(" -- ") {
            Some((before, behind)) => format!("{before} --json -- {behind}"),
            None => format!("{line} --json"),
        };
        self.run(&line)
    }

    /// Runs the line with this stdout. Returns exit status and stderr.
    fn onto(&self, line: &str, stdout: impl Into<Stdio>) -> (i32, String) {
        let mut command = self.command(line);
        command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped());
        let ended = Background::start(&mut command).finish(LIMIT);
        (ended.status.code().unwrap_or(-1), String::from_utf8_lossy(&ended.stderr).into_owned())
    }

    /// Prepares the state that the line needs.
    fn prepare(&self, verb: &Verb) {
        if ["check", "del"].contains(&verb.name) {
            self.run("del net {pod}").success();
            self.run("add net {pod}").success();
        }
        if verb.name == "add" {
            self.run("del net {pod}").success();
        }
        if verb.name == "network-rm" {
            self.node.bridge_with("zrm", "1.0.0", "10.1.4.0/24");
        }
    }
}

/// Returns the writing end of a pipe without a reader.
fn unread() -> OwnedFd {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

#[test]
fn every_verb_keeps_the_rules() {
    need!("ip", "nft", "script");
    let walk = Walk::new();
    let pages = walk.node.host.dir().join("pages");
    walk.run("man {dir}/pages").success();
    let pages = super::names(&pages);
    let verbs: BTreeSet<&str> = pages
        .iter()
        .filter_map(|page| page.strip_prefix("cnimble-")?.strip_suffix(".1"))
        .filter(|name| !["cri", "ipam", "network", "pod"].contains(name))
        .collect();
    let walked: BTreeSet<&str> = VERBS.iter().map(|verb| verb.name).collect();
    assert_eq!(verbs, walked, "each verb is walked");
    let mut wrong = Vec::new();
    for verb in VERBS {
        wrong.extend(mistakes(&walk, verb));
        wrong.extend(outputs(&walk, verb));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Returns the faults in the verb's errors.
fn mistakes(walk: &Walk, verb: &Verb) -> Vec<String> {
    let mut wrong = Vec::new();
    let unknown_option =
        format!("{} --no-such-option", verb.name.replacen('-', " ", usize::from(is_group(verb.name))));
    let (unknown_name, status) = verb.wrong;
    for (line, status) in [(unknown_option.as_str(), 2), (unknown_name, status)] {
        if line.is_empty() {
            continue;
        }
        let told = walk.run(line);
        let begins = told.stderr.starts_with("cnimble: ") || told.stderr.starts_with("error: ");
        if told.status != status || !told.text().is_empty() || !begins {
            wrong
                .push(format!("wanted {status}, words on stderr and nothing on stdout: {}", told.describe()));
        }
        let told = walk.json(line);
        let value: Value = serde_json::from_slice(&told.stdout).unwrap_or_default();
        // Verbs for several pods print a list.
        let error = value.get(0).map_or(&value, |first| &first["error"]);
        let told_so = error["exitStatus"] == status && error["code"].is_u64() && error["msg"].is_string();
        if told.status != status || !told_so || told.stderr.contains("cnimble: can't") {
            wrong.push(format!("wanted {status} and an error as JSON on stdout: {}", told.describe()));
        }
    }
    wrong
}

fn is_group(name: &str) -> bool {
    ["cri-", "ipam-", "network-", "pod-"].iter().any(|group| name.starts_with(group))
}

/// Returns the faults in the verb's output.
fn outputs(walk: &Walk, verb: &Verb) -> Vec<String> {
    let mut wrong = Vec::new();
    if verb.good.is_empty() {
        return wrong;
    }
    let fine = if FINDS.contains(&verb.name) { 6 } else { 0 };
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    if !STREAMS.contains(&verb.name) {
        walk.prepare(verb);
        let told = walk.json(verb.good);
        let is_json =
            serde_json::from_slice::<Value>(&told.stdout).is_ok() != OTHER_FORM.contains(&verb.name);
        // A dry run of init prints the file, which is JSON.
        if told.status != fine || !(is_json || verb.name == "init") || told.stdout.contains(&0x1b) {
            wrong.push(format!("wanted success and JSON: {}", told.describe()));
        }
    }
    for (what, line) in [("words", verb.good.to_owned()), ("JSON", format!("{} --json", verb.good))] {
        let prints = what == "JSON" || !QUIET.contains(&verb.name);
        walk.prepare(verb);
        let (status, stderr) = walk.onto(&line, full());
        let wanted = if prints { 5 } else { fine };
        if status != wanted || stderr.contains("can't write to stdout") != prints {
            wrong.push(format!("{line}, {what} to a full disk: wanted {wanted}, got {status}: {stderr}"));
        }
        walk.prepare(verb);
        let (status, stderr) = walk.onto(&line, unread());
        if status != fine || stderr.contains("cnimble: can't") || stderr.contains("panicked") {
            wrong.push(format!("{line}, {what} to a closed pipe: got {status}: {stderr}"));
        }
    }
    wrong
}

/// Output on a terminal is coloured, unless `NO_COLOR` or `TERM=dumb` is set.
#[test]
fn no_verb_colours_where_colours_are_not_wanted() {
    need!("ip", "nft", "script");
    let walk = Walk::new();
    let on_terminal = |line: &str, variable: (&str, &str)| {
        let inner = walk.command(line);
        let words: Vec<String> = std::iter::once(inner.get_program())
            .chain(inner.get_args())
            .map(|word| format!("'{}'", word.to_str().unwrap()))
            .collect();
        let mut script = walk.node.host.command("script");
        script.args(["-qec", &words.join(" "), "/dev/null"]).env("TERM", "xterm");
        script.env("CNI_PATH", &walk.bin).env("NETCONFPATH", walk.node.conf()).env(variable.0, variable.1);
        Outcome::of(&mut script)
    };
    // A line of progress is cleared on a terminal, which is no colour: `ESC [ K`.
    let is_coloured = |shown: &Outcome| {
        String::from_utf8_lossy(&shown.stdout).split("\x1b[").skip(1).any(|code| !code.starts_with('K'))
    };
    let mut coloured = 0;
    for verb in VERBS.iter().filter(|verb| !STREAMS.contains(&verb.name)) {
        for line in [verb.good, verb.wrong.0, "help", "frob"].iter().filter(|line| !line.is_empty()) {
            walk.prepare(verb);
            coloured += usize::from(is_coloured(&on_terminal(line, ("A", "b"))));
            for variable in [("NO_COLOR", "1"), ("TERM", "dumb")] {
                walk.prepare(verb);
                let shown = on_terminal(line, variable);
                assert!(!is_coloured(&shown), "{line} with {variable:?}: {}", shown.describe());
            }
        }
    }
    assert!(coloured > VERBS.len(), "{coloured} lines were coloured");
}

#[test]
fn a_variable_without_meaning_is_an_error_of_every_verb() {
    need!();
    let walk = Walk::new();
    for verb in VERBS.iter().filter(|verb| !verb.good.is_empty()) {
        let mut command = walk.command(verb.good);
        let told = Outcome::of(command.env("CNIMBLE_LOG", "bogus"));
        assert_eq!(told.status, 2, "{}", told.describe());
        assert!(told.stderr.contains("CNIMBLE_LOG=bogus names no level"), "{}", told.describe());
    }
}

#[test]
fn the_version_names_the_commit() {
    let told = Outcome::of(Command::new(command()).arg("--version")).success().text();
    let commit = told.split("(commit ").nth(1).and_then(|rest| rest.split(',').next()).unwrap_or_default();
    let is_hash = commit.len() >= 12 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(is_hash || commit == "unknown", "{told}");
}

/// The reader takes one line and exits, like `head -n 1`.
#[test]
fn a_stream_ends_when_its_reader_goes() {
    need!("ip");
    let walk = Walk::new();
    for line in ["events", "events --json", "stats --interval 0.1", "stats --interval 0.1 --json"] {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let mut command = walk.command(line);
        command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped());
        let running = Background::start(&mut command);
        drop(command);
        assert!(reader.read(&mut [0; 1]).unwrap() > 0, "{line}");
        drop(reader);
        if line.starts_with("events") {
            // The command writes on events.
            walk.run("add net {pod}").success();
            walk.run("del net {pod}").success();
        }
        let ended = running.finish(LIMIT);
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success() && stderr.is_empty(), "{line}: {} {stderr}", ended.status);
    }
}

/// This program's own escape codes are escaped, too, if they come from a plugin.
#[test]
fn words_of_others_are_escaped_on_a_terminal_in_a_pipe_and_in_json() {
    need!("script");
    let node = Node::new();
    let error = r#"{"cniVersion":"1.0.0","code":50,"msg":"a\u001b[1;31mred\u202e\u061c","details":"b\u001b]0;t\u0007\n\u009b2J"}"#;
    let bin = scripts(node.host.dir(), &[("it", &format!("cat >/dev/null; printf '%s' '{error}'; exit 1"))]);
    node.network("net", &json!({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "it"}]}));
    let pod = Pod::new();
    let line = format!("{} add net {}", command().display(), pod.path());
    let mut on_terminal = node.host.command("script");
    on_terminal.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm");
    on_terminal.env("CNI_PATH", &bin).env("NETCONFPATH", node.conf());
    let shown = Outcome::of(&mut on_terminal).text().replace('\r', "");
    let piped = node.cnimble(&bin, &["add", "net", pod.path()]).run().stderr;
    for text in
        [shown.replace("\x1b[1;31mcnimble:\x1b[0m", "").replace("\x1b[2m", "").replace("\x1b[0m", ""), piped]
    {
        assert!(text.contains("\\u{1b}[1;31mred\\u{202e}\\u{61c}"), "{text:?}");
        let unseen = |char: char| (char.is_control() && char != '\n') || "\u{202e}\u{61c}".contains(char);
        assert!(!text.contains(unseen), "{text:?}");
    }
    let json = node.cnimble(&bin, &["add", "net", pod.path()]).json().run();
    assert!(json.text().contains("a\\u001b[1;31mred\\u202e\\u061c"), "{}", json.describe());
    let value: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(value["msg"].as_str().unwrap().matches('\u{202e}').count(), 1);
}
