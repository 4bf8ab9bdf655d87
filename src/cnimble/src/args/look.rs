//! The arguments of `cnimble ls` and `cnimble tree`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use crate::names;

#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Only this network
    #[arg(add = ArgValueCompleter::new(names::networks))]
    pub(crate) network: Option<String>,
    /// `wide` adds container ID, namespace, the host's link and what is wrong. `name` prints the pods' names alone
    #[arg(short, long, value_enum, value_name = "FORM", conflicts_with = "json")]
    pub(crate) output: Option<Output>,
    /// Leave out the line of headings
    #[arg(long)]
    pub(crate) no_headers: bool,
    /// Ask the container runtime for pod names
    #[arg(long, value_name = "SOCKET", num_args = 0..=1, default_missing_value = "")]
    pub(crate) cri: Option<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    Wide,
    Name,
}

#[derive(Debug, Args)]
pub(crate) struct Tree {
    /// Only this network or pod. A pod is `NAMESPACE/NAME`, a container ID or its beginning, a namespace of `ip netns`
    /// or its path, or an address
    #[arg(value_name = "NETWORK|POD", add = ArgValueCompleter::new(names::networks_and_attached))]
    pub(crate) what: Option<String>,
    /// Draw with ASCII characters only
    #[arg(long, conflicts_with = "svg")]
    pub(crate) ascii: bool,
    /// Write an SVG picture to this file; - is stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Show the doctor's findings at each pod. The exit status is 6 if the picture shows a fault
    #[arg(long)]
    pub(crate) check: bool,
    /// Ask the container runtime for pod names, and do as with --check
    #[arg(long, value_name = "SOCKET", num_args = 0..=1, default_missing_value = "")]
    pub(crate) cri: Option<OsString>,
}
