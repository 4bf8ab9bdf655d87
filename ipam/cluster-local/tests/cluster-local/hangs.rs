//! An etcd that accepts connections and never answers. Verbs end in time and report the reason.

use std::net::TcpListener;
use std::process::Stdio;
use std::time::SystemTime;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use cnimble_tests::Host;
use cnimble_tests::tls::Authority;

use super::{Node, answer, cluster, refused};

#[test]
fn a_verb_that_needs_etcd_ends_in_time_where_no_member_ever_answers() {
    let host = Host::new();
    let authority = Authority::new();
    // The kernel accepts the connections.
    let _silent = host.within(|| {
        let at = |n| TcpListener::bind(format!("127.0.0.{n}:2379")).unwrap();
        [at(61), at(62)]
    });
    let node = |etcd: Value| Node::new(&host, 1, "a", "10.9.0.0/16").with("etcd", etcd);
    let urls = |scheme: &str| [61, 62].map(|n| format!("{scheme}://127.0.0.{n}:2379"));
    let plain = node(json!({"endpoints": urls("http")}));
    let err = plain.add("p1").unwrap_err();
    for url in urls("http") {
        refused::<()>(Err(err.clone()), 11, &format!("{url}: no answer in time"));
    }
    refused(plain.run("STATUS", "", "", None), 50, "etcd doesn't answer");
    plain.run("DEL", "p1", "", None).unwrap();
    refused(plain.operate("init new"), 11, "etcd doesn't answer");
    // For a closed port the message has the system's error.
    let closed = node(json!({"endpoints": ["http://127.0.0.64:2379"]}));
    refused(closed.add("p1"), 11, "etcd doesn't answer: http://127.0.0.64:2379: Connection refused");
    let trusting = node(json!({"endpoints": urls("https"), "ca": authority.certificate()}));
    refused(trusting.add("p1"), 11, "in time");
}

#[test]
fn a_node_with_a_block_gives_its_addresses_without_a_word_to_an_etcd_that_hangs() {
    let host = Host::new();
    let (etcd, nodes) = cluster(&host, 1, "10.9.0.0/16");
    let node = &nodes[0];
    node.added("p0");
    let asked = || -> SystemTime {
        std::fs::metadata(node.store().join(".cnimble-share-lock")).unwrap().modified().unwrap()
    };
    let before = asked();
    etcd.signal(0, Signal::SIGSTOP);
    // The spare block is requested in the middle of this one.
    for n in 1..31 {
        node.added(&format!("p{n}"));
    }
    node.run("CHECK", "p1", "", None).unwrap();
    node.run("STATUS", "", "", None).unwrap();
    node.run("DEL", "p1", "", None).unwrap();
    assert_eq!(asked(), before, "etcd was asked");
    // That ADD waits, but returns its address.
    for n in 31..36 {
        node.added(&format!("p{n}"));
    }
    assert_ne!(asked(), before);
    let mut n = 36;
    let err = loop {
        match node.add(&format!("p{n}")) {
            Ok(_) => n += 1,
            Err(err) => break err,
        }
        assert!(n < 100);
    };
    refused::<()>(Err(err), 11, "etcd doesn't answer");
    etcd.signal(0, Signal::SIGCONT);
    etcd.settle();
    node.added("after");
}

/// getaddrinfo(3) takes as long as resolv.conf says, even if its caller has given up.
#[test]
fn names_that_are_never_resolved_delay_no_verb() {
    let host = Host::new();
    let _silent = host.within(|| std::net::UdpSocket::bind("127.0.0.61:53").unwrap());
    let resolv = host.dir().join("resolv.conf");
    std::fs::write(&resolv, "nameserver 127.0.0.61\noptions timeout:30 attempts:1\n").unwrap();
    let node = Node::new(&host, 1, "a", "10.9.0.0/16")
        .with("etcd", json!({"endpoints": ["http://etcd-1.example:2379", "http://etcd-2.example:2379"]}));
    let confirm = || {
        let mut command = host.command("unshare");
        let script = format!(
            "mount --bind {} /etc/resolv.conf; exec {} confirm",
            resolv.display(),
            cnimble_tests::plugin_dir().join("cluster-local-store").display()
        );
        command.args(["--mount", "sh", "-ec", &script]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), node.config.to_string().as_bytes())
            .unwrap();
        answer(&child.wait_with_output().unwrap())
    };
    refused(confirm(), 11, "etcd-2.example:2379: no answer in time");
}
