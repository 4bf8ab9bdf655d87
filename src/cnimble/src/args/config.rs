//! The options of the subcommands for configurations, completions, and manual pages.

use std::path::PathBuf;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use ipnetwork::IpNetwork;

use crate::names;

/// What to look at, and how closely.
#[derive(Debug, Args)]
pub(crate) struct Validate {
    /// The network's name, or the path of its file. With --strict - is stdin, and without it all networks
    /// are looked at
    #[arg(required_unless_present = "strict", add = ArgValueCompleter::new(names::networks))]
    pub(crate) network: Option<String>,
    /// Ignored; cnitool wants it
    #[arg(hide = true)]
    pub(crate) netns: Option<String>,
    /// Find every fault of the configuration, and say file, line and column
    #[arg(long)]
    pub(crate) strict: bool,
    /// Look at the file alone: no plugin is asked, and neither the host's routes nor other networks count
    #[arg(long, requires = "strict")]
    pub(crate) offline: bool,
    /// Print the findings in SARIF 2.1.0, for code hosts and editors
    #[arg(long, requires = "strict", conflicts_with = "json")]
    pub(crate) sarif: bool,
}

/// Which network.
#[derive(Debug, Args)]
pub(crate) struct Init {
    /// What it is for
    #[arg(value_enum)]
    pub(crate) purpose: Purpose,
    /// Its name
    pub(crate) name: String,
    /// Its addresses [default: the first free /24 from 10.89.0.0 on]
    #[arg(long, value_name = "CIDR", value_parser = subnet)]
    pub(crate) subnet: Option<IpNetwork>,
    /// macvlan, dhcp: the host's interface [default: that of the default route]
    #[arg(long, value_name = "INTERFACE", add = ArgValueCompleter::new(names::interfaces))]
    pub(crate) master: Option<String>,
    /// Print the file instead
    #[arg(long)]
    pub(crate) dry_run: bool,
}

fn subnet(text: &str) -> Result<IpNetwork, String> {
    cnimble_cni::cidr::parse_cidr(text)
        .ok_or_else(|| "expected an address and its prefix length, 10.1.2.0/24".to_owned())
}

/// What a network is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Purpose {
    /// A bridge of the host
    Bridge,
    /// A routed pair for each pod
    Ptp,
    /// MACs of their own on an interface's network
    Macvlan,
    /// The same, with addresses by DHCP
    Dhcp,
    /// A network of podman's
    Podman,
    /// The default network of containerd and CRI-O
    Containerd,
    /// The default network of k3s without flannel
    K3s,
}

/// What to explain.
#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// A code (`7`), a key (`isGateway`, `ipam.ranges`, `bridge.mtu`), or a rule (`chain-order`)
    #[arg(value_name = "CODE|KEY|RULE", add = ArgValueCompleter::new(names::explained))]
    pub(crate) what: String,
}

/// For which shell.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

/// Where to.
#[derive(Debug, Args)]
pub(crate) struct Man {
    /// A directory for the pages of all commands; without it that of `cnimble` is printed
    pub(crate) dir: Option<PathBuf>,
}

/// Of what.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Schema {
    /// A plugin
    #[arg(add = ArgValueCompleter::new(names::plugins))]
    pub(crate) plugin: Option<String>,
    /// Networks with all plugins
    #[arg(long)]
    pub(crate) all: bool,
}
