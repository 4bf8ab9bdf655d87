//! Tests an API server behind TLS. Only the authorities of the kubeconfig are trusted, and a refusal is explained. All
//! is on loopback, with the test's own certificates.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use cnimble_pod::source::{ApiSource, PodConfig, Sources, StartError};
use cnimble_tests::http::ApiServer;
use cnimble_tests::need;
use cnimble_tests::tls::{Authority, base64, door};

/// A time limit that is sufficient on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// Starts an API server with a pod.
fn server() -> ApiServer {
    let server = ApiServer::start();
    server.put(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {"nodeName": "n1", "containers": [{"name": "c"}]}}));
    server
}

/// Returns the source of a kubeconfig with this cluster and this user.
fn source(dir: &Path, address: SocketAddr, mut cluster: Value, user: &Value) -> Sources {
    cluster["server"] = json!(format!("https://{address}"));
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": cluster}],
        "users": [{"name": "u", "user": user}]});
    let path = dir.join("kubeconfig");
    std::fs::write(&path, config.to_string()).unwrap();
    let api = ApiSource {
        backoff: Duration::from_millis(50),
        max_backoff: Duration::from_millis(200),
        ..ApiSource::new(path, "n1")
    };
    Sources { api: Some(api), ..Sources::default() }
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

/// Asserts that the pod is received, and a later one by the watch.
async fn is_followed(sources: Sources, server: &ApiServer) {
    let (config, mut updates) = PodConfig::start(sources).unwrap();
    let next = tokio::time::timeout(LONG, updates.recv()).await;
    let update = next.unwrap_or_else(|_| panic!("{:?}", *config.conditions().borrow())).unwrap();
    assert_eq!(update.pods[0].id.name, "web");
    server.put(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "late"},
        "spec": {"nodeName": "n1", "containers": [{"name": "c"}]}}));
    let update = tokio::time::timeout(LONG, updates.recv()).await.expect("no update").unwrap();
    assert_eq!(update.pods[0].id.name, "late");
    server.delete("default/late");
}

/// Asserts that no pod is received, for this reason, and that the server got no request.
async fn is_refused(sources: Sources, server: &ApiServer, why: &str) {
    let (config, mut updates) = PodConfig::start(sources).unwrap();
    let mut conditions = config.conditions();
    let told =
        |all: &Vec<cnimble_pod::source::Condition>| all.iter().any(|one| one.error.to_string().contains(why));
    if tokio::time::timeout(LONG, conditions.wait_for(told)).await.is_err() {
        panic!("expected {why}: {:?}", *config.conditions().borrow());
    }
    let error = config.conditions().borrow()[0].error.to_string();
    assert!(error.starts_with("GET https://127.0.0.1:"), "{error}");
    assert!(updates.try_recv().is_err());
    assert_eq!(server.requests().len(), 0);
}

#[test]
fn the_kubeconfigs_authority_is_trusted_and_no_other() {
    need!("openssl");
    run(async {
        let (ours, other) = (Authority::new(), Authority::new());
        let server = server();
        let address = door(server.address(), &ours.issue("IP:127.0.0.1"), None);
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let with = |cluster: Value| source(dir, address, cluster, &json!({}));

        let wrong = json!({"certificate-authority": other.certificate()});
        is_refused(with(wrong), &server, "invalid peer certificate: UnknownIssuer").await;
        // The system's authorities aren't trusted either.
        is_refused(with(json!({})), &server, "invalid peer certificate: UnknownIssuer").await;

        // A file beside the kubeconfig, the same as data, and two authorities in one file.
        std::fs::copy(ours.certificate(), dir.join("ca.pem")).unwrap();
        is_followed(with(json!({"certificate-authority": "ca.pem"})), &server).await;
        is_followed(with(json!({"certificate-authority-data": base64(&ours.certificate())})), &server).await;
        let both =
            [other.certificate(), ours.certificate()].map(|path| std::fs::read_to_string(path).unwrap());
        std::fs::write(dir.join("both.pem"), both.concat()).unwrap();
        is_followed(with(json!({"certificate-authority": "both.pem"})), &server).await;
        is_followed(with(json!({"insecure-skip-tls-verify": true})), &server).await;

        // A file without a certificate is reported at once.
        std::fs::write(dir.join("none.pem"), "hello\n").unwrap();
        match PodConfig::start(with(json!({"certificate-authority": "none.pem"}))) {
            Err(err @ StartError::Tls { .. }) => {
                assert_eq!(err.to_string(), "the certificate authority: there is no certificate in it");
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_certificate_has_to_be_for_this_server() {
    need!("openssl");
    run(async {
        let authority = Authority::new();
        let server = server();
        let address = door(server.address(), &authority.issue("DNS:api.example"), None);
        let dir = tempfile::tempdir().unwrap();
        let ca = authority.certificate();
        let named = |name: Option<&str>| {
            let cluster = json!({"certificate-authority": ca, "tls-server-name": name});
            source(dir.path(), address, cluster, &json!({}))
        };
        is_refused(named(None), &server, "certificate not valid for name \"127.0.0.1\"").await;
        is_refused(named(Some("other.example")), &server, "not valid for name \"other.example\"").await;
        is_followed(named(Some("api.example")), &server).await;
    });
}

#[test]
fn a_client_certificate_is_shown_to_a_server_that_wants_one() {
    need!("openssl");
    run(async {
        let (authority, other) = (Authority::new(), Authority::new());
        let server = server();
        let address = door(server.address(), &authority.issue("IP:127.0.0.1"), Some(&authority));
        let dir = tempfile::tempdir().unwrap();
        let cluster = json!({"certificate-authority": authority.certificate()});
        let with = |user: Value| source(dir.path(), address, cluster.clone(), &user);
        is_refused(with(json!({})), &server, "CertificateRequired").await;
        let stranger = other.issue("DNS:node");
        let user = json!({"client-certificate": stranger.certificate, "client-key": stranger.key});
        is_refused(with(user), &server, "received fatal alert").await;
        let node = authority.issue("DNS:node");
        let user = json!({"client-certificate": node.certificate, "client-key": node.key});
        is_followed(with(user), &server).await;
        let data = json!({"client-certificate-data": base64(&node.certificate), "client-key-data": base64(&node.key)});
        is_followed(with(data), &server).await;

        // A key of another certificate is reported at once, with both files or keys of the kubeconfig.
        let (certificate, key) = (&node.certificate, &stranger.key);
        let kubeconfig = dir.path().join("kubeconfig");
        let of_key = |name: &str| format!("{name} of {}", kubeconfig.display());
        for (user, key, certificate) in [
            (
                json!({"client-certificate": certificate, "client-key": key}),
                key.display().to_string(),
                certificate.display().to_string(),
            ),
            (
                json!({"client-certificate-data": base64(certificate), "client-key-data": base64(key)}),
                of_key("client-key-data"),
                of_key("client-certificate-data"),
            ),
        ] {
            let err = PodConfig::start(with(user)).err().unwrap().to_string();
            let why = format!("the key in {key} does not belong to the certificate in {certificate}");
            assert_eq!(err, format!("the client's certificate: {why}"));
        }
    });
}
