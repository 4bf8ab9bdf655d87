//! The arguments of `cnimble trace`.

use std::ffi::OsString;
use std::net::IpAddr;
use std::time::Duration;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use super::follow::seconds;
use crate::names;

#[derive(Debug, Args)]
pub(crate) struct Trace {
    /// The sender: a pod (`NAMESPACE/NAME`), a container ID or its beginning, a namespace of
    /// `ip netns` or its path, or an address
    #[arg(value_name = "POD", required_unless_present = "from", add = ArgValueCompleter::new(names::attached))]
    pub(crate) pod: Option<String>,
    /// The receiver: an address, another pod, `gateway` (the pod's default route) or `internet`
    /// (the host's default route). With a port it is TCP, or the protocol behind a slash; without
    /// one it is an echo request
    #[arg(value_name = "ADDRESS[:PORT[/tcp|udp|sctp]]", required_unless_present = "from")]
    pub(crate) to: Option<String>,
    /// Follow a packet from this host outside to a port of the node, HOST:PORT, in place of POD and
    /// ADDRESS
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) from: Option<IpAddr>,
    /// Send an echo request as large as the MTU of the pod's link, which no router may fragment
    #[arg(long, conflicts_with = "from")]
    pub(crate) full_size: bool,
    /// Send nothing. Rules with conditions, and other hosts, are then unknown
    #[arg(long)]
    pub(crate) no_probe: bool,
    /// How long an answer is waited for
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    pub(crate) wait: Duration,
    /// Ask the container runtime for the pod, too
    #[arg(long, value_name = "SOCKET", num_args = 0..=1, default_missing_value = "")]
    pub(crate) cri: Option<OsString>,
}
