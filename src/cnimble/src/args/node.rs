//! The arguments of `node`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use ipnetwork::IpNetwork;

use super::service::{Listen, LogFormat};

/// The wanted network of a node, and the source of the list of nodes.
#[derive(Debug, Args)]
pub(crate) struct Node {
    /// Read the nodes from the API server of this kubeconfig. With --cluster-local it only tells which nodes are
    /// gone for good, so that their blocks return
    #[arg(long, value_name = "FILE", group = "server")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Read the nodes from the API server of the cluster that runs this process as a pod
    #[arg(long, group = "server")]
    pub(crate) in_cluster: bool,
    /// Read the nodes from the cluster's store (etcd or Kubernetes), where they own blocks of a shared subnet.
    /// The file has the `ipam` keys of the IPAM plugin cluster-local
    #[arg(long, value_name = "FILE", conflicts_with_all = ["template", "remove_on_delete"])]
    pub(crate) cluster_local: Option<PathBuf>,
    /// With --cluster-local: an address of this node that the other nodes reach, one per family; repeatable
    /// [default: the addresses of the default route's link]
    #[arg(long, value_name = "ADDRESS", requires = "cluster_local")]
    pub(crate) node_ip: Vec<IpAddr>,
    /// The name of this node [default: the host name]
    #[arg(long, value_name = "NAME", env = "NODE_NAME", hide_env_values = true)]
    pub(crate) node_name: Option<String>,
    /// The name of the pods' network. Its file is 10-NAME.conflist
    #[arg(long, value_name = "NAME", default_value = "cnimble")]
    pub(crate) name: String,
    /// The plugin that joins pods to the host [default: bridge; ptp with --cluster-local]
    #[arg(long, value_enum, value_name = "PLUGIN")]
    pub(crate) plugin: Option<Main>,
    /// Write the configuration from this template, in the form of containerd's conf_template
    #[arg(long, value_name = "FILE", conflicts_with_all = ["plugin", "mtu"])]
    pub(crate) template: Option<PathBuf>,
    /// The pods' MTU [default: the MTU of the default route's link]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(576..=65535))]
    pub(crate) mtu: Option<u32>,
    /// The dataDir of the IPAM plugin [default: /var/lib/cni/networks]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// A destination outside the cluster that sees the pods' own addresses; repeatable
    #[arg(long, value_name = "CIDR", conflicts_with = "no_masquerade")]
    pub(crate) non_masquerade_cidr: Vec<IpNetwork>,
    /// Keep the pods' own addresses for all destinations
    #[arg(long)]
    pub(crate) no_masquerade: bool,
    /// Remove the network's file when the API server deletes this node
    #[arg(long)]
    pub(crate) remove_on_delete: bool,
    /// Do the work once and exit, with status 5 after a failure, or 6 for a fault in this node's own
    /// network. --json prints the number of writes
    #[arg(long)]
    pub(crate) once: bool,
    /// Print the planned state and exit
    #[arg(long, conflicts_with = "once")]
    pub(crate) dry_run: bool,
    /// Remove routes, masquerading and the network's file, and exit
    #[arg(long, conflicts_with_all = ["once", "dry_run", "server", "cluster_local"])]
    pub(crate) remove: bool,
    /// Serve /metrics, /livez, /readyz and /nodes on a Unix socket (its path) or a loopback ADDRESS:PORT, or `off`
    #[arg(long, value_name = "WHERE", default_value = "/run/cnimble/node.sock")]
    pub(crate) listen: Listen,
    /// The time between two checks of the host without a change
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) resync: u64,
    /// The format of logs
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    pub(crate) log_format: LogFormat,
}

/// The plugin that joins pods to the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Main {
    /// A bridge
    Bridge,
    /// A routed veth pair for each pod
    Ptp,
}
