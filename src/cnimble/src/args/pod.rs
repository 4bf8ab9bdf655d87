//! The command line of `cnimble pod`, and the options about pods that `run` and `serve` share.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use ipnetwork::IpNetwork;

use crate::names;

const EXAMPLES: &str = "\
Examples:
  Give the pod of a manifest its network, run a command in it, and remove the network:
      cnimble pod up web.yaml
      cnimble pod exec web -- ip address
      cnimble pod down web.yaml

  Work as a node with the podCIDR 10.244.3.0/24:
      cnimble pod up --pod-cidr 10.244.3.0/24 web.yaml";

/// Pods on the default network, as a kubelet sets them up
///
/// A pod is a manifest for `kubectl apply`. It gets a network namespace below the run directory,
/// lo, and the default network, but no containers. The default network is the first usable one
/// of the configuration directory.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Pod {
    #[command(flatten)]
    pub(crate) options: PodOptions,
    #[command(subcommand)]
    pub(crate) command: PodCommand,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Options about pods")]
pub(crate) struct PodOptions {
    /// The directory for records of pods. Results of ADD are in `cni` below it
    #[arg(long, global = true, value_name = "DIR", default_value = "/var/lib/cnimble")]
    pub(crate) state_dir: PathBuf,
    /// The directory for network namespaces and resolv.conf files
    #[arg(long, global = true, value_name = "DIR", default_value = "/run/cnimble")]
    pub(crate) run_dir: PathBuf,
    /// The node's podCIDR, for plugins with the capability ipRanges; repeatable, once per address family
    #[arg(long, global = true, value_name = "CIDR")]
    pub(crate) pod_cidr: Vec<IpNetwork>,
    /// A name server of the cluster; repeatable [default: the node's name servers]
    #[arg(long, global = true, value_name = "ADDRESS")]
    pub(crate) cluster_dns: Vec<IpAddr>,
    /// The cluster's domain
    #[arg(long, global = true, value_name = "DOMAIN", default_value = "cluster.local")]
    pub(crate) cluster_domain: String,
    /// The resolv.conf that pods inherit [default: the node's]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) resolv_conf: Option<PathBuf>,
    /// The control group of all pods. Plugins with the capability cgroupPath get PATH/podUID. The group
    /// is not created
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) cgroup_root: Option<String>,
    /// Start an idle process in each pod's namespace
    #[arg(long, global = true)]
    pub(crate) pause: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PodCommand {
    /// Give the pods of manifests their networks
    ///
    /// A pod that is up stays as it is. If its manifest has changed, it is taken down and set up
    /// again. Remains of an interrupted `up` are removed first. Many pods are set up at once. A
    /// failed pod does not stop the others.
    #[command(after_long_help = examples!["cnimble pod up web.yaml"])]
    Up(Up),
    /// Remove the networks of pods
    ///
    /// Needs neither the manifest nor the network's configuration, and may be repeated. An
    /// argument that names a running pod means this pod, even if a file has the same name.
    #[command(after_long_help = examples!["cnimble pod down web", "cnimble pod down --all"])]
    Down(Down),
    /// List the pods
    #[command(after_long_help = examples!["cnimble pod ls"])]
    Ls,
    /// Show a pod's current addresses and the result of the plugins' CHECK
    #[command(after_long_help = examples!["cnimble pod status web"])]
    Status(PodName),
    /// Run a command in a pod's network namespace, with its resolv.conf
    #[command(after_long_help = examples!["cnimble pod exec web -- ip address"])]
    Exec(Exec),
    /// Do nothing until SIGTERM
    #[command(hide = true)]
    Pause,
}

#[derive(Debug, Args)]
pub(crate) struct Up {
    /// Manifests, YAML or JSON; - is stdin
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Down {
    /// Pods (NAME in the namespace default, or NAMESPACE/NAME), or their manifests; - is stdin
    #[arg(required_unless_present = "all", value_name = "POD|FILE", add = ArgValueCompleter::new(names::pods))]
    pub(crate) pods: Vec<String>,
    /// All pods
    #[arg(long, conflicts_with = "pods")]
    pub(crate) all: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PodName {
    /// The pod: NAME in the namespace default, or NAMESPACE/NAME
    #[arg(add = ArgValueCompleter::new(names::pods))]
    pub(crate) pod: String,
}

#[derive(Debug, Args)]
pub(crate) struct Exec {
    #[command(flatten)]
    pub(crate) named: PodName,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}
