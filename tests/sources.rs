//! Where pods come from: files that appear, change and turn bad; a URL; an API server that
//! forgets, refuses and cuts off. All on loopback and in directories of the tests' own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use cnimble::pod::source::{
    ApiSource, Condition, Directory, PodConfig, PodUpdate, SourceKind, Sources, StartError, UrlSource,
};
use cnimble_tests::http::{ApiServer, TextServer};
use cnimble_tests::{Background, LIMIT, PATIENCE, wait_until};
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;

/// Longer than anything may take on a busy machine.
const LONG: Duration = LIMIT;

struct Listener {
    config: PodConfig,
    updates: Receiver<PodUpdate>,
    seen: BTreeSet<SourceKind>,
}

impl Listener {
    fn start(sources: Sources) -> Self {
        let (config, updates) = PodConfig::start(sources).unwrap();
        Listener { config, updates, seen: BTreeSet::new() }
    }

    /// The next update, as `Add api default/a,default/b`.
    async fn next(&mut self) -> String {
        let update = tokio::time::timeout(LONG, self.updates.recv()).await.expect("no update").unwrap();
        self.seen.insert(update.source);
        let pods: Vec<String> = update.pods.iter().map(|pod| pod.id.name.clone()).collect();
        format!("{:?} {} {}", update.op, update.source, pods.join(","))
    }

    /// Waits until the conditions are these: each is a part of one's text.
    async fn wrong(&self, texts: &[&str]) -> Vec<Condition> {
        let mut conditions = self.config.conditions();
        let fit = |all: &Vec<Condition>| {
            all.len() == texts.len()
                && all.iter().zip(texts).all(|(one, text)| one.error.to_string().contains(text))
        };
        match tokio::time::timeout(LONG, conditions.wait_for(fit)).await {
            Ok(all) => all.unwrap().clone(),
            Err(_) => panic!("expected {texts:?}, there are {:#?}", *self.config.conditions().borrow()),
        }
    }

    fn ready(&self) -> bool {
        self.config.seen_all_sources(&self.seen)
    }

    fn pods(&self) -> Vec<String> {
        self.config.pods().iter().map(|pod| pod.id.name.clone()).collect()
    }
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"nodeName": "n1", "containers": [{"name": "c"}]}})
}

fn write(dir: &Path, name: &str, text: impl AsRef<[u8]>) {
    std::fs::write(dir.join(name), text).unwrap();
}

fn directory(dir: &Path) -> Sources {
    Sources { directory: Some(Directory::new(dir)), ..Sources::default() }
}

fn url(server: &TextServer) -> Sources {
    let source = UrlSource { period: Duration::from_millis(20), ..UrlSource::new(server.url()) };
    Sources { url: Some(source), ..Sources::default() }
}

fn api(server: &ApiServer, dir: &Path, token: Option<&str>) -> Sources {
    let source = ApiSource {
        backoff: Duration::from_millis(20),
        max_backoff: Duration::from_millis(100),
        ..ApiSource::new(server.kubeconfig(dir, token), "n1")
    };
    Sources { api: Some(source), ..Sources::default() }
}

#[test]
fn a_directory_is_followed() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        write(dir, "b.json", pod("b").to_string());
        write(dir, ".hidden", pod("hidden").to_string());
        std::fs::create_dir(dir.join("sub")).unwrap();
        let mut listener = Listener::start(directory(dir));
        assert_eq!(listener.next().await, "Add file b");
        assert!(listener.ready());
        listener.wrong(&["sub is not a regular file"]).await;

        write(
            dir,
            "a.yaml",
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a, uid: fixed}\nspec: {containers: []}\n",
        );
        assert_eq!(listener.next().await, "Add file a");
        write(
            dir,
            "a.yaml",
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a, uid: fixed}\nspec: {hostNetwork: true}\n",
        );
        assert_eq!(listener.next().await, "Update file a");
        // Written elsewhere and renamed, as it should be.
        write(dir, ".new", pod("b").to_string().replace("n1", "n2"));
        std::fs::rename(dir.join(".new"), dir.join("b.json")).unwrap();
        assert_eq!(listener.next().await, "Remove file b");
        assert_eq!(listener.next().await, "Add file b");
        std::fs::remove_file(dir.join("a.yaml")).unwrap();
        assert_eq!(listener.next().await, "Remove file a");
    });
}

