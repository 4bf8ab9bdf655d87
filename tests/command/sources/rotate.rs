//! Credentials that are replaced while we run, and a server that forgets.

use std::time::Duration;

use serde_json::json;

use cnimble_tests::http::ApiServer;
use cnimble_tests::need;
use cnimble_tests::tls::{Authority, door};

use super::api::api;
use super::{Listener, pod, run};

/// Longer than any test.
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
        // It is rotated, and the watch ends as it does every few minutes.
        server.require("second");
        server.kubeconfig(dir.path(), Some("second"));
        server.disconnect();
        server.put(pod("b"));
        assert_eq!(listener.next().await, "Add api b");
        // A file that is no kubeconfig for a moment costs nothing.
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
        // As long as nothing is a failure, nothing waits.
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
