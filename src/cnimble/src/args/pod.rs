//! The command line of `cnimble pod`.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use ipnetwork::IpNetwork;

use crate::names;

const EXAMPLES: &str = "\
Examples:
  Give the pod of a manifest its network, look at it, and take it away again:
      cnimble pod up web.yaml
      cnimble pod exec web -- ip address
      cnimble pod down web.yaml

  As a node whose share of the cluster's addresses is 10.244.3.0/24:
      cnimble pod up --pod-cidr 10.244.3.0/24 web.yaml";

/// Pods on the default network, the kubelet's way
///
/// A pod is a manifest, as `kubectl apply` takes it. Only its network is made, no containers:
/// a network namespace, pinned below the run directory, attached to lo and to the default
/// network, which is the first in the configuration directory that can be used.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Pod {
    #[command(flatten)]
    pub(crate) options: PodOptions,
    #[command(subcommand)]
    pub(crate) command: PodCommand,
}

const COMMON: &str = "Options about pods";

/// What everything with pods is told about the node.
#[derive(Debug, Args)]
pub(crate) struct PodOptions {
    /// Directory for what is known of pods; results are kept in `cni` below it
    #[arg(long, global = true, help_heading = COMMON, value_name = "DIR", default_value = "/var/lib/cnimble")]
    pub(crate) state_dir: PathBuf,
    /// Directory for network namespaces and resolv.conf files
    #[arg(long, global = true, help_heading = COMMON, value_name = "DIR", default_value = "/run/cnimble")]
    pub(crate) run_dir: PathBuf,
    /// The node's share of the pods' addresses, for plugins with the capability ipRanges; once
    /// for each address family
    #[arg(long, global = true, help_heading = COMMON, value_name = "CIDR")]
    pub(crate) pod_cidr: Vec<IpNetwork>,
    /// A name server of the cluster; pods use the node's without any
    #[arg(long, global = true, help_heading = COMMON, value_name = "ADDRESS")]
    pub(crate) cluster_dns: Vec<IpAddr>,
    /// The cluster's domain
    #[arg(long, global = true, help_heading = COMMON, value_name = "DOMAIN", default_value = "cluster.local")]
    pub(crate) cluster_domain: String,
    /// The resolv.conf that pods inherit [default: the node's]
    #[arg(long, global = true, help_heading = COMMON, value_name = "FILE")]
    pub(crate) resolv_conf: Option<PathBuf>,
    /// The control group of all pods, for plugins with the capability cgroupPath: they hear of
    /// PATH/podUID. It is not made
    #[arg(long, global = true, help_heading = COMMON, value_name = "PATH")]
    pub(crate) cgroup_root: Option<String>,
    /// Start a process in each pod's namespace that does nothing
    #[arg(long, global = true, help_heading = COMMON)]
    pub(crate) pause: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PodCommand {
    /// Give the pods in manifests their networks
    ///
    /// A pod that is up already stays as it is, unless its manifest has changed: then it is
    /// taken down and up again. What an interrupted `up` has left is cleaned up first. Many
    /// pods are set up at once; one that fails doesn't keep the others.
    Up(Up),
    /// Take pods' networks away
    ///
    /// Needs neither the manifest nor the network's configuration, and may be repeated. What is the
    /// name of a pod that is up is that pod, whatever files there are.
    Down(Down),
    /// List the pods
    Ls,
    /// Look at a pod: its addresses as they are, and what the plugins' CHECK says
    Status(Named),
    /// Run a command in a pod's network namespace, with its resolv.conf
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
    /// Pods: NAME in the namespace default, or NAMESPACE/NAME; or the manifests that they came
    /// from, - is stdin
    #[arg(required_unless_present = "all", value_name = "POD|FILE", add = ArgValueCompleter::new(names::pods))]
    pub(crate) pods: Vec<String>,
    /// All pods
    #[arg(long, conflicts_with = "pods")]
    pub(crate) all: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Named {
    /// The pod: NAME in the namespace default, or NAMESPACE/NAME
    #[arg(add = ArgValueCompleter::new(names::pods))]
    pub(crate) pod: String,
}

#[derive(Debug, Args)]
pub(crate) struct Exec {
    #[command(flatten)]
    pub(crate) named: Named,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}
