//! The subcommands of `ipam`.

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;

use crate::names;

/// A cluster's addresses.
#[derive(Debug, Args)]
pub(crate) struct Ipam {
    #[command(subcommand)]
    pub(crate) task: Task,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Set a network up in etcd, once for the cluster
    ///
    /// Nodes refuse to claim addresses in an etcd where this was never done.
    Init {
        /// The network's name, or the path of its file
        #[arg(add = ArgValueCompleter::new(names::networks))]
        network: String,
    },
    /// List which node owns which block, and who has single addresses
    Blocks {
        /// The network's name, or the path of its file
        #[arg(add = ArgValueCompleter::new(names::networks))]
        network: String,
    },
    /// Release what a node owns whose pods are gone
    ///
    /// Other nodes may claim it when that node's right to give addresses without etcd has ended.
    Release {
        /// The network's name, or the path of its file
        #[arg(add = ArgValueCompleter::new(names::networks))]
        network: String,
        /// The node's name
        node: String,
    },
}
