//! Tests credentials that are replaced at run time, and a server that drops versions.

use std::time::Duration;

use serde_json::json;

use cnimble_tests::http::ApiServer;
use cnimble_tests::tls::{Authority, door};
use cnimble_tests::{need, script};

use super::api::api;
use super::{Listener, pod, run};

/// A duration longer than any test.
const NEVER: Duration = Duration::from_secs(3600);

#[test]
fn a_token_that_was_mended_in_the_kubeconfig_is_used() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let server = ApiServer::start();
        server.put(pod("a"));
        server.require("first");
        let mut listener = Listener::start(api(&server, dir.path(), Some("wrong")));
        listener.wrong(&["status 401: it says Unauthorized"]).await;
        server.kubeconfig(dir.path(), Some("first"));
        assert_eq!(listener.next().await, "Add api a");
        listener.wrong(&[]).await;
        // The token is replaced, and the watch ends, as it does every few minutes.
        server.require("second");
        server.kubeconfig(dir.path(), Some("second"));
        server.disconnect();
        server.put(pod("b"));
        assert_eq!(listener.next().await, "Add api b");
        // A temporarily invalid kubeconfig has no effect.
        std::fs::write(dir.path().join("kubeconfig"), "{").unwrap();
        server.disconnect();
        listener.wrong(&["/kubeconfig: "]).await;
        assert_eq!(listener.pods(), ["a", "b"]);
        server.kubeconfig(dir.path(), Some("second"));
        listener.wrong(&[]).await;
    });
}

#[test]
fn what_was_mended_is_read_at_once_when_it_is_asked_for() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let server = ApiServer::start();
        server.put(pod("a"));
        server.require("right");
        let mut sources = api(&server, dir.path(), Some("wrong"));
        let source = sources.api.as_mut().unwrap();
        (source.backoff, source.max_backoff) = (NEVER, NEVER);
        let mut listener = Listener::start(sources);
        listener.wrong(&["status 401"]).await;
        server.kubeconfig(dir.path(), Some("right"));
        listener.config.reread();
        assert_eq!(listener.next().await, "Add api a");
    });
}

#[test]
fn a_client_certificate_that_was_replaced_is_shown() {
    need!("openssl");
    run(async {
        let (authority, other) = (Authority::new(), Authority::new());
        let server = ApiServer::start();
        server.put(pod("a"));
        let address = door(server.address(), &authority.issue("IP:127.0.0.1"), Some(&authority));
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let (old, new) = (other.issue("DNS:node"), authority.issue("DNS:node"));
        let place = |identity: &cnimble_tests::tls::Identity| {
            std::fs::copy(&identity.certificate, dir.join("client.pem")).unwrap();
            std::fs::copy(&identity.key, dir.join("client.key")).unwrap();
        };
        place(&old);
        let config = json!({"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": format!("https://{address}"), "certificate-authority": authority.certificate()}}],
            "users": [{"name": "u", "user": {"client-certificate": "client.pem", "client-key": "client.key"}}]});
        let mut sources = api(&server, dir, None);
        std::fs::write(dir.join("kubeconfig"), config.to_string()).unwrap();
        sources.api.as_mut().unwrap().max_backoff = Duration::from_millis(200);
        let mut listener = Listener::start(sources);
        listener.wrong(&["received fatal alert"]).await;
        place(&new);
        assert_eq!(listener.next().await, "Add api a");
    });
}

#[test]
fn a_server_that_has_forgotten_is_listed_again_at_once() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let server = ApiServer::start();
        server.put(pod("a"));
        let mut sources = api(&server, dir.path(), None);
        let source = sources.api.as_mut().unwrap();
        (source.backoff, source.max_backoff) = (Duration::from_millis(1), Duration::from_millis(1));
        let mut listener = Listener::start(sources.clone());
        assert_eq!(listener.next().await, "Add api a");
        drop(listener);
        // Without a failure there is no backoff.
        let source = sources.api.as_mut().unwrap();
        (source.backoff, source.max_backoff) = (NEVER, NEVER);
        listener = Listener::start(sources);
        assert_eq!(listener.next().await, "Add api a");
        server.forget();
        server.put(pod("b"));
        assert_eq!(listener.next().await, "Add api b");
        listener.wrong(&[]).await;
    });
}

/// A program that answers with the token in a file beside it, and counts its calls.
const GIVER: &str = r#"#!/bin/sh
dir=$(dirname "$0")
echo x >>"$dir/asked"
[ "$WHO" = me ] && [ "$1" = get ] && echo "$KUBERNETES_EXEC_INFO" | grep -q '"interactive":false' || exit 1
echo "{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{\"token\":\"$(cat "$dir/given")\"$(cat "$dir/more")}}"
"#;

#[test]
fn a_program_gives_tokens_and_is_asked_again_when_they_are_refused_or_expire() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let asked = || std::fs::read_to_string(dir.path().join("asked")).unwrap_or_default().lines().count();
        script(&dir.path().join("give"), GIVER);
        file("given", "first");
        file("more", "");
        let server = ApiServer::start();
        server.put(pod("a"));
        server.require("first");
        let sources = api(&server, dir.path(), None);
        let config = json!({"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": format!("http://{}", server.address())}}],
            "users": [{"name": "u", "user": {"exec": {"apiVersion": "client.authentication.k8s.io/v1",
                "command": "./give", "args": ["get"], "env": [{"name": "WHO", "value": "me"}],
                "interactiveMode": "Never"}}}]});
        file("kubeconfig", &config.to_string());
        let mut listener = Listener::start(sources);
        assert_eq!(listener.next().await, "Add api a");
        // Its token is reused until the server refuses it.
        server.put(pod("b"));
        assert_eq!(listener.next().await, "Add api b");
        assert_eq!(asked(), 1);
        file("given", "second");
        server.require("second");
        server.disconnect();
        server.put(pod("c"));
        assert_eq!(listener.next().await, "Add api c");
        assert_eq!(asked(), 2);
        // An expired token isn't used.
        file("given", "third");
        file("more", r#","expirationTimestamp":"2020-01-01T00:00:00Z""#);
        server.require("third");
        server.disconnect();
        server.put(pod("d"));
        assert_eq!(listener.next().await, "Add api d");
        let before = asked();
        server.disconnect();
        server.put(pod("e"));
        assert_eq!(listener.next().await, "Add api e");
        assert!(asked() > before);
        // A failing program is reported without its output.
        file("give", "#!/bin/sh\necho third; exit 7\n");
        server.disconnect();
        let told = listener.wrong(&["give failed (exit status: 7)"]).await;
        assert!(!told[0].error.to_string().contains("third"));
        assert_eq!(listener.pods(), ["a", "b", "c", "d", "e"]);
    });
}
