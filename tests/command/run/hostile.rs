//! Tests hostile servers and clients: the memory of `cnimble run`, secrets, and control characters.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use cnimble_tests::http::{ApiServer, TextServer, scripted};
use cnimble_tests::{PATIENCE, need, script, wait_until};

use super::{Cluster, Run, bridge, manifest};

/// The memory limit in KiB. Without pods the process needs some 10 MiB.
const MEMORY: u64 = 300 << 10;

const MIB: usize = 1 << 20;

impl Run<'_> {
    /// Returns the largest resident size so far, in KiB.
    fn peak(&self) -> u64 {
        let status = self.cluster.node.sh(&format!("cat /proc/{}/status", self.pid));
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        line.and_then(|text| text.trim().strip_suffix(" kB")?.parse().ok()).expect("VmHWM")
    }
}

/// Runs with these sources until `done`, and checks the memory use.
#[track_caller]
fn assert_modest(cluster: &Cluster, name: &str, args: &str, done: impl Fn() -> bool) {
    let run = cluster.start_with("", &format!("{args} --check-interval 0"));
    let ended = wait_until(PATIENCE, || !run.is_running() || done());
    assert!(run.is_running(), "{name}: {}", cluster.log());
    let peak = run.peak();
    println!("{name}: {} MiB", peak >> 10);
    assert!(ended, "{name}: {:#}", run.status());
    run.signal("KILL");
    run.wait_until_gone();
    assert!(peak < MEMORY, "{name}: {} MiB", peak >> 10);
}

fn repeated(begin: &str, part: &str, end: &str, size: usize) -> Vec<u8> {
    let count = (size - begin.len() - end.len()) / part.len();
    [begin, &part.repeat(count), end].concat().into_bytes()
}

