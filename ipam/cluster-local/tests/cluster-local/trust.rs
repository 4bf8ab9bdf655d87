//! etcd with TLS, and certificates on both sides.

use cnimble_tests::Host;
use cnimble_tests::tls::{Authority, Identity};
use serde_json::json;

use super::etcd::Tls;
use super::{Etcd, Node, refused};

fn tls(authority: &Authority, names: &str) -> Tls {
    Tls {
        ca: authority.certificate(),
        server: authority.issue(names),
        client: authority.issue("IP:127.0.0.1"),
    }
}

/// Returns the node with its trusted CA and its own certificate.
fn with<'h>(node: &Node<'h>, ca: &Authority, client: Option<&Identity>) -> Node<'h> {
    let mut etcd = json!({"endpoints": ["https://127.0.0.11:2379"], "ca": ca.certificate()});
    if let Some(client) = client {
        etcd["certificate"] = json!(client.certificate);
        etcd["key"] = json!(client.key);
    }
    node.clone().with("etcd", etcd)
}

#[test]
fn without_trust_etcd_is_refused_in_a_sentence_and_adds_go_on_from_the_nodes_block() {
    let host = Host::new();
    let (authority, stranger) = (Authority::new(), Authority::new());
    let tls = tls(&authority, "IP:127.0.0.11");
    let client = tls.client.clone();
    let _etcd = Etcd::start_with(&host, 1, Some(tls));
    let node = with(&Node::new(&host, 1, "a", "10.9.0.0/16"), &authority, Some(&client));
    node.operate("init").unwrap();
    node.added("p1");

    let expired = authority.issue_for("IP:127.0.0.1", -1);
    let unknown = stranger.issue("IP:127.0.0.1");
    let of = |client: &Identity| format!("refuses {} (ipam.etcd.certificate)", client.certificate.display());
    let wrong_ca = format!("isn't by the authority in {}", stranger.certificate().display());
    for (n, (ca, client, text)) in [
        (&stranger, Some(&client), wrong_ca),
        (&authority, Some(&expired), of(&expired)),
        (&authority, Some(&unknown), of(&unknown)),
        (&authority, None, "wants a client's certificate".to_owned()),
    ]
    .into_iter()
    .enumerate()
    {
        let node = with(&node, ca, client);
        // The address is in another block, so etcd has to be asked.
        refused(node.run("ADD", "asks", "IP=10.9.200.7", None), 11, &text);
        node.added(&format!("own{n}"));
    }
    node.run("ADD", "asks", "IP=10.9.200.7", None).unwrap();
}

#[test]
fn a_member_whose_certificate_has_another_name_is_refused() {
    let host = Host::new();
    let authority = Authority::new();
    // etcdctl refuses this certificate as well, so the test can't wait for health.
    let tls = tls(&authority, "IP:127.0.0.99");
    let client = tls.client.clone();
    let mut etcd = Etcd::unready(&host, 1, Some(tls));
    etcd.member(0);
    let node = with(&Node::new(&host, 1, "a", "10.9.0.0/16"), &authority, Some(&client));
    let text = "isn't for the name or address in ipam.etcd.endpoints";
    let named = || node.operate("init").is_err_and(|err| err["msg"].as_str().unwrap().contains(text));
    assert!(cnimble_tests::wait_until(cnimble_tests::PATIENCE, named), "{:?}", node.operate("init"));
}
