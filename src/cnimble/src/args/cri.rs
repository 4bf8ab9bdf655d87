//! The command line of `cnimble cri`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use ipnetwork::IpNetwork;

use crate::names;

const EXAMPLES: &str = "\
Examples:
  Show the state of the runtime and the network that it has loaded:
      cnimble cri status

  Compare the runtime's view of a pod with the cache and the kernel:
      cnimble cri pods
      cnimble cri inspect kube-system/coredns-5d78c9869d-abcde

  Let the runtime create and remove a pod:
      cnimble cri up web.yaml
      cnimble cri down web";

/// The pods of the container runtime, by CRI
///
/// A kubelet talks to containerd, CRI-O or k3s by CRI. The command finds the runtime's socket.
/// The configuration of crictl takes precedence.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Cri {
    /// The runtime's socket [default: crictl's, or the first existing socket of containerd, CRI-O,
    /// k3s and cri-dockerd]
    #[arg(long, global = true, alias = "cri", value_name = "SOCKET")]
    pub(crate) socket: Option<OsString>,
    #[command(subcommand)]
    pub(crate) command: CriCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CriCommand {
    /// Show the runtime's state, the network that it has loaded, and the one that cnimble would choose
    #[command(after_long_help = examples!["cnimble cri status"])]
    Status,
    /// List the runtime's pods
    #[command(after_long_help = examples!["cnimble cri pods --socket /run/crio/crio.sock"])]
    Pods,
    /// Compare a pod in the runtime, the result cache and the kernel
    #[command(after_long_help = examples![
        "cnimble cri inspect kube-system/coredns-5d78c9869d-abcde",
    ])]
    Inspect(SandboxName),
    /// Let the runtime create the pods of manifests, as a kubelet does, and check them
    ///
    /// Creates the sandbox of each pod (RunPodSandbox), but no containers. Then checks that the
    /// kernel has the interface and the addresses that the runtime reports.
    #[command(after_long_help = examples!["cnimble cri up web.yaml"])]
    Up(Up),
    /// Let the runtime stop and remove the sandboxes of pods
    #[command(after_long_help = examples!["cnimble cri down web"])]
    Down(Down),
    /// Give the runtime the node's podCIDRs (UpdateRuntimeConfig)
    #[command(after_long_help = examples!["cnimble cri set-pod-cidr 10.244.3.0/24,fd00:244:3::/64"])]
    SetPodCidr(SetPodCidr),
}

#[derive(Debug, Args)]
pub(crate) struct Up {
    /// Manifests, YAML or JSON; - is stdin
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// The runtime handler, as in a RuntimeClass [default: the runtime's]
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub(crate) handler: String,
    /// The parent control group of the pods [default: the runtime's]
    #[arg(long, value_name = "GROUP", default_value = "", hide_default_value = true)]
    pub(crate) cgroup_parent: String,
}

#[derive(Debug, Args)]
pub(crate) struct Down {
    /// Pods: NAME in the namespace default, NAMESPACE/NAME, or the beginning of a sandbox ID
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
pub(crate) struct SandboxName {
    /// The pod: NAME in the namespace default, NAMESPACE/NAME, or the beginning of its sandbox ID
    #[arg(add = ArgValueCompleter::new(names::attached))]
    pub(crate) pod: String,
}
