use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio::net::UnixListener;

use crate::{Client, CriError, Dns, PodConfig, PortMapping, Protocol, answer, wire};

/// The ID in the recorded answers.
const ID: &str = include_str!("recorded/id");

#[test]
fn what_containerd_has_sent_is_read() {
    let version = wire::VersionResponse::decode(&include_bytes!("recorded/Version.bin")[..]).unwrap();
    assert_eq!((&*version.runtime_name, &*version.runtime_api_version), ("containerd", "v1"));

    let list =
        wire::ListPodSandboxResponse::decode(&include_bytes!("recorded/ListPodSandbox.bin")[..]).unwrap();
    let list = answer::sandboxes(&list).unwrap();
    let [web] = list.as_slice() else { panic!("{list:?}") };
    assert_eq!((web.pod().as_str(), &*web.uid, web.attempt), ("default/web", "uid-web", 1));
    assert_eq!((web.id.as_str(), web.state()), (ID.trim(), "Ready"));
    assert!(web.created > 1_700_000_000, "{web:?}");

    let status = include_bytes!("recorded/PodSandboxStatus.bin");
    let status = answer::sandbox(wire::PodSandboxStatusResponse::decode(&status[..]).unwrap()).unwrap();
    assert_eq!(status.sandbox, *web);
    assert_eq!(status.ips, ["10.88.0.2".parse::<std::net::IpAddr>().unwrap()]);
    assert!(!status.host_network);
    let netns = status.netns.unwrap();
    assert!(netns.starts_with("/var/run/netns") && status.pid.is_some(), "{netns:?}");

    let status = wire::StatusResponse::decode(&include_bytes!("recorded/Status.bin")[..]).unwrap();
    let status = answer::status(status);
    let holds: Vec<_> = status.conditions.iter().map(|of| (of.kind.as_str(), of.holds)).collect();
    assert_eq!(holds, [("RuntimeReady", true), ("NetworkReady", true)]);
    let cni = status.cni.unwrap();
    assert_eq!(cni.conf_dir.as_deref(), Some(Path::new("/etc/cni/net.d")));
    assert_eq!(cni.plugin_dirs, [PathBuf::from("/opt/cni/bin")]);
    let [pods] = cni.networks.as_slice() else { panic!("{cni:?}") };
    assert_eq!((&*pods.name, &*pods.version, &*pods.ifname), ("pods", "1.0.0", "eth0"));
    assert_eq!(pods.plugins, ["bridge", "portmap"]);
    assert_eq!((cni.load_error, cni.conf_template), (None, None));
}

/// The bytes are those of the field numbers in CRI's definition, written down one by one.
#[test]
fn a_pod_goes_over_the_wire_by_cris_field_numbers() {
    let config = PodConfig {
        name: "web".into(),
        namespace: "ns".into(),
        uid: "u".into(),
        attempt: 2,
        hostname: "h".into(),
        log_directory: "/l".into(),
        dns: Dns { servers: vec!["s".into()], ..Dns::default() },
        ports: vec![PortMapping {
            protocol: Protocol::Udp,
            container_port: 80,
            host_port: 81,
            host_ip: "::1".parse().ok(),
        }],
        labels: BTreeMap::from([("k".into(), "v".into())]),
        annotations: BTreeMap::from([("a".into(), "b".into())]),
        cgroup_parent: "/g".into(),
        ..PodConfig::default()
    };
    let request = wire::RunPodSandboxRequest { config: Some(config.into()), runtime_handler: "r".into() };
    let mut expected = Vec::new();
    expected.extend(b"\x0a\x0e\x0a\x03web\x12\x01u\x1a\x02ns\x20\x02");
    expected.extend(b"\x12\x01h\x1a\x02/l\x22\x03\x0a\x01s\x2a\x0b\x08\x01\x10\x50\x18\x51\x22\x03::1");
    expected.extend(b"\x32\x06\x0a\x01k\x12\x01v\x3a\x06\x0a\x01a\x12\x01b");
    expected.extend(b"\x42\x0a\x0a\x02/g\x12\x04\x0a\x02\x10\x01");
    let whole = [&[0x0a, expected.len() as u8], expected.as_slice(), b"\x12\x01r"].concat();
    assert_eq!(request.encode_to_vec(), whole);
}

