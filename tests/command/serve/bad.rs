//! Tests clients that give up, fail or attack, and a second server on one socket.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::json;

use cnimble_cri::{CriError, PodConfig};
use cnimble_tests::{LIMIT, PATIENCE, need, wait_until};

use super::{Shop, bridge, pod};

/// Creates a network with a last plugin that reports the start of an ADD and blocks it until `go` exists.
fn slow(shop: &Shop) {
    let (begun, go) = (shop.path("begun"), shop.path("go"));
    let lines = format!(
        "[ \"$CNI_COMMAND\" != ADD ] || {{ touch {}; until [ -e {} ]; do sleep 0.05; done; }}",
        begun.display(),
        go.display()
    );
    shop.plugin("slow", &lines);
}

#[test]
fn a_client_that_gives_up_in_the_middle_of_a_set_up_leaves_nothing() {
    need!("ip", "nft", "python3");
    let shop = Shop::new(&bridge("10.7.0.0/24", &[json!({"type": "slow"})]));
    slow(&shop);
    let serve = shop.start();
    let (socket, begun) = (shop.socket.clone(), shop.path("begun"));
    let gives_up = |client: cnimble_cri::Client| async move {
        let run = client.run(pod("web"), "");
        let begun = async {
            while !begun.exists() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        // The call is dropped together with its stream.
        tokio::select! {
            made = run => Err(CriError::Endpoint { endpoint: format!("{made:?}"), origin: String::new() }),
            () = begun => Ok(()),
        }
    };
    cnimble_cri::blocking(&socket, gives_up).unwrap();
    assert!(wait_until(PATIENCE, || shop.list().is_empty()), "{:?}\n{}", shop.list(), shop.log());
    shop.is_clean();
    // The next attempt is unaffected.
    std::fs::write(shop.path("go"), "").unwrap();
    assert!(shop.run(pod("web")).sandbox.ready);
    shop.is_whole();
    shop.clear();
    serve.stop();
}

#[test]
fn sigterm_lets_the_calls_under_way_end_and_sandboxes_stay() {
    need!("ip", "python3");
    let shop = Shop::new(&bridge("10.7.0.0/24", &[json!({"type": "slow"})]));
    slow(&shop);
    let serve = shop.start();
    let id = std::thread::scope(|scope| {
        let run = scope.spawn(|| shop.ok(|client| async move { client.run(pod("web"), "").await }));
        assert!(wait_until(PATIENCE, || shop.path("begun").exists()), "{}", shop.log());
        serve.signal("TERM");
        assert!(wait_until(PATIENCE, || !shop.socket.exists()), "{}", shop.log());
        assert!(serve.is_running());
        std::fs::write(shop.path("go"), "").unwrap();
        run.join().unwrap()
    });
    serve.wait_until_gone();
    assert_eq!(shop.leases().len(), 1);
    let serve = shop.start();
    let [web] = &shop.list()[..] else { panic!("{:?}", shop.list()) };
    assert!(web.id == id && web.ready, "{web:?}");
    shop.is_whole();
    shop.clear();
    serve.stop();
}

#[test]
fn garbage_on_the_socket_harms_no_other_client() {
    need!("ip");
    let shop = Shop::new(&bridge("10.7.0.0/24", &[]));
    let serve = shop.start();
    let mut idle = Vec::new();
    for number in 0..100_u8 {
        let mut stream = UnixStream::connect(&shop.socket).unwrap();
        let bytes: Vec<u8> = match number % 4 {
            0 => b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            1 => (0..=255).map(|byte: u8| byte.wrapping_mul(number)).collect(),
            2 => [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), vec![0xff; 64]].concat(),
            _ => Vec::new(),
        };
        let _ = stream.write_all(&bytes);
        idle.push(stream);
    }
    // Clients without HTTP/2 get an error or are disconnected. Others stay connected.
    let mut answer = Vec::new();
    idle[0].set_read_timeout(Some(LIMIT)).unwrap();
    let _ = idle[0].read_to_end(&mut answer);
    assert!(shop.list().is_empty());
    drop(idle);

    // A message above the size limit.
    let large = PodConfig { annotations: [("a".to_owned(), "x".repeat(5 << 20))].into(), ..pod("large") };
    let err = shop.ask(|client| async move { client.run(large, "").await }).unwrap_err();
    assert!(!matches!(err, CriError::Late { .. }), "{err}");
    let wrong = PodConfig { name: "a;K8S_POD_NAME=b".into(), ..pod("x") };
    let err = shop.ask(|client| async move { client.run(wrong, "").await }).unwrap_err();
    assert!(matches!(&err, CriError::Refused { code, .. } if code == "InvalidArgument"), "{err}");
    shop.is_clean();
    assert!(shop.run(pod("web")).sandbox.ready);
    shop.clear();
    assert!(serve.is_running());
    serve.stop();
}

#[test]
fn two_hundred_silent_clients_keep_no_new_one_out() {
    need!("ip");
    let shop = Shop::new(&bridge("10.7.0.0/24", &[]));
    let serve = shop.start();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    // The input is empty, the first letter, all but the last letter, or the whole preface with empty SETTINGS (RFC
    // 9113, section 3.4).
    let settings = [preface.as_slice(), &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
    let words: [&[u8]; 4] = [b"", b"P", &preface[..23], &settings];
    let mut silent = Vec::new();
    for word in words.iter().cycle().take(200) {
        let mut stream = UnixStream::connect(&shop.socket).unwrap();
        let _ = stream.write_all(word);
        silent.push(stream);
        // A new client is served despite many silent ones.
        if silent.len() % 40 == 0 {
            assert!(shop.list().is_empty());
        }
    }
    for mut stream in silent {
        stream.set_nonblocking(true).unwrap();
        let ended = || match stream.read(&mut [0; 4096]) {
            Ok(0) => true,
            Ok(_) => false,
            Err(err) => err.kind() == ErrorKind::ConnectionReset,
        };
        assert!(wait_until(PATIENCE, ended), "a silent client is still there: {}", shop.log());
    }
    assert!(shop.list().is_empty());
    serve.stop();
}

#[test]
fn a_second_server_is_refused_in_a_sentence() {
    need!("ip");
    let shop = Shop::new(&bridge("10.7.0.0/24", &[]));
    let serve = shop.start();
    let other = shop.second("cri.sock", "other.sock");
    assert_eq!(other.status, 5, "{}", other.describe());
    assert!(
        other.stderr.contains("another `cnimble run` or `cnimble serve` uses this directory"),
        "{}",
        other.stderr
    );
    let other = shop.second("state", "other");
    assert_eq!(other.status, 5, "{}", other.describe());
    assert!(other.stderr.contains("another process listens there"), "{}", other.stderr);
    assert!(shop.list().is_empty());

    // A stale socket of a killed server is replaced. A file that is no socket isn't.
    serve.signal("KILL");
    serve.wait_until_gone();
    assert!(shop.socket.exists());
    shop.start().stop();
    std::fs::write(&shop.socket, "mine").unwrap();
    let other = shop.second("", "");
    assert!(other.status == 5 && other.stderr.contains("it is no socket"), "{}", other.describe());
    assert_eq!(std::fs::read(&shop.socket).unwrap(), b"mine");
}
