//! The command-line options of `cnimble node`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use ipnetwork::IpNetwork;

use super::service::{Listen, LogFormat};

/// What a node is to have, and where that is told.
#[derive(Debug, Args)]
pub(crate) struct Node {
    /// A kubeconfig: its API server tells of nodes
    #[arg(long, value_name = "FILE", group = "server")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The API server of the cluster whose pod this is tells of nodes, by its service account
    #[arg(long, group = "server")]
    pub(crate) in_cluster: bool,
    /// Nodes own blocks of a shared subnet in etcd; the file has the keys of `ipam` of the IPAM plugin cluster-local
    #[arg(long, value_name = "FILE", group = "server", conflicts_with_all = ["template", "remove_on_delete"])]
    pub(crate) cluster_local: Option<PathBuf>,
    /// An address by which the other nodes reach this one, for --cluster-local; one of each family may be given
    /// [default: those of the default route's link]
    #[arg(long, value_name = "ADDRESS", requires = "cluster_local")]
    pub(crate) node_ip: Vec<IpAddr>,
    /// The name of this node [default: the host name]
    #[arg(long, value_name = "NAME", env = "NODE_NAME", hide_env_values = true)]
    pub(crate) node_name: Option<String>,
    /// The name of the pods' network, and of its file: 10-NAME.conflist
    #[arg(long, value_name = "NAME", default_value = "cnimble")]
    pub(crate) name: String,
    /// What joins pods to the host [default: bridge; ptp with --cluster-local]
    #[arg(long, value_enum, value_name = "PLUGIN")]
    pub(crate) plugin: Option<Main>,
    /// Make the network's file of this template, as containerd's conf_template has it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["plugin", "mtu"])]
    pub(crate) template: Option<PathBuf>,
    /// The pods' MTU [default: that of the default route's link]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(576..=65535))]
    pub(crate) mtu: Option<u32>,
    /// The dataDir of the IPAM plugin [default: /var/lib/cni/networks]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// A destination besides the cluster's pods that is to see pods' own addresses; may be given many times
    #[arg(long, value_name = "CIDR", conflicts_with = "no_masquerade")]
    pub(crate) non_masquerade_cidr: Vec<IpNetwork>,
    /// Pods have their own addresses wherever they send to
    #[arg(long)]
    pub(crate) no_masquerade: bool,
    /// Remove the network's file when the API server has no such node any more
    #[arg(long)]
    pub(crate) remove_on_delete: bool,
    /// Do it once, and stop; exit status 5 if something could not be done, 6 if something is wrong with this node's own
    /// network; --json tells how much was written
    #[arg(long)]
    pub(crate) once: bool,
    /// Tell what would be there, and stop
    #[arg(long, conflicts_with = "once")]
    pub(crate) dry_run: bool,
    /// Take routes, masquerading and the network's file away, and stop
    #[arg(long, conflicts_with_all = ["once", "dry_run", "server"])]
    pub(crate) remove: bool,
    /// Serve /metrics, /healthz and /nodes there: a Unix socket's path, a loopback ADDRESS:PORT, or `off`
    #[arg(long, value_name = "WHERE", default_value = "/run/cnimble/node.sock")]
    pub(crate) listen: Listen,
    /// Seconds between looks at what is there, besides those when something changes
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) resync: u64,
    /// How logs look
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    pub(crate) log_format: LogFormat,
}

/// What joins pods to the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Main {
    /// A bridge
    Bridge,
    /// A pair for each pod, routed by the host
    Ptp,
}
