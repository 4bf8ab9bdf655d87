//! Tests hostile API servers: endless or oversized answers, and control characters.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use cnimble_pod::source::{ApiSource, Sources};
use cnimble_tests::http::{ApiServer, scripted};

use super::api::api;
use super::{Listener, pod, run};

/// Returns a source at a server with these answers, by the number of the request.
fn source(dir: &std::path::Path, answer: impl Fn(usize) -> Vec<u8> + Send + Sync + 'static) -> Sources {
    let asked = Arc::new(AtomicUsize::new(0));
    let address = scripted(move |_| answer(asked.fetch_add(1, Ordering::Relaxed)));
    let config = json!({"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": format!("http://{address}")}}],
        "users": [{"name": "u", "user": {"token": "geheim"}}]});
    std::fs::write(dir.join("kubeconfig"), config.to_string()).unwrap();
    Sources { api: Some(ApiSource::new(dir.join("kubeconfig"), "n1")), ..Sources::default() }
}

fn page(items: &str, token: &str) -> Vec<u8> {
    let body = format!(
        r#"{{"kind":"PodList","metadata":{{"resourceVersion":"1","continue":"{token}"}},"items":[{items}]}}"#
    );
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
        .into_bytes()
}

fn small(name: &str) -> String {
    let mut pod = pod(name);
    (pod["metadata"]["uid"], pod["metadata"]["namespace"]) = (json!(name), json!("default"));
    pod.to_string()
}

#[test]
fn a_list_without_end_ends() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let same = source(dir.path(), |_| page("", "again"));
        Listener::start(same).wrong(&["a list of pods that never ends"]).await;
        let other = source(dir.path(), |number| page("", &format!("t{number}")));
        Listener::start(other).wrong(&["more than 1000 pages of pods"]).await;
        let many = source(dir.path(), |number| {
            let pods: Vec<String> = (0..500).map(|pod| small(&format!("p{number}-{pod}"))).collect();
            page(&pods.join(","), &format!("t{number}"))
        });
        let listener = Listener::start(many);
        listener.wrong(&["more than 20000 pods: what the server has told of is not taken"]).await;
        assert!(listener.pods().is_empty());
    });
}

#[test]
fn what_is_too_large_is_not_taken() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let large = source(dir.path(), |_| {
            let mut one = pod("a");
            one["metadata"]["annotations"] = json!({"a": "x".repeat(9 << 20)});
            page(&one.to_string(), "")
        });
        Listener::start(large).wrong(&["an item is larger than 8388608 bytes"]).await;
        // A line of a watch without an end.
        let server = ApiServer::start();
        let mut listener = Listener::start(api(&server, dir.path(), None));
        assert_eq!(listener.next().await, "Add api ");
        let mut one = pod("a");
        one["metadata"]["annotations"] = json!({"a": "x".repeat(9 << 20)});
        server.event(json!({"type": "ADDED", "object": one}));
        listener.wrong(&["the answer is larger than"]).await;
    });
}

/// The log and `/pods` are shown without further escaping.
#[test]
fn no_word_of_a_server_steers_a_terminal_or_tells_a_secret() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let refuse = |_| {
            let message = "no \u{1b}]0;owned\u{7}\u{202e}";
            let body = json!({"kind": "Status", "message": message}).to_string();
            format!("HTTP/1.1 403 X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
                .into_bytes()
        };
        let check = |conditions: &[cnimble_pod::source::Condition]| {
            for condition in conditions {
                let text = condition.error.to_string();
                let unseen = |char: char| char.is_control() || char == '\u{202e}';
                assert!(!text.contains(unseen), "{text:?}");
                assert!(!text.contains("geheim") && !text.contains("fieldSelector"), "{text}");
            }
        };
        check(&Listener::start(source(dir.path(), refuse)).wrong(&["status 403: no ]0;owned"]).await);
        let word = "\u{1b}[31m\u{202e}";
        let mut bad = pod("a");
        bad["metadata"]["uid"] = json!(word);
        let mut worse = pod(word);
        worse["metadata"]["annotations"] = json!({word: 1});
        let server = ApiServer::start();
        server.put_all([bad, worse, pod(&format!("{word}2"))]);
        let listener = Listener::start(api(&server, dir.path(), None));
        check(&listener.wrong(&["name", "name", "uid"].map(|_| "")).await);
        drop(listener);
        for (event, told) in [
            (json!({"type": word, "object": pod("a")}), "an event of type"),
            (json!({"type": "ERROR", "object": {"code": 500, "message": word}}), "[31m (code 500)"),
        ] {
            let server = ApiServer::start();
            let mut sources = api(&server, dir.path(), None);
            let source = sources.api.as_mut().unwrap();
            (source.backoff, source.max_backoff) = (super::LONG, super::LONG);
            let mut listener = Listener::start(sources);
            assert_eq!(listener.next().await, "Add api ");
            server.event(event);
            check(&listener.wrong(&[told]).await);
        }
    });
}
