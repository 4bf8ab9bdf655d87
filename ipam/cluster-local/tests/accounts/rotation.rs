//! Credentials that are replaced.

use std::fs;

use cnimble_tests::{Host, skip};
use serde_json::json;

use super::etcd::kubeconfig_of;
use super::node::refused;
use super::server;

/// The kubelet replaces its certificate beside its kubeconfig, and a token is replaced in the same way.
#[test]
fn a_replaced_credential_is_read_again() {
    let host = Host::new();
    let (_etcd, [a, ..]) = match server(&host) {
        Ok(found) => found,
        Err(why) => skip!("{why}"),
    };
    let (token, kubeconfig) = (host.dir().join("token"), host.dir().join("rotated.kubeconfig"));
    fs::write(&kubeconfig, kubeconfig_of(&json!({"tokenFile": token})).to_string()).unwrap();
    let node = a.with("kubernetes", json!({"kubeconfig": kubeconfig}));
    fs::write(&token, "token-system-node-a").unwrap();
    node.operate("confirm").unwrap();
    fs::write(&token, "expired").unwrap();
    refused(node.operate("confirm"), 50, "401");
    fs::write(&token, "token-system-node-a").unwrap();
    node.operate("confirm").unwrap();
}
