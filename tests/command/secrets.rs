//! Tests that no output contains a secret, for all places of secrets and servers that repeat them.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use cnimble_tests::http::{Request, scripted};
use cnimble_tests::{Background, LIMIT, Outcome, PATIENCE, command, need, script, wait_until};

/// Beginning and end are distinctive, because a server may truncate its answer.
const MARKER: &str = "s3cr3t-M4rker-that-n0b0dy-may-see";

/// The ways in which a server uses the request in its answer.
const ANSWERS: [&str; 6] = ["message", "cut", "garbage", "list", "watch", "redirect"];

/// Returns all parts of a request.
fn sent(request: &Request) -> String {
    let authorization = request.headers.get("authorization").cloned().unwrap_or_default();
    let own = request.headers.get("x-own").cloned().unwrap_or_default();
    format!("{authorization} {own} {}", request.target.split_once('?').map_or("", |(_, query)| query))
}

fn repeat(answer: &str, request: &Request) -> Vec<u8> {
    let sent = sent(request);
    let word = sent.trim().rsplit([' ', '=']).next().unwrap_or_default().to_owned();
    let (status, more, body) = match answer {
        "message" => (
            403,
            String::new(),
            json!({"kind": "Status", "message": format!("no: {sent}\u{1b}[2J")}).to_string(),
        ),
        "cut" => (
            403,
            String::new(),
            json!({"kind": "Status", "message": format!("{}{sent}", "x".repeat(270))}).to_string(),
        ),
        "garbage" => (200, String::new(), format!("{{\"items\": \"{sent}\", \"kind\": {sent}")),
        "list" => {
            let item = json!({"metadata": {"name": word, "namespace": word, "uid": sent, "resourceVersion": "1"},
                "spec": {"podCIDRs": [sent], "containers": sent}, "status": {"addresses": sent}});
            let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": sent, "continue": word}, "items": [item, item]});
            (200, String::new(), list.to_string())
        }
        "watch" if request.target.contains("watch=") => {
            let status = json!({"kind": "Status", "code": 500, "reason": sent, "message": sent});
            (200, String::new(), json!({"type": "ERROR", "object": status}).to_string() + "\n")
        }
        "watch" => {
            (200, String::new(), json!({"metadata": {"resourceVersion": "1"}, "items": []}).to_string())
        }
        _ => (302, format!("Location: ftp://{}/{word}\r\n", sent.replace(' ', "-")), String::new()),
    };
    let head =
        format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n{more}\r\n", body.len());
    (head + &body).into_bytes()
}

/// Returns options of `cnimble run` for a secret in each place, and writes their files.
fn places(dir: &Path, address: &str) -> Vec<(&'static str, Vec<String>)> {
    let file = |name: &str, text: &str| {
        fs::write(dir.join(name), text).unwrap();
        dir.join(name).display().to_string()
    };
    file("token", &format!("{MARKER}\n"));
    script(
        &dir.join("give"),
        "#!/bin/sh\necho '{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{\"token\":\"'$GIVEN'\"}}'\n",
    );
    let kubeconfig = |name: &str, user: Value| {
        let config = json!({"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": format!("http://{address}")}}], "users": [{"name": "u", "user": user}]});
        vec!["--kubeconfig".to_owned(), file(name, &config.to_string())]
    };
    let exec = json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "./give", "env": [{"name": "GIVEN", "value": MARKER}]});
    let url = |url: String, header: Option<String>| {
        let mut args = vec!["--url".to_owned(), url];
        args.extend(header.into_iter().flat_map(|header| ["--url-header".to_owned(), header]));
        args
    };
    let headers = file("headers", &format!("Authorization: Bearer {MARKER}\n"));
    vec![
        ("token", kubeconfig("k1", json!({"token": MARKER}))),
        ("token file", kubeconfig("k2", json!({"tokenFile": "token"}))),
        ("password", kubeconfig("k3", json!({"username": "me", "password": MARKER}))),
        ("program", kubeconfig("k4", json!({"exec": exec}))),
        ("wrong type", kubeconfig("k5", json!({"token": [MARKER]}))),
        (
            "wrong program",
            kubeconfig(
                "k6",
                json!({"exec": {"apiVersion": "v0", "command": "x", "env": [{"name": "A", "value": MARKER}]}}),
            ),
        ),
        ("key", kubeconfig("k7", json!({"client-key-data": MARKER, "client-certificate-data": MARKER}))),
        ("header", url(format!("http://{address}/"), Some(format!("X-Own: {MARKER}")))),
        ("header's file", url(format!("http://{address}/"), Some(format!("@{headers}")))),
        ("bad header", url(format!("http://{address}/"), Some(format!("A\u{1}: {MARKER}")))),
        ("query", url(format!("http://{address}/pods?key={MARKER}"), None)),
        ("URL's user", url(format!("http://me:{MARKER}@{address}/"), None)),
    ]
}

