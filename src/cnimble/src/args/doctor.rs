//! The arguments of the subcommands that repair or convert the rules of living pods.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::Leases;
use super::service::LogFormat;

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Repair the findings
    #[arg(long)]
    pub(crate) repair: bool,
    /// Repair living pods inside their namespaces, too: addresses, routes, interfaces that are down
    #[arg(long, requires = "repair")]
    pub(crate) pods: bool,
    #[command(flatten)]
    pub(crate) leases: Leases,
    /// Ignore younger objects, which may belong to a running `add`
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub(crate) grace: u64,
    /// Ask the container runtime, too. Objects of its sandboxes are no orphans, and each sandbox
    /// is compared with the kernel
    #[arg(long, value_name = "SOCKET", num_args = 0..=1, default_missing_value = "")]
    pub(crate) cri: Option<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Guard {
    #[command(flatten)]
    pub(crate) leases: Leases,
    /// The format of logs
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    pub(crate) log_format: LogFormat,
}

#[derive(Debug, Args)]
pub(crate) struct HandOver {
    /// Convert the rules. If one pod can't be converted, nothing changes
    #[arg(long)]
    pub(crate) yes: bool,
    /// Convert all pods that can be converted. Rules of the others stay in cnimble's tables, where
    /// the Go plugins don't find them
    #[arg(long, requires = "yes")]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) leases: Leases,
    /// The directory with the records of `cnimble pod` and `cnimble run`
    #[arg(long, value_name = "DIR", default_value = "/var/lib/cnimble")]
    pub(crate) state_dir: PathBuf,
}