#[test]
fn bad_files_are_conditions_and_keep_what_they_had() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        write(dir, "1.yaml", pod("good").to_string());
        write(dir, "2.yaml", pod("turns").to_string());
        write(dir, "3.yaml", pod("Bad").to_string());
        write(dir, "4.yaml", pod("good").to_string());
        write(dir, "5.yaml", vec![b' '; (10 << 20) + 1]);
        write(dir, "6.json", &pod("cut").to_string()[..40]);
        let mut listener = Listener::start(directory(dir));
        assert_eq!(listener.next().await, "Add file good,turns");
        let first = [
            "3.yaml:1:",
            "5.yaml: it is larger than",
            "6.json:1:40: EOF",
            "4.yaml: pod default/good is ignored: ",
        ];
        let conditions = listener.wrong(&first).await;
        let since = conditions[0].since;
        assert_eq!(conditions[0].pod.as_ref().unwrap().to_string(), "default/Bad");

        write(dir, "2.yaml", "kind: [");
        let more = ["2.yaml:", first[0], first[1], first[2], first[3]];
        assert_eq!(listener.wrong(&more).await[1].since, since, "what was known keeps its time");
        assert_eq!(listener.pods(), ["good", "turns"]);
        // The second of two takes over when the first goes; the mended are there again.
        std::fs::remove_file(dir.join("1.yaml")).unwrap();
        assert_eq!(listener.next().await, "Remove file good");
        assert_eq!(listener.next().await, "Add file good");
        for name in ["2.yaml", "3.yaml", "5.yaml", "6.json"] {
            std::fs::remove_file(dir.join(name)).unwrap();
        }
        assert_eq!(listener.next().await, "Remove file turns");
        listener.wrong(&[]).await;
    });
}

#[test]
fn a_directory_that_comes_later_counts_from_then() {
    run(async {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("pods");
        let mut sources = directory(&dir);
        sources.directory.as_mut().unwrap().period = Duration::from_millis(20);
        let mut listener = Listener::start(sources);
        assert_eq!(listener.next().await, "Add file ");
        assert!(listener.ready());
        std::fs::create_dir(&dir).unwrap();
        write(&dir, "a", pod("a").to_string());
        assert_eq!(listener.next().await, "Add file a");
    });
}

#[test]
fn a_url_is_followed_and_its_failures_change_nothing() {
    run(async {
        let list = |names: &[&str]| {
            let items: Vec<Value> = names.iter().map(|name| pod(name)).collect();
            json!({"apiVersion": "v1", "kind": "PodList", "items": items}).to_string()
        };
        let server = TextServer::start("");
        server.say(200, "ETag: \"1\"\r\n", list(&["a", "b"]).as_bytes());
        let mut sources = url(&server);
        sources.url.as_mut().unwrap().headers = vec!["Manifest: yes".to_owned()];
        let mut listener = Listener::start(sources);
        assert_eq!(listener.next().await, "Add http a,b");
        assert!(listener.ready());
        assert_eq!(server.requests()[0].headers["manifest"], "yes");
        assert_eq!(server.requests()[0].headers.get("if-none-match"), None);
        let tagged = || server.requests().iter().any(|request| request.headers.contains_key("if-none-match"));
        while !tagged() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server.say(500, "", b"out of order");
        listener.wrong(&["status 500: out of order"]).await;
        server.say(200, "", b"<html>");
        listener.wrong(&["expected a Pod"]).await;
        server.say(200, "", &vec![b'x'; (10 << 20) + 1]);
        listener.wrong(&["larger than 10485760 bytes"]).await;
        server.say(302, "Location: file:///etc/shadow\r\n", b"");
        listener.wrong(&["bad redirection"]).await;
        server.say(302, "Location: /again\r\n", b"");
        listener.wrong(&["bad redirection"]).await;
        server.say(200, "", list(&["a", "B", "c"]).as_bytes());
        listener.wrong(&["items[1].metadata.name: \"B\""]).await;
        // b may be the one that is wrong now: it stays.
        assert_eq!(listener.next().await, "Add http c");
        assert_eq!(listener.pods(), ["a", "b", "c"]);
        server.say(200, "", list(&["c"]).as_bytes());
        assert_eq!(listener.next().await, "Remove http a,b");
        listener.wrong(&[]).await;
        let elsewhere = TextServer::start(&pod("d").to_string());
        server.say(307, &format!("Location: {}\r\n", elsewhere.url()), b"");
        assert_eq!(listener.next().await, "Remove http c");
        assert_eq!(listener.next().await, "Add http d");
        assert_eq!(elsewhere.requests()[0].headers.get("manifest"), None, "headers are for one host");
        elsewhere.say(200, "", b"");
        assert_eq!(listener.next().await, "Remove http d");
    });
}

