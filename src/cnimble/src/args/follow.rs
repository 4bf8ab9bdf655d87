//! The options of the subcommands that follow events and counters.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use crate::names;

/// What to follow.
#[derive(Debug, Args)]
pub(crate) struct Events {
    /// Only this network
    #[arg(long, value_name = "NAME", add = ArgValueCompleter::new(names::networks))]
    pub(crate) network: Option<String>,
    /// Counts in place of lines, in Prometheus's text format: all of them after each change, ended by `# EOF`
    #[arg(long)]
    pub(crate) metrics: bool,
    /// A directory of host-local, instead of the usual ones; may be given many times
    /// [default: /var/lib/cni/networks and those that networks name]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Vec<PathBuf>,
}

/// Whose counters, and how often.
#[derive(Debug, Args)]
pub(crate) struct Stats {
    /// A pod (`NAMESPACE/NAME`, or `NAME` in the namespace default), or the beginning of a container's ID
    #[arg(value_name = "POD|CONTAINER", add = ArgValueCompleter::new(names::attached))]
    pub(crate) whose: Option<String>,
    /// Show them once
    #[arg(long)]
    pub(crate) once: bool,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(crate) interval: Duration,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let sensible = Duration::from_millis(100)..=Duration::from_secs(3600);
    seconds.filter(|time| sensible.contains(time)).ok_or_else(|| "between 0.1 and 3600 seconds".to_owned())
}
