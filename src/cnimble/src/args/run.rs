//! The options of `run`.

use std::path::PathBuf;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use super::pod::PodOptions;
use super::service::{Listen, LogFormat};
use crate::names;

/// What to keep up, and how.
#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) sources: Sources,
    #[command(flatten)]
    pub(crate) options: PodOptions,
    /// Stop when everything has been tried once; exit status 1 if a pod isn't ready then
    #[arg(long, conflicts_with = "teardown_on_exit")]
    pub(crate) once: bool,
    /// Take the pods down in the end
    #[arg(long)]
    pub(crate) teardown_on_exit: bool,
    /// Serve /metrics, /healthz and /pods there: a Unix socket's path, a loopback ADDRESS:PORT,
    /// or `off` [default: cnimble.sock in the run directory]
    #[arg(long, value_name = "WHERE")]
    pub(crate) listen: Option<Listen>,
    /// Seconds between checks of a pod that is up (the verb CHECK); 0 is never
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub(crate) check_interval: u64,
    /// A network that no runtime but cnimble adds pods to: its plugins are asked to clean up (the
    /// verb GC) after pods that no record knows; may be given many times
    #[arg(long, value_name = "NAME", add = ArgValueCompleter::new(names::networks))]
    pub(crate) own_network: Vec<String>,
    /// How many pods are worked on at once
    #[arg(long, value_name = "NUMBER", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) parallel: u16,
    /// How logs look
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    pub(crate) log_format: LogFormat,
}

/// Where pods come from.
#[derive(Debug, Args)]
pub(crate) struct Sources {
    /// A directory of manifests, or a single one, YAML or JSON; it is watched
    #[arg(long, value_name = "DIR|FILE")]
    pub(crate) manifests: Option<PathBuf>,
    /// A URL with manifests; it is asked again and again
    #[arg(long)]
    pub(crate) url: Option<String>,
    /// A header for requests to the URL, or a file of headers, one a line, that is read for each
    /// request: others can see a command line. May be given many times
    #[arg(long, value_name = "NAME: VALUE|@FILE", requires = "url")]
    pub(crate) url_header: Vec<String>,
    /// A kubeconfig: pods come from its API server
    #[arg(long, value_name = "FILE", group = "api")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Pods come from the API server of the cluster whose pod this is, by its service account
    #[arg(long, group = "api")]
    pub(crate) in_cluster: bool,
    /// Of the API server's pods take only those with the annotation cnimble/managed: "true". It is so
    /// in any case where a kubelet runs on the node
    #[arg(long, requires = "api")]
    pub(crate) only_managed: bool,
    /// Tell the API server how pods are that have the annotation cnimble/managed: "true", and
    /// confirm their deletion, as a kubelet does
    #[arg(long, requires = "api")]
    pub(crate) write_status: bool,
    /// Seconds between looks at the URL, and at the directory besides its being watched
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    pub(crate) poll: u64,
    /// Append the node's name to that of pods from directory and URL, as a kubelet does
    #[arg(long)]
    pub(crate) suffix: bool,
    /// The name of this node, for the API server and for static pods [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub(crate) node_name: Option<String>,
}
