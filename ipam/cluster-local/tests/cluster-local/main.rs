//! cluster-local with a real etcd. No address has two owners, even with faults of etcd, the plugin and
//! the nodes.
#![cfg(test)]

mod agent;
mod boots;
mod chaos;
mod etcd;
mod fences;
mod hangs;
mod health;
mod late;
mod load;
mod local;
mod machine;
mod node;
mod operator;
mod pages;
mod pools;
mod restored;
mod routes;
mod site;
mod trust;
mod turns;
mod vanished;
mod watch;

use etcd::Etcd;
use node::{Node, address, answer, assert_no_block_is_lost, cluster, cluster_of, refused, wanted};
