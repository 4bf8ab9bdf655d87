//! etcd with TLS, and certificates on both sides.

use std::process::Stdio;

use cnimble_tests::tls::{Authority, Identity};
use cnimble_tests::{Background, Host, PATIENCE, command, plugin_dir, wait_until};
use serde_json::json;

use super::agent::metric;
use super::etcd::Tls;
use super::watch::Watch;
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
    node.operate("init new").unwrap();
    node.added("p1");

    let expired = authority.issue_for("IP:127.0.0.1", -1);
    let unknown = stranger.issue("IP:127.0.0.1");
    let of = |client: &Identity| format!("refuses {} (ipam.etcd.certificate)", client.certificate.display());
    let mixed = Identity { key: expired.key.clone(), ..client.clone() };
    let of_both = format!(
        "the key in {} (ipam.etcd.key) does not belong to the certificate in {} (ipam.etcd.certificate)",
        mixed.key.display(),
        mixed.certificate.display()
    );
    let no_key = Identity { key: client.certificate.clone(), ..client.clone() };
    let of_key = format!("{} (ipam.etcd.key): there is no private key in it", no_key.key.display());
    let no_chain = Identity { certificate: client.key.clone(), ..client.clone() };
    let of_chain =
        format!("{} (ipam.etcd.certificate): there is no certificate", no_chain.certificate.display());
    let wrong_ca = format!("isn't by the authority in {}", stranger.certificate().display());
    for (n, (ca, client, text)) in [
        (&stranger, Some(&client), wrong_ca),
        (&authority, Some(&expired), of(&expired)),
        (&authority, Some(&unknown), of(&unknown)),
        (&authority, Some(&mixed), of_both),
        (&authority, Some(&no_key), of_key),
        (&authority, Some(&no_chain), of_chain),
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
    let named = || node.operate("init new").is_err_and(|err| err["msg"].as_str().unwrap().contains(text));
    assert!(cnimble_tests::wait_until(cnimble_tests::PATIENCE, named), "{:?}", node.operate("init new"));
}

/// With authentication a client is the user that its certificate's common name names. docs/CLUSTER.md has
/// these commands.
#[test]
fn a_role_with_the_prefix_alone_is_enough() {
    let host = Host::new();
    let authority = Authority::new();
    let tls = tls(&authority, "IP:127.0.0.11");
    let root = tls.client.clone();
    let etcd = Etcd::start_with(&host, 1, Some(tls));
    let [client, other] = [(); 2].map(|()| authority.issue("IP:127.0.0.1"));
    let user = |identity: &Identity| identity.certificate.file_stem().unwrap().to_str().unwrap().to_owned();
    for words in [
        "role add cnimble",
        "role grant-permission cnimble --prefix=true readwrite /cnimble/ipam/",
        &format!("user add {} --no-password", user(&client)),
        &format!("user grant-role {} cnimble", user(&client)),
        &format!("user add {} --no-password", user(&other)),
        "user add root --no-password",
        "user grant-role root root",
        &format!("user add {} --no-password", user(&root)),
        &format!("user grant-role {} root", user(&root)),
        "auth enable",
    ] {
        let output = etcd.ctl(words).output().unwrap();
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let node = |name: &str| with(&Node::new(&host, 1, name, "10.9.0.0/25"), &authority, Some(&client));
    let nodes = ["a", "b", "c"].map(node);
    nodes[0].operate("init new").unwrap();
    for node in &nodes {
        node.added("p1");
        node.operate("tend 192.0.2.1").unwrap();
    }
    assert!(
        nodes[2].share()["owned"][0]["first"] == nodes[2].share()["owned"][0]["last"],
        "a single address"
    );
    let watch = Watch::start(&host, &nodes[0], 0);
    watch.tells("all nodes", |nodes| nodes.as_object().is_some_and(|nodes| nodes.len() == 3));
    nodes[2].in_boot(2).added("p2");
    nodes[2].in_boot(3).operate("confirm").unwrap();
    nodes[0].operate("release c").unwrap();
    nodes[0].run("GC", "", "", None).unwrap();
    watch.tells("a release", |nodes| nodes["c"].is_null());
    // The user is asked for, and what others have in etcd stays theirs.
    refused(with(&nodes[0], &authority, Some(&other)).operate("confirm"), 11, "permission denied");
    refused(
        nodes[0]
            .clone()
            .with("etcd", {
                let mut etcd = nodes[0].config["ipam"]["etcd"].clone();
                etcd["prefix"] = "/other".into();
                etcd
            })
            .operate("init new"),
        11,
        "permission denied",
    );
}

/// All certificates are replaced, by another authority's, in the same files. The agent and its watch go on.
#[test]
fn replaced_certificates_are_used_without_a_restart() {
    let host = Host::new();
    let authorities = [Authority::new(), Authority::new()];
    let [old, new] = authorities.each_ref().map(|authority| tls(authority, "IP:127.0.0.11"));
    let dir = host.dir().join("agent");
    std::fs::create_dir(&dir).unwrap();
    let files = ["ca.pem", "client.pem", "client.key"].map(|name| dir.join(name));
    let place = |tls: &Tls| {
        let from = [&tls.ca, &tls.client.certificate, &tls.client.key];
        for (from, to) in from.iter().zip(&files) {
            std::fs::copy(from, to).unwrap();
        }
    };
    place(&old);
    let mut etcd = Etcd::start_with(&host, 1, Some(old));
    let [ca, certificate, key] = &files;
    let access =
        json!({"endpoints": ["https://127.0.0.11:2379"], "ca": ca, "certificate": certificate, "key": key});
    let node = Node::new(&host, 1, "a", "10.9.0.0/16").with("etcd", access);
    node.operate("init new").unwrap();
    let keys = dir.join("pods.json");
    std::fs::write(&keys, node.config["ipam"].to_string()).unwrap();
    let mut process = node.command(command());
    process.arg("--cni-path").arg(plugin_dir()).arg("--conf-dir").arg(dir.join("net.d"));
    process.args(["node", "--name", "net", "--node-ip", "192.0.2.1", "--cluster-local"]).arg(keys);
    process.arg("--listen").arg(dir.join("sock"));
    process.stdin(Stdio::null()).stderr(std::fs::File::create(dir.join("log")).unwrap());
    let _agent = Background::start(&mut process);
    let log = || std::fs::read_to_string(dir.join("log")).unwrap();
    let reaches = |wanted: u64| {
        let now = || metric(&dir.join("sock"), "api_reachable") == Some(wanted);
        assert!(wait_until(PATIENCE, now), "{wanted}: {}", log());
    };
    reaches(1);
    etcd.kill(0);
    reaches(0);
    etcd.trust(new.clone());
    etcd.member(0);
    etcd.settle();
    refused(node.run("ADD", "early", "IP=10.9.200.7", None), 11, "isn't by the authority");
    place(&new);
    reaches(1);
    node.run("ADD", "p1", "IP=10.9.200.7", None).unwrap();
}
