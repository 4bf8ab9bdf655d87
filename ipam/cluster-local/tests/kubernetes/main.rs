//! cluster-local with blocks in Kubernetes: the tests that hold for each store. The API server is a stand-in.
#![cfg(test)]

#[path = "../cluster-local/agent.rs"]
mod agent;
#[path = "../cluster-local/boots.rs"]
mod boots;
#[path = "../cluster-local/chaos.rs"]
mod chaos;
#[path = "../cluster-local/fences.rs"]
mod fences;
#[path = "../cluster-local/load.rs"]
mod load;
#[path = "../cluster-local/local.rs"]
mod local;
#[path = "../cluster-local/machine.rs"]
mod machine;
#[path = "../cluster-local/node.rs"]
mod node;
mod objects;
#[path = "../cluster-local/operator.rs"]
mod operator;
#[path = "../cluster-local/restored.rs"]
mod restored;
mod schema;
mod server;
#[path = "../cluster-local/vanished.rs"]
mod vanished;
#[path = "../cluster-local/watch.rs"]
mod watch;
mod watching;

/// The name that the shared tests use for the store.
#[path = "store.rs"]
mod etcd;

use etcd::Etcd;
use node::{Node, address, answer, assert_no_block_is_lost, cluster, cluster_of, refused, wanted};