#[test]
fn a_list_that_no_runtime_would_send_is_refused() {
    let many = wire::ListPodSandboxResponse { items: vec![Bytes::new(); 20_001] };
    let err = answer::sandboxes(&many).unwrap_err().to_string();
    assert!(err.contains("20001 sandboxes are more than"), "{err}");
    for id in ["", "a\u{1b}[2J", "a/b", "a b", &"x".repeat(257)] {
        let item = wire::PodSandbox { id: id.to_owned(), ..wire::PodSandbox::default() };
        let list = wire::ListPodSandboxResponse { items: vec![item.encode_to_vec().into()] };
        let err = answer::sandboxes(&list).unwrap_err().to_string();
        assert!(err.contains("not a valid sandbox ID") && !err.contains('\u{1b}'), "{err}");
    }
    let metadata = wire::PodSandboxMetadata { name: "a\u{1b}c\nb".into(), ..Default::default() };
    let item = wire::PodSandbox { id: "x".into(), metadata: Some(metadata), ..wire::PodSandbox::default() };
    let list = wire::ListPodSandboxResponse { items: vec![item.encode_to_vec().into()] };
    assert_eq!(answer::sandboxes(&list).unwrap()[0].name, "a\\u{1b}c b");
}

/// Whoever listens on a socket, and what a client makes of it.
async fn against<F: Future<Output = ()> + Send + 'static>(
    serve: impl Fn(tokio::net::UnixStream) -> F + Send + 'static,
    limit: Duration,
) -> Result<Client, CriError> {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    tokio::time::timeout(limit, Client::connect(&socket)).await.unwrap()
}

const LONG: Duration = Duration::from_secs(100);

#[tokio::test]
async fn a_socket_of_something_else_is_one_clear_error() {
    let err = Client::connect(Path::new("/run/there-is-none.sock")).await.unwrap_err().to_string();
    assert_eq!(err, "no container runtime's socket is there: /run/there-is-none.sock");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let err = Client::connect(&file).await.unwrap_err();
    assert!(matches!(err, CriError::Connect { .. }), "{err}");
    // One that closes, and one that speaks HTTP/1.
    let closes = against(|stream| async move { drop(stream) }, LONG).await.unwrap_err();
    let speaks = |mut stream: tokio::net::UnixStream| async move {
        use tokio::io::AsyncWriteExt;
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n\x1b[31m").await;
    };
    let speaks = against(speaks, LONG).await.unwrap_err();
    for err in [closes, speaks] {
        let text = err.to_string();
        assert!(text.contains("is not the socket of a CRI runtime") && !text.contains('\u{1b}'), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_socket_that_never_answers_is_given_up() {
    let err = against(
        |stream| async move {
            let _open = stream;
            std::future::pending::<()>().await;
        },
        LONG,
    )
    .await
    .unwrap_err();
    assert!(matches!(err, CriError::Late { .. }), "{err}");
}

/// A gRPC server that gives every call this answer, or this status.
async fn grpc(stream: tokio::net::UnixStream, answer: Bytes, status: &'static str, message: &'static str) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    while let Some(Ok((_, mut respond))) = connection.accept().await {
        let head = http::Response::builder().header("content-type", "application/grpc");
        let mut stream = respond.send_response(head.body(()).unwrap(), false).unwrap();
        if !answer.is_empty() {
            stream.send_data(answer.clone(), false).unwrap();
        }
        let mut trailers = http::HeaderMap::new();
        trailers.insert("grpc-status", status.parse().unwrap());
        trailers.insert("grpc-message", message.parse().unwrap());
        stream.send_trailers(trailers).unwrap();
    }
}

#[tokio::test]
async fn a_runtimes_words_are_told_without_control_characters() {
    let other =
        against(|stream| grpc(stream, Bytes::new(), "12", "unknown service"), LONG).await.unwrap_err();
    assert!(other.to_string().contains("it speaks gRPC, but has no runtime.v1.RuntimeService"), "{other}");
    let refused = against(|stream| grpc(stream, Bytes::new(), "2", "%1b[31mno%0a"), LONG).await.unwrap_err();
    assert_eq!(refused.to_string(), "Version: \\u{1b}[31mno  (Unknown)");
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_not_read() {
    // Only its beginning is sent: the length is what counts.
    let mut frame = vec![0];
    frame.extend((9u32 << 20).to_be_bytes());
    frame.extend([0; 100]);
    let answer = Bytes::from(frame);
    let err = against(move |stream| grpc(stream, answer.clone(), "0", ""), LONG).await.unwrap_err();
    assert!(matches!(&err, CriError::Answer { why, .. } if why.contains("too large")), "{err}");
}
