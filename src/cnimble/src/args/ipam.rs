//! The subcommands of `ipam`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;

use crate::names;

#[derive(Debug, Args)]
pub(crate) struct Ipam {
    #[command(subcommand)]
    pub(crate) task: Task,
}

impl Ipam {
    /// Returns whether the task runs until it is stopped.
    pub(crate) fn is_service(&self) -> bool {
        matches!(self.task, Task::Reclaim { .. })
    }
}

#[derive(Debug, Args)]
pub(crate) struct Network {
    /// The network's name, or the path of its file
    #[arg(value_name = "NETWORK", add = ArgValueCompleter::new(names::networks))]
    pub(crate) network: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Set up a network in an empty store, once for the cluster
    ///
    /// Nodes claim addresses only in a store that has been set up. One that was lost looks like a new one, so tell which
    /// it is: in a new one the addresses of running pods are free.
    #[command(after_long_help = examples!["cnimble ipam init pods --new", "cnimble ipam init pods --recover"])]
    Init {
        #[command(flatten)]
        network: Network,
        /// The cluster is new: no pod has an address of the network
        #[arg(long, conflicts_with = "recover")]
        new: bool,
        /// The store was lost: nodes claim again what they own, before any node claims a block
        #[arg(long)]
        recover: bool,
    },
    /// List the blocks and single addresses with their nodes
    #[command(after_long_help = examples!["cnimble ipam blocks pods"])]
    Blocks(Network),
    /// Release the addresses of a node without pods
    ///
    /// Other nodes can claim them when the node may no longer assign addresses without the store.
    #[command(after_long_help = examples!["cnimble ipam release pods worker-3"])]
    Release {
        #[command(flatten)]
        network: Network,
        /// The node's name
        node: String,
    },
    /// Release the addresses of each node that Kubernetes has deleted, until stopped
    ///
    /// One process does so for the whole cluster, with an account of its own. Every machine of the network must be a node
    /// of that cluster. A node that still confirms its blocks keeps them.
    #[command(after_long_help = examples!["cnimble ipam reclaim pods --kubeconfig /etc/cnimble/reclaim.kubeconfig"])]
    Reclaim {
        #[command(flatten)]
        network: Network,
        /// The kubeconfig of the API server that lists the cluster's nodes
        #[arg(long, value_name = "FILE")]
        kubeconfig: PathBuf,
    },
}