#[test]
fn a_manifest_takes_modest_memory_whatever_is_in_it() {
    need!("ip");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    let list = r#"{"apiVersion":"v1","kind":"PodList","items":["#;
    let pod = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"hostNetwork":true,"containers":[{"name":"c"}"#;
    let annotated = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","annotations":{"#;
    let large = 10 * MIB;
    let bodies = [
        ("lists in lists", repeated(r#"{"a":"#, "[", "", large)),
        ("empty pods", repeated(list, "{},", "{}]}", large)),
        ("small maps", repeated(list, r#"{"":0},"#, "{}]}", large)),
        ("numbers", repeated(list, "0,", "0]}", large)),
        ("containers", repeated(pod, ",{}", "]}}", large)),
        ("containers, fewer", repeated(pod, ",{}", "]}}", 3 * 200_000)),
        ("annotations", repeated(annotated, r#""":"","#, r#""b":""}}}"#, large)),
        ("a long name", repeated(&annotated.replace(r#""name":"a","#, ""), "\u{202e}", r#"":""}}}"#, large)),
        ("documents", repeated("", "a\n---\n", "a", large)),
        ("flow maps", repeated("a: [", "{a: },", "]", large)),
        ("flow keys", repeated("a: [", "a: ,", "]", large)),
        ("block maps", repeated("", "- a:\n", "- b", large)),
        ("one word", repeated("", "a", "", large)),
        ("one string", repeated("\"", "\\n", "\"", large)),
        ("lines", repeated("", "\n", "", large)),
        ("anchors", repeated("", "- &a a\n", "", large)),
        ("too large", repeated("", "a: b\n", "", 64 * MIB)),
    ];
    for (name, body) in bodies {
        let web = cluster.node.within(|| TextServer::start(""));
        web.say(200, "", &body);
        // At the second request the first answer is already processed.
        let done = || web.requests().len() > 1;
        assert_modest(&cluster, name, &format!("--url {} --poll 1", web.url()), done);
    }
}

fn answer(body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn page(items: &[u8], token: &str) -> Vec<u8> {
    let begin =
        format!(r#"{{"kind":"PodList","metadata":{{"resourceVersion":"1","continue":"{token}"}},"items":["#);
    answer(&[begin.as_bytes(), items, b"]}"].concat())
}

/// Returns a pod as text, with additions after its UID and after its container.
fn pod(meta: &str, containers: &str) -> String {
    format!(
        r#"{{"metadata":{{"name":"a","uid":"u"{meta}}},"spec":{{"nodeName":"n","hostNetwork":true,"containers":[{{"name":"c"}}{containers}]}}}}"#
    )
}

#[test]
fn an_api_server_takes_modest_memory_whatever_it_says() {
    need!("ip");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    let ports = format!(r#",{{"ports":[{{}}{}]}}"#, ",{}".repeat(8 * MIB / 3 - 100));
    let annotated = pod(&format!(r#","annotations":{{"a":"{}"}}"#, "x".repeat(MIB)), "");
    let long = pod("", "").replace(r#""a""#, &format!("\"{}\"", "\u{202e}".repeat(2 * MIB)));
    let events = (0..8 * MIB / 70).map(|number| {
        format!(r#"{{"type":"ADDED","object":{{"metadata":{{"name":"a{number}"}},"spec":1}}}}{}"#, "\n")
    });
    let events = answer(events.collect::<String>().as_bytes());
    let refusal = [b"HTTP/1.1 500 X\r\nContent-Length: 67108864\r\n\r\n".to_vec(), vec![b'['; 64 * MIB]];
    let same = |answer: Vec<u8>| -> Box<dyn Fn(usize) -> Vec<u8> + Send + Sync> {
        Box::new(move |_| answer.clone())
    };
    let answers = [
        ("endless continue", 300, Box::new(|number: usize| page(b"", &format!("t{number}"))) as Box<_>),
        ("containers", 1, same(page(pod("", &",{}".repeat(8 * MIB / 3 - 100)).as_bytes(), ""))),
        ("ports", 1, same(page(pod("", &ports).as_bytes(), ""))),
        ("64 MiB of large pods", 1, same(page(vec![annotated; 64].join(",").as_bytes(), ""))),
        ("64 MiB of small pods", 1, same(page(vec![pod("", ""); 64 * MIB / 110].join(",").as_bytes(), ""))),
        ("64 MiB of nothing", 1, same(page(vec!["{}"; 64 * MIB / 3].join(",").as_bytes(), ""))),
        ("long names", 1, same(page(vec![long; 10].join(",").as_bytes(), ""))),
        ("64 MiB of refusal", 1, same(refusal.concat())),
        (
            "100,000 bad events",
            2,
            Box::new(
                move |number: usize| if number.is_multiple_of(2) { page(b"", "") } else { events.clone() },
            ) as Box<_>,
        ),
    ];
    for (name, requests, answer) in answers {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let address =
            cluster.node.within(|| scripted(move |_| answer(count.fetch_add(1, Ordering::Relaxed))));
        let config = json!({"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": ""}}],
            "clusters": [{"name": "k", "cluster": {"server": format!("http://{address}")}}]});
        cluster.place("kubeconfig", &config.to_string());
        let line = format!("--kubeconfig {} --node-name n", cluster.path("kubeconfig").display());
        assert_modest(&cluster, name, &line, || asked.load(Ordering::Relaxed) > requests);
    }
}

/// A plugin with control characters in its errors.
const RUDE: &str = r#"#!/bin/sh
cat >/dev/null
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["1.0.0","1.1.0"]}' ;;
ADD) printf '\033[2Jstderr\n' >&2; printf '{"cniVersion":"1.1.0","code":50,"msg":"a\\u001b]0;owned\\u0007\\u202eb\302\233c"}'; exit 1 ;;
esac
"#;

#[test]
fn nothing_reaches_a_log_or_a_terminal_but_text() {
    need!("ip", "script");
    let cluster =
        Cluster::new(&json!({"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "rude"}]}));
    std::fs::create_dir(cluster.path("bin")).unwrap();
    script(&cluster.path("bin/rude"), RUDE);
    cluster.put("web", &manifest("web"));
    let mut bad = manifest("bad");
    bad["spec"]["containers"][0]["image"] = json!(["\u{1b}[2J\u{202e}\u{9b}2J"]);
    bad["spec"]["hostname"] = json!("\u{1b}[2J");
    cluster.put("bad", &bad);
    let colours = ["\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[1;31m", "\r\x1b[K"];
    let check = |text: &str, what: &str| {
        let plain = colours.iter().fold(text.to_owned(), |text, code| text.replace(code, ""));
        let unseen =
            |char: char| char == '\u{202e}' || (char.is_control() && !matches!(char, '\n' | '\t' | '\r'));
        assert!(!plain.contains(unseen), "{what}: {text:?}");
        assert!(text.contains("owned"), "{what}: {text:?}");
    };
    let manifests = cluster.path("manifests");
    for more in ["", "--json", "--log-format json", "--json --log-format json"] {
        let line = cluster.line(&format!("--once --manifests {} {more}", manifests.display()));
        let outcome = cluster.node.run(&format!("env CNIMBLE_LOG=debug {line} || [ $? = 1 ]"));
        check(&(outcome.text() + &outcome.stderr), more);
        let line = format!("script -qec '{line}' /dev/null || [ $? = 1 ]");
        check(&cluster.node.sh(&line), more);
    }
    let run = cluster.start("");
    let failed = || run.status()["pods"].to_string().contains("owned");
    assert!(wait_until(PATIENCE, failed), "{:#}", run.status());
    check(&run.page("/pods").unwrap().1, "/pods");
    run.stop();
    check(&cluster.log(), "log");
}

const SECRET: &str = "geheim";

#[test]
fn no_secret_is_in_a_log_a_page_or_an_error() {
    need!("ip");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    let (server, web) = cluster.node.within(|| (ApiServer::start(), TextServer::start("")));
    let kubeconfig = server.kubeconfig(cluster.node.dir(), Some(SECRET));
    cluster.place("headers", &format!("Authorization: Bearer {SECRET}\n\nX-More: yes\n"));
    let line = format!(
        "--url '{}?token={SECRET}' --poll 1 --url-header 'X-Secret: {SECRET}' --url-header @{} \
         --kubeconfig {} --node-name n",
        web.url(),
        cluster.path("headers").display(),
        kubeconfig.display()
    );
    let run = cluster.start_with("CNIMBLE_LOG=trace", &line);
    let clean = |run: &Run<'_>| {
        for page in ["/pods", "/metrics", "/healthz"] {
            let (_, text) = run.page(page).unwrap_or_default();
            assert!(!text.contains(SECRET), "{page}: {text}");
        }
    };
    let told = |run: &Run<'_>, words: &str| {
        let has = || run.status()["problems"].to_string().contains(words);
        assert!(wait_until(PATIENCE, has), "{words}: {:#}\n{}", run.status(), cluster.log());
        clean(run);
    };
    assert!(wait_until(PATIENCE, || !web.requests().is_empty()));
    let headers = &web.requests()[0].headers;
    assert_eq!(headers["authorization"], format!("Bearer {SECRET}"));
    assert_eq!((headers["x-secret"].as_str(), headers["x-more"].as_str()), (SECRET, "yes"));
    // A refusal, a redirect, and an invalid answer.
    server.fail(Some(401));
    web.say(403, "", b"no");
    told(&run, "status 403");
    told(&run, "status 401");
    web.say(302, &format!("Location: ftp://x/?{SECRET}\r\n"), b"");
    told(&run, "bad redirection");
    web.say(200, "", b"{");
    told(&run, "EOF");
    // The file is read for each request.
    cluster.place("headers", &format!("Authorization: {SECRET}-two\n"));
    let rotated = || web.requests().iter().any(|of| of.headers["authorization"] == format!("{SECRET}-two"));
    assert!(wait_until(PATIENCE, rotated));
    cluster.place("headers", &format!("{SECRET}\n"));
    told(&run, "is not of the form NAME: VALUE");
    run.stop();
    // Sources that can't be started.
    let start = |more: &str| {
        let outcome = cluster.node.run(&format!("{} || true", cluster.line(more)));
        assert!(outcome.stderr.contains("cnimble: "), "{}", outcome.describe());
        outcome.stderr
    };
    let config = |user: &Value| {
        let config = json!({"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": format!("http://me:{SECRET}@k")}}], "users": [{"name": "u", "user": user}]});
        cluster.place("kubeconfig", &config.to_string());
        start(&format!("--kubeconfig {} --node-name n", kubeconfig.display()))
    };
    let errors = [
        start(&format!("--url 'http://me:{SECRET}@x/?{SECRET}'")),
        start(&format!("--url 'http://x/ ?{SECRET}'")),
        start(&format!("--url http://x/ --url-header {SECRET}")),
        start(&format!("--url http://x/ --url-header @{}", cluster.path("headers").display())),
        config(&json!({"token": SECRET})),
        config(&json!({"token": [SECRET]})),
        config(&json!({"client-key-data": SECRET, "client-certificate-data": SECRET})),
    ];
    for text in errors.iter().chain([&cluster.log()]) {
        assert!(!text.contains(SECRET), "{text}");
    }
}

#[test]
fn slow_clients_keep_nobody_from_the_pages() {
    need!("ip", "bash");
    let cluster = Cluster::new(&bridge("10.7.0.0/24"));
    cluster.put("web", &manifest("web"));
    let run = cluster.start("--listen 127.0.0.1:9908");
    let ready = || cluster.log().contains("pod default/web is ready");
    assert!(wait_until(PATIENCE, ready), "{}", cluster.log());
    // Two hundred clients never end their request or never read the answer, repeatedly. A regular client is answered
    // before any of them reaches its time limit.
    cluster.place(
        "slow",
        r#"
        slow() { exec {fd}<>/dev/tcp/127.0.0.1/9908 && printf "$1" >&$fd; }
        for number in $(seq 100); do slow 'GET /pods HTTP/1.1\r\nX: '; slow 'GET /pods HTTP/1.1\r\nHost: x\r\n\r\n'; done
        touch "$1"
        while :; do slow 'GET /p'; sleep 0.02; exec {fd}>&-; done 2>/dev/null
        "#,
    );
    cluster.place(
        "ask",
        r"exec 3<>/dev/tcp/127.0.0.1/9908; printf 'GET /healthz HTTP/1.0\r\n\r\n' >&3; timeout 8 cat <&3",
    );
    let path = |name: &str| cluster.path(name).display().to_string();
    let slow = cluster.node.sh(&format!("bash {} {} >/dev/null 2>&1 & echo $!", path("slow"), path("there")));
    assert!(wait_until(PATIENCE, || cluster.path("there").exists()));
    for _ in 0..20 {
        let text = cluster.node.run(&format!("bash {}", path("ask"))).text();
        assert!(text.starts_with("HTTP/1.0 200 OK"), "{text:?}\n{}", cluster.log());
    }
    let files = cluster.node.sh(&format!("ls /proc/{}/fd | wc -l", run.pid));
    assert!(files.parse::<u32>().unwrap() < 150, "{files} descriptors");
    cluster.node.sh(&format!("kill {slow}"));
    run.stop();
}
