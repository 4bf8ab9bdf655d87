//! The command line of `cnimble cri`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use ipnetwork::IpNetwork;

use crate::names;

const EXAMPLES: &str = "\
Examples:
  Is the runtime ready, and which network has it loaded?
      cnimble cri status

  What does the runtime think of a pod, and what do the cache and the kernel say?
      cnimble cri pods
      cnimble cri inspect kube-system/coredns-5d78c9869d-abcde

  Does the runtime give a pod its network?
      cnimble cri up web.yaml
      cnimble cri down web";

/// The container runtime's pods, by CRI
///
/// CRI is the interface by which a kubelet talks to containerd, CRI-O or k3s. The runtime's socket
/// is found by itself: what crictl is configured with counts first.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Cri {
    /// The runtime's socket [default: crictl's, or the first that is there of containerd's,
    /// CRI-O's, k3s' and cri-dockerd's]
    #[arg(long, global = true, alias = "cri", value_name = "SOCKET")]
    pub(crate) socket: Option<OsString>,
    #[command(subcommand)]
    pub(crate) command: CriCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CriCommand {
    /// Is the runtime ready? And which network has it loaded, which would cnimble choose?
    Status,
    /// List the runtime's pods
    Pods,
    /// A pod as the runtime, the result cache and the kernel have it, side by side
    Inspect(Named),
    /// Have the runtime make the pods in manifests, as a kubelet does, and look whether they are there
    ///
    /// Makes each pod's sandbox (RunPodSandbox), no containers; then the kernel is asked whether the pod
    /// has the interface and the addresses that the runtime tells.
    Up(Up),
    /// Have the runtime stop and remove pods' sandboxes
    Down(Down),
    /// Tell the runtime the node's share of the pods' addresses (UpdateRuntimeConfig)
    SetPodCidr(SetPodCidr),
}

#[derive(Debug, Args)]
pub(crate) struct Up {
    /// Manifests, YAML or JSON; - is stdin
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// The runtime handler (a RuntimeClass' handler) [default: the runtime's]
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub(crate) handler: String,
    /// The pods' parent control group [default: the runtime's]
    #[arg(long, value_name = "GROUP", default_value = "", hide_default_value = true)]
    pub(crate) cgroup_parent: String,
}

#[derive(Debug, Args)]
pub(crate) struct Down {
    /// Pods: NAME in the namespace default, NAMESPACE/NAME, or how a sandbox' ID begins
    #[arg(required = true, value_name = "POD", add = ArgValueCompleter::new(names::attached))]
    pub(crate) pods: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct SetPodCidr {
    /// Networks, one for each address family
    #[arg(required = true, value_name = "CIDR", value_delimiter = ',')]
    pub(crate) cidrs: Vec<IpNetwork>,
}

#[derive(Debug, Args)]
pub(crate) struct Named {
    /// The pod: NAME in the namespace default, NAMESPACE/NAME, or how its sandbox' ID begins
    #[arg(add = ArgValueCompleter::new(names::attached))]
    pub(crate) pod: String,
}