/// Returns the marker, its beginning or its Basic form if the text contains one.
fn leaks(text: &str) -> Option<&'static str> {
    // base64 of "me:" and the marker begins so.
    [&MARKER[..12], "bWU6czNjcjN0"].into_iter().find(|word| text.contains(word))
}

#[test]
fn a_secret_is_in_no_output_wherever_it_stands_and_whatever_a_server_repeats() {
    need!();
    let mut hidden = 0;
    for answer in ANSWERS {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        fs::create_dir(dir.join("net.d")).unwrap();
        let address = scripted(move |request| repeat(answer, request)).to_string();
        for (place, args) in places(dir, &address) {
            for (verb, format) in [("run", "text"), ("run", "json"), ("node", "text")] {
                if verb == "node" && args[0] != "--kubeconfig" {
                    continue;
                }
                let mut line = Command::new(command());
                line.args([
                    verb,
                    "--once",
                    "--json",
                    "--log-format",
                    format,
                    "--node-name",
                    "n",
                    "--listen",
                    "off",
                ]);
                line.args(&args).env("CNIMBLE_LOG", "trace").arg("--conf-dir").arg(dir.join("net.d"));
                line.arg("--lock-dir").arg(dir.join("locks"));
                if verb == "run" {
                    line.arg("--state-dir").arg(dir.join("state")).arg("--run-dir").arg(dir.join("run"));
                }
                let told = Outcome::of(&mut line);
                let all = told.text() + &told.stderr;
                assert_eq!(leaks(&all), None, "{place}, {answer}: {}", told.describe());
                assert!(!all.contains('\u{1b}'), "{place}, {answer}: {}", told.describe());
                hidden += usize::from(all.contains("[secret]"));
            }
        }
    }
    // A repeated secret is replaced by a placeholder.
    assert!(hidden > 20, "{hidden} outputs had the secret in them");
}

#[test]
fn the_pages_of_run_have_no_secret() {
    need!();
    for (number, answer) in ANSWERS.iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        fs::create_dir(dir.join("net.d")).unwrap();
        let address = scripted(move |request| repeat(answer, request)).to_string();
        let (_, args) = places(dir, &address).swap_remove(if number % 2 == 0 { 0 } else { 8 });
        let socket = dir.join("socket");
        let mut line = Command::new(command());
        line.arg("run").args(&args).args(["--node-name", "n", "--listen"]).arg(&socket);
        line.arg("--state-dir").arg(dir.join("state")).arg("--run-dir").arg(dir.join("run"));
        line.arg("--lock-dir").arg(dir.join("locks")).arg("--conf-dir").arg(dir.join("net.d"));
        let mut running = Background::start(line.stdout(Stdio::null()).stderr(Stdio::null()));
        let page = |name: &str| {
            let mut stream = UnixStream::connect(&socket).ok()?;
            stream.set_read_timeout(Some(LIMIT)).ok()?;
            write!(stream, "GET {name} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
            let mut text = String::new();
            stream.read_to_string(&mut text).ok()?;
            Some(text)
        };
        let problems = || page("/pods").is_some_and(|text| text.contains(&address));
        assert!(wait_until(PATIENCE, || !running.running() || problems()), "{answer}: {:?}", page("/pods"));
        for name in ["/healthz", "/pods", "/metrics"] {
            let text = page(name).unwrap_or_default();
            assert_eq!(leaks(&text), None, "{answer}, {name}: {text}");
        }
    }
}
