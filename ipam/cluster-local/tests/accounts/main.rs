//! The manifests of `deploy/cluster-local` on a real API server: what the account of one node may write, what can be
//! deleted, and what the account that reclaims returns. Without kube-apiserver, etcd and kubectl there is nothing to
//! test.
#![cfg(test)]

mod deleting;
/// The name that the shared tests use for the store.
#[path = "server.rs"]
mod etcd;
#[path = "../cluster-local/node.rs"]
#[expect(dead_code, reason = "other test programs use the rest")]
mod node;
mod nodes;
mod reclaiming;
mod rotation;

use etcd::{Etcd, server};
use node::Node;
