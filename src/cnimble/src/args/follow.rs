//! The arguments of the subcommands that follow events and counters.

use std::time::Duration;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use super::Leases;
use crate::names;

#[derive(Debug, Args)]
pub(crate) struct Events {
    /// Show only this network
    #[arg(long, value_name = "NAME", add = ArgValueCompleter::new(names::networks))]
    pub(crate) network: Option<String>,
    /// Print counts in the text format of Prometheus. After each change it prints all counts and `# EOF`
    #[arg(long)]
    pub(crate) metrics: bool,
    #[command(flatten)]
    pub(crate) leases: Leases,
}

#[derive(Debug, Args)]
pub(crate) struct Stats {
    /// A pod (`NAMESPACE/NAME`), a container ID or its beginning, a namespace of `ip netns` or its path, or an address
    #[arg(value_name = "POD", add = ArgValueCompleter::new(names::attached))]
    pub(crate) whose: Option<String>,
    /// Show the counters once
    #[arg(long)]
    pub(crate) once: bool,
    /// The interval between two updates
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(crate) interval: Duration,
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let sensible = Duration::from_millis(100)..=Duration::from_secs(3600);
    seconds.filter(|time| sensible.contains(time)).ok_or_else(|| "between 0.1 and 3600 seconds".to_owned())
}
