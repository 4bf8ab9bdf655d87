//! Tests an API server as a source: lists, watches and certificates.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use cnimble_pod::source::{ApiSource, PodConfig, Sources, StartError, UrlSource};
use cnimble_tests::http::ApiServer;
use cnimble_tests::{Background, PATIENCE, wait_until};

use super::{Listener, pod, run, write};

pub(super) fn api(server: &ApiServer, dir: &Path, token: Option<&str>) -> Sources {
    let source = ApiSource {
        backoff: Duration::from_millis(20),
        max_backoff: Duration::from_millis(100),
        ..ApiSource::new(server.kubeconfig(dir, token), "n1")
    };
    Sources { api: Some(source), ..Sources::default() }
}

#[test]
fn an_api_server_is_listed_and_watched() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let server = ApiServer::start();
        for name in ["a", "b", "c"] {
            server.put(pod(name));
        }
        let mut other = pod("elsewhere");
        other["spec"]["nodeName"] = json!("n2");
        server.put(other);
        let mut mirror = pod("mirror");
        mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
        server.put(mirror);
        let mut listener = Listener::start(api(&server, dir.path(), None));
        assert_eq!(listener.next().await, "Add api a,b,c");
        assert!(listener.ready());

        server.put(pod("d"));
        assert_eq!(listener.next().await, "Add api d");
        // Only changes that concern the network count.
        let mut changed = pod("d");
        changed["metadata"]["labels"] = json!({"x": "y"});
        server.put(changed.clone());
        changed["status"] = json!({"phase": "Running"});
        server.put(changed.clone());
        changed["spec"]["hostname"] = json!("other");
        server.put(changed.clone());
        assert_eq!(listener.next().await, "Update api d");
        changed["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        server.put(changed);
        assert_eq!(listener.next().await, "Delete api d");
        server.delete("default/d");
        assert_eq!(listener.next().await, "Remove api d");

        // After a disconnect the watch continues from the version of the last bookmark, without another list.
        server.bookmark();
        server.put(pod("e"));
        assert_eq!(listener.next().await, "Add api e");
        server.disconnect();
        server.put(pod("f"));
        assert_eq!(listener.next().await, "Add api f");
        let lists = |server: &ApiServer| {
            server
                .requests()
                .iter()
                .filter(|request| request.query("watch").is_none() && request.query("continue").is_none())
                .count()
        };
        assert_eq!(lists(&server), 1);
        // If the server has dropped that version, the source lists again and finds missed changes.
        server.compact();
        server.delete("default/a");
        assert_eq!(listener.next().await, "Remove api a");
        while lists(&server) < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server.put(pod("g"));
        assert_eq!(listener.next().await, "Add api g");
        listener.wrong(&[]).await;
    });
}

#[test]
fn what_an_api_server_says_wrong_is_a_condition() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let server = ApiServer::start();
        server.put(pod("a"));
        server.require("secret");
        {
            let listener = Listener::start(api(&server, dir.path(), Some("wrong")));
            listener.wrong(&["status 401: it says Unauthorized"]).await;
        }
        let mut listener = Listener::start(api(&server, dir.path(), Some("secret")));
        assert_eq!(listener.next().await, "Add api a");
        server.fail(Some(500));
        listener.wrong(&["status 500: it says InternalError"]).await;
        assert_eq!(listener.pods(), ["a"]);
        server.fail(None);
        listener.wrong(&[]).await;
        server.put(pod("b"));
        assert_eq!(listener.next().await, "Add api b");
        // An invalid pod affects no other pod.
        let mut bad = pod("bad");
        bad["spec"]["containers"][0]["ports"] = json!([{"containerPort": 0}]);
        server.put(bad);
        let conditions = listener.wrong(&["ports[0].containerPort: 0 is not between"]).await;
        assert_eq!(conditions[0].pod.as_ref().unwrap().name, "bad");
        server.put(pod("c"));
        assert_eq!(listener.next().await, "Add api c");
        server.delete("default/bad");
        listener.wrong(&[]).await;
        // An unknown event is reported, and the watch begins again.
        server.event(
            json!({"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "no storage"}}),
        );
        server.put(pod("d"));
        assert_eq!(listener.next().await, "Add api d");
    });
}

