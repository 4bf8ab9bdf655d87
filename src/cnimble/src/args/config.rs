//! The arguments of the subcommands for configurations, completions, and manual pages.

use std::path::PathBuf;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use ipnetwork::IpNetwork;

use crate::names;

#[derive(Debug, Args)]
pub(crate) struct Validate {
    /// The network's name, or the path of its file. With --strict it may be - for stdin, or a YAML file with
    /// NetworkAttachmentDefinitions, and its default is all networks
    #[arg(required_unless_present = "strict", add = ArgValueCompleter::new(names::networks))]
    pub(crate) network: Option<String>,
    /// Ignored, because cnitool requires a namespace
    #[arg(hide = true)]
    pub(crate) netns: Option<String>,
    /// Report every fault of the configuration with file, line and column
    #[arg(long)]
    pub(crate) strict: bool,
    /// Check the file alone, without plugins, other networks and the host's routes
    #[arg(long, requires = "strict")]
    pub(crate) offline: bool,
    /// Print the findings in SARIF 2.1.0, for code hosts and editors
    #[arg(long, requires = "strict", conflicts_with = "json")]
    pub(crate) sarif: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Init {
    /// The purpose of the network
    #[arg(value_enum)]
    pub(crate) purpose: Purpose,
    /// The name of the network
    pub(crate) name: String,
    /// The subnet of the network [default: the first free /24 from 10.89.0.0 on]
    #[arg(long, value_name = "CIDR", value_parser = subnet)]
    pub(crate) subnet: Option<IpNetwork>,
    /// For macvlan and dhcp: the host's interface [default: the interface of the default route]
    #[arg(long, value_name = "INTERFACE", add = ArgValueCompleter::new(names::interfaces))]
    pub(crate) master: Option<String>,
    /// Print the configuration and write no file
    #[arg(long)]
    pub(crate) dry_run: bool,
}

fn subnet(text: &str) -> Result<IpNetwork, String> {
    cnimble_cni::cidr::parse_cidr(text)
        .ok_or_else(|| "expected an address and its prefix length, 10.1.2.0/24".to_owned())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Purpose {
    /// A bridge on the host
    Bridge,
    /// A routed veth pair for each pod
    Ptp,
    /// Pods with their own MAC addresses on the network of an interface
    Macvlan,
    /// Like macvlan, with addresses by DHCP
    Dhcp,
    /// A network in podman's form
    Podman,
    /// The default network of containerd and CRI-O
    Containerd,
    /// The default network of k3s without flannel
    K3s,
}

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// A code (`7`), a key (`isGateway`, `ipam.ranges`, `bridge.mtu`), a plugin, a variable (`CNI_ARGS`), or a rule
    /// (`chain-order`)
    #[arg(value_name = "CODE|KEY|RULE", add = ArgValueCompleter::new(names::explained))]
    pub(crate) what: String,
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

/// The shells whose scripts are tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Shell {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Shell::Bash => "bash",
            Shell::Zsh => "zsh",
            Shell::Fish => "fish",
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// The directory for the pages of all commands. Without it the page of `cnimble` is printed
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Schema {
    /// A plugin
    #[arg(add = ArgValueCompleter::new(names::plugins))]
    pub(crate) plugin: Option<String>,
    /// Print the schema of networks with all plugins
    #[arg(long)]
    pub(crate) all: bool,
}
