//! The subcommands of `ipam`.

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;

use crate::names;

#[derive(Debug, Args)]
pub(crate) struct Ipam {
    #[command(subcommand)]
    pub(crate) task: Task,
}

#[derive(Debug, Args)]
pub(crate) struct Network {
    /// The network's name, or the path of its file
    #[arg(value_name = "NETWORK", add = ArgValueCompleter::new(names::networks))]
    pub(crate) network: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Set up a network in etcd, once for the cluster
    ///
    /// Nodes claim addresses only in an etcd that has been set up.
    #[command(after_long_help = examples!["cnimble ipam init pods"])]
    Init(Network),
    /// List the blocks and single addresses with their nodes
    #[command(after_long_help = examples!["cnimble ipam blocks pods"])]
    Blocks(Network),
    /// Release the addresses of a node without pods
    ///
    /// Other nodes can claim them when the node may no longer assign addresses without etcd.
    #[command(after_long_help = examples!["cnimble ipam release pods worker-3"])]
    Release {
        #[command(flatten)]
        network: Network,
        /// The node's name
        node: String,
    },
}