#[test]
fn what_can_never_work_is_refused_at_the_start() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let start = |sources| PodConfig::start(sources).map(|_| ()).unwrap_err();
        let err = start(Sources { url: Some(UrlSource::new("nonsense")), ..Sources::default() });
        assert!(matches!(err, StartError::Url { .. }), "{err}");
        let api =
            |path: &Path, node: &str| Sources { api: Some(ApiSource::new(path, node)), ..Sources::default() };
        let err = start(api(&dir.path().join("none"), "n"));
        assert!(err.to_string().contains("No such file"), "{err}");
        write(dir.path(), "config", "kind: Config\n");
        assert!(matches!(start(api(&dir.path().join("config"), "")), StartError::NoNode));
        let err = start(api(&dir.path().join("config"), "n"));
        assert!(err.to_string().ends_with("config: it has no current-context"), "{err}");
    });
}

/// Creates a server certificate for 127.0.0.1 with its own CA, and a client certificate, using openssl.
fn certificates(dir: &Path) {
    let script = "set -e
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=ca -keyout ca.key -out ca.pem \
            -addext basicConstraints=critical,CA:TRUE
        for who in server client; do
            openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=$who -keyout $who.key -out $who.csr
            printf 'subjectAltName=IP:127.0.0.1,DNS:kubernetes' >$who.ext
            openssl x509 -req -in $who.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile $who.ext -out $who.pem
        done";
    let out = std::process::Command::new("sh").args(["-c", script]).current_dir(dir).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// Starts openssl's server with these certificates and files. Returns it with its port.
fn tls_server(dir: &Path) -> (Background, u16) {
    loop {
        // The server can't choose a port and report it. Another process may take this one in between.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = std::process::Command::new("openssl");
        command
            .args(["s_server", "-accept", &format!("127.0.0.1:{port}")])
            .args(["-cert", "server.pem", "-key", "server.key", "-CAfile", "ca.pem"])
            .args(["-Verify", "1", "-verify_return_error", "-quiet", "-HTTP"])
            .current_dir(dir)
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());
        let mut server = Background::start(&mut command);
        let there = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
        assert!(wait_until(PATIENCE, || there() || !server.running()), "openssl s_server does nothing");
        if server.running() {
            return (server, port);
        }
    }
}

#[test]
fn tls_trusts_whom_the_kubeconfig_says() {
    if std::process::Command::new("openssl").arg("version").output().is_err() {
        cnimble_tests::skip!("openssl is missing");
    }
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        certificates(dir);
        // openssl's server sends files, raw with -HTTP; here the answer to the list. It can't serve a watch, which
        // causes a separate condition.
        let pods = dir.join("api/v1");
        std::fs::create_dir_all(&pods).unwrap();
        let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": [pod("a")]});
        let mut list: Value = list;
        list["items"][0]["metadata"]["uid"] = json!("u");
        list["items"][0]["metadata"]["namespace"] = json!("default");
        let body = list.to_string();
        let answer =
            format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
        write(&pods, "pods?fieldSelector=spec.nodeName%3Dn1&limit=500", answer);
        let (_server, port) = tls_server(dir);
        let start = |cluster: Value, user: Value| {
            let mut cluster = cluster;
            cluster["server"] = json!(format!("https://127.0.0.1:{port}"));
            let config = json!({"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                "clusters": [{"name": "k", "cluster": cluster}], "users": [{"name": "u", "user": user}]});
            write(dir, "kubeconfig", config.to_string());
            let backoff = Duration::from_millis(100);
            let source = ApiSource { backoff, ..ApiSource::new(dir.join("kubeconfig"), "n1") };
            Listener::start(Sources { api: Some(source), ..Sources::default() })
        };
        let us = json!({"client-certificate": "client.pem", "client-key": "client.key"});
        let ca = json!({"certificate-authority": "ca.pem"});
        let mut good = start(ca.clone(), us.clone());
        assert_eq!(good.next().await, "Add api a");
        drop(good);
        let mut named =
            start(json!({"certificate-authority": "ca.pem", "tls-server-name": "kubernetes"}), us.clone());
        assert_eq!(named.next().await, "Add api a");
        drop(named);
        let mut insecure = start(json!({"insecure-skip-tls-verify": true}), us.clone());
        assert_eq!(insecure.next().await, "Add api a");
        drop(insecure);
        let other = start(json!({"certificate-authority": "ca.pem", "tls-server-name": "other"}), us.clone());
        other.wrong(&["not valid for name"]).await;
        drop(other);
        // The client trusts another authority than the one that signed the server's certificate.
        start(json!({"certificate-authority": "client.pem"}), us).wrong(&["ertificate"]).await;
        start(ca, json!({})).wrong(&["GET https://127.0.0.1"]).await;
    });
}
