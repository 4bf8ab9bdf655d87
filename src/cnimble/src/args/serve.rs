//! The arguments of `serve`.

use std::path::PathBuf;

use clap::Args;

use super::pod::PodOptions;
use super::service::LogFormat;

const EXAMPLES: &str = "\
Examples:
  Create a pod's network by crictl, with the networks and plugins of this node:
      cnimble serve --cri /run/cnimble/cri.sock &
      export CONTAINER_RUNTIME_ENDPOINT=unix:///run/cnimble/cri.sock
      id=$(crictl runp pod.json)
      crictl inspectp $id
      crictl stopp $id && crictl rmp $id";

#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Serve {
    /// The Unix socket, with mode 0660. A socket from systemd replaces it
    #[arg(long, value_name = "SOCKET", default_value = "/run/cnimble/cri.sock")]
    pub(crate) cri: PathBuf,
    /// The number of sandboxes that are created at once, and of those that are stopped or removed
    #[arg(long, value_name = "NUMBER", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) parallel: u16,
    /// The format of logs
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    pub(crate) log_format: LogFormat,
    // Last, because its heading holds for all arguments after it.
    #[command(flatten)]
    pub(crate) options: PodOptions,
}
