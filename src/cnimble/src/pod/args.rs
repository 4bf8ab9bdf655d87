//! The command line of `cnimble pod`.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use ipnetwork::IpNetwork;

use cnimble_pod::network::{NetworkOptions, NetworkPlugin};
use cnimble_pod::sandbox::{DnsOptions, PauseCommand, SandboxOptions, Sandboxes};

use crate::Session;
use crate::names;
use crate::report::{Exit, Report};

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
    pub(super) options: PodOptions,
    #[command(subcommand)]
    pub(super) command: PodCommand,
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

impl PodOptions {
    /// Returns the DNS settings of this node.
    pub(crate) fn dns(&self) -> DnsOptions {
        let defaults = DnsOptions::default();
        DnsOptions {
            cluster_dns: self.cluster_dns.clone(),
            cluster_domain: self.cluster_domain.clone(),
            resolv_conf: self.resolv_conf.clone().unwrap_or(defaults.resolv_conf),
        }
    }

    /// Opens the node's sandboxes and the network plugin layer below them. No other runtime adds pods to
    /// `own_networks`.
    pub(crate) async fn open(&self, session: &Session, own_networks: &[String]) -> Result<Sandboxes, Report> {
        let mut invoker = session.invoker.clone();
        if !session.own_cache {
            invoker = invoker.with_cache_dir(self.state_dir.join("cni"));
        }
        let mut options = NetworkOptions::new(session.conf.dir(), invoker);
        options.pod_cidrs.clone_from(&self.pod_cidr);
        options.own_networks = own_networks.to_vec();
        if session.timeout > Duration::ZERO {
            options.operation_limit = session.timeout;
            options.gc_limit = options.gc_limit.min(session.timeout);
        }
        let network = NetworkPlugin::open(options).await;
        let mut options = SandboxOptions::new(&self.state_dir, &self.run_dir);
        options.cgroup_root.clone_from(&self.cgroup_root);
        if self.pause {
            let program = std::env::current_exe().map_err(|err| {
                Report::new(Exit::Files, "can't find this program's own file").row("why", err.to_string())
            })?;
            options.pause = Some(PauseCommand { program, args: vec!["pod".into(), "pause".into()] });
        }
        Sandboxes::open(options, network).await.map_err(|err| {
            Report::new(Exit::Files, "can't use the directories for pods")
                .row("why", err.to_string())
                .hint("run it as root, or name others with --state-dir and --run-dir")
        })
    }
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
    pub(super) files: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Down {
    /// Pods: NAME in the namespace default, or NAMESPACE/NAME; or the manifests that they came
    /// from, - is stdin
    #[arg(required_unless_present = "all", value_name = "POD|FILE", add = ArgValueCompleter::new(names::pods))]
    pub(super) pods: Vec<String>,
    /// All pods
    #[arg(long, conflicts_with = "pods")]
    pub(super) all: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Named {
    /// The pod: NAME in the namespace default, or NAMESPACE/NAME
    #[arg(add = ArgValueCompleter::new(names::pods))]
    pub(super) pod: String,
}

#[derive(Debug, Args)]
pub(crate) struct Exec {
    #[command(flatten)]
    pub(super) named: Named,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}
