//! The arguments of `cnimble network`.

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;

use crate::names;

#[derive(Debug, Args)]
pub(crate) struct Network {
    #[command(subcommand)]
    pub(crate) command: NetworkCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NetworkCommand {
    /// List the networks and the faults of unusable configurations
    #[command(after_long_help = examples![
        "cnimble network ls",
        "cnimble network ls --conf-dir ./net.d --json",
    ])]
    Ls,
    /// Show a network: its file, plugins, bridges, ranges of addresses, and attachments
    #[command(after_long_help = examples!["cnimble network inspect demo"])]
    Inspect(One),
    /// Remove a network that no pod is on: remains, rules, leases, bridge, and file
    ///
    /// Refuses while an attachment lives or may live. A bridge stays if cnimble did not make it, if another network uses
    /// it, or if it has a port, an uplink or a link on top. Leases stay if other machines or another network share their
    /// directory.
    #[command(after_long_help = examples!["cnimble network rm demo"])]
    Rm(Rm),
}

#[derive(Debug, Args)]
pub(crate) struct One {
    /// The network's name
    #[arg(add = ArgValueCompleter::new(names::networks))]
    pub(crate) network: String,
}

#[derive(Debug, Args)]
pub(crate) struct Rm {
    #[command(flatten)]
    pub(crate) one: One,
    /// Ignore younger leases without other evidence
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub(crate) grace: u64,
}