/// A port of loopback that nobody listens on, and nobody can as long as the socket is there.
fn taken_port() -> (OwnedFd, u16) {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, getsockname, socket};
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(socket.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).unwrap();
    let port = getsockname::<SockaddrIn>(socket.as_raw_fd()).unwrap().port();
    (socket, port)
}

#[test]
fn a_source_that_was_never_read_holds_the_clean_up_back() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        // Nobody listens on a port that is taken and not listened on.
        let (_taken, port) = taken_port();
        let mut sources = directory(dir.path());
        sources.url = Some(UrlSource::new(format!("http://127.0.0.1:{port}/")));
        let mut listener = Listener::start(sources);
        assert_eq!(listener.next().await, "Add file ");
        listener.wrong(&["onnection refused"]).await;
        assert!(!listener.ready());
    });
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
        let mut changed = pod("d");
        changed["metadata"]["labels"] = json!({"x": "y"});
        server.put(changed.clone());
        assert_eq!(listener.next().await, "Update api d");
        changed["status"] = json!({"phase": "Running"});
        server.put(changed.clone());
        assert_eq!(listener.next().await, "Reconcile api d");
        changed["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        server.put(changed);
        assert_eq!(listener.next().await, "Delete api d");
        server.delete("default/d");
        assert_eq!(listener.next().await, "Remove api d");

        // Cut off: it goes on from the last version, a bookmark's, without listing again.
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
        // Forgotten: it lists again, and finds out what it missed.
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
        // A pod that makes no sense is its own affair.
        let mut bad = pod("bad");
        bad["spec"]["containers"][0]["ports"] = json!([{"containerPort": 0}]);
        server.put(bad);
        let conditions = listener.wrong(&["ports[0].containerPort: 0 is not between"]).await;
        assert_eq!(conditions[0].pod.as_ref().unwrap().name, "bad");
        server.put(pod("c"));
        assert_eq!(listener.next().await, "Add api c");
        server.delete("default/bad");
        listener.wrong(&[]).await;
        // An event that nobody knows: complained of, and the watch begins again.
        server.event(
            json!({"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "no storage"}}),
        );
        server.put(pod("d"));
        assert_eq!(listener.next().await, "Add api d");
    });
}

#[test]
fn the_first_source_keeps_a_name_and_reread_reads_at_once() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let server = TextServer::start(&pod("a").to_string());
        let mut sources = url(&server);
        sources.url.as_mut().unwrap().period = Duration::from_secs(3600);
        let mut listener = Listener::start(sources);
        assert_eq!(listener.next().await, "Add http a");
        server.say(200, "", pod("b").to_string().as_bytes());
        listener.config.reread();
        assert_eq!(listener.next().await, "Remove http a");
        assert_eq!(listener.next().await, "Add http b");
        drop(listener);

        write(dir.path(), "b", pod("b").to_string());
        let mut both = url(&server);
        both.directory = Some(Directory::new(dir.path()));
        let mut listener = Listener::start(both);
        while !listener.ready() {
            listener.next().await;
        }
        listener.wrong(&["pod default/b is ignored"]).await;
        assert_eq!(listener.pods(), ["b"]);
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

/// A server certificate for 127.0.0.1 with a CA of its own, and a client's, made by openssl.
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

/// openssl's server with these certificates and files, and its port.
fn tls_server(dir: &Path) -> (Background, u16) {
    loop {
        // It can't choose a port and tell; somebody else may take this one in between.
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
        // openssl's server hands out files, raw with -HTTP: here the answer to the list. The
        // watch it can't do, which is a condition of its own.
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
        // The client's certificate is none of an authority's that signed the server's.
        start(json!({"certificate-authority": "client.pem"}), us).wrong(&["ertificate"]).await;
        start(ca, json!({})).wrong(&["GET https://127.0.0.1"]).await;
    });
}
