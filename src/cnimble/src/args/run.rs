//! The arguments of `run`.

use std::path::PathBuf;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use super::pod::PodOptions;
use super::service::{Listen, LogFormat};
use crate::names;

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) sources: Sources,
    /// Exit when all pods have been tried once, with status 1 if a pod isn't ready
    #[arg(long, conflicts_with = "teardown_on_exit")]
    pub(crate) once: bool,
    /// Take the pods down on exit
    #[arg(long)]
    pub(crate) teardown_on_exit: bool,
    /// Serve /metrics, /livez, /readyz and /pods on a Unix socket (its path) or a loopback ADDRESS:PORT, or `off`
    /// [default: cnimble.sock in the run directory]
    #[arg(long, value_name = "WHERE")]
    pub(crate) listen: Option<Listen>,
    /// The interval between two checks (the verb CHECK) of a running pod; 0 means never
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub(crate) check_interval: u64,
    /// A network to which only cnimble adds pods; repeatable. Its plugins clean up (the verb GC) after
    /// pods without a record
    #[arg(long, value_name = "NAME", add = ArgValueCompleter::new(names::networks))]
    pub(crate) own_network: Vec<String>,
    /// The number of pods that are worked on at once
    #[arg(long, value_name = "NUMBER", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) parallel: u16,
    /// The format of logs
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    pub(crate) log_format: LogFormat,
    // Last, because its heading holds for all arguments after it.
    #[command(flatten)]
    pub(crate) options: PodOptions,
}

#[derive(Debug, Args)]
pub(crate) struct Sources {
    /// A manifest or a directory of manifests, YAML or JSON. Changes are followed
    #[arg(long, value_name = "DIR|FILE")]
    pub(crate) manifests: Option<PathBuf>,
    /// A URL with manifests. It is read periodically
    #[arg(long)]
    pub(crate) url: Option<String>,
    /// A header for requests to the URL, or a file with one header per line; repeatable. Other users can
    /// see a command line. The file is read for each request
    #[arg(long, value_name = "NAME: VALUE|@FILE", requires = "url")]
    pub(crate) url_header: Vec<String>,
    /// Read pods from the API server of this kubeconfig
    #[arg(long, value_name = "FILE", group = "api")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Read pods from the API server of the cluster that runs this process as a pod
    #[arg(long, group = "api")]
    pub(crate) in_cluster: bool,
    /// Take only pods with the annotation cnimble/managed: "true" from the API server. This is always so
    /// if a kubelet runs on the node
    #[arg(long, requires = "api")]
    pub(crate) only_managed: bool,
    /// Report the status of pods with the annotation cnimble/managed: "true" to the API server, and confirm
    /// their deletion, as a kubelet does
    #[arg(long, requires = "api")]
    pub(crate) write_status: bool,
    /// The interval between two reads of the URL and of the directory
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    pub(crate) poll: u64,
    /// Append the node's name to the names of pods from the directory and the URL, as a kubelet does
    #[arg(long)]
    pub(crate) suffix: bool,
    /// The name of this node, for the API server and for static pods [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub(crate) node_name: Option<String>,
}
