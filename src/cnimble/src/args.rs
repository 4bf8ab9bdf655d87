//! The command line. Parser, help, completion and manual come from these types.

/// Formats examples for the help of a subcommand and its page in the manual.
macro_rules! examples {
    ($($line:literal),+ $(,)?) => {
        concat!("Examples:", $("\n  ", $line),+)
    };
}

pub(crate) mod config;
pub(crate) mod cri;
pub(crate) mod doctor;
pub(crate) mod follow;
pub(crate) mod help;
pub(crate) mod ipam;
pub(crate) mod look;
pub(crate) mod network;
pub(crate) mod node;
pub(crate) mod pod;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod service;
pub(crate) mod trace;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::engine::ArgValueCompleter;

use super::names;
use super::report::{Report, usage};
use config::{Completions, Explain, Init, Man, Schema, Validate};
use cri::Cri;
use doctor::{Doctor, Guard, HandOver};
use follow::{Events, Stats};
use ipam::Ipam;
use look::{Ls, Tree};
use network::Network;
use node::Node;
use pod::Pod;
use run::Run;
use serve::Serve;
use service::LogFormat;
use trace::Trace;

const EXAMPLES: &str = "\
Examples:
  Attach a network namespace to the network \"demo\", and detach it again:
      ip netns add blue
      cnimble add demo blue
      ip netns exec blue ip address
      cnimble del demo blue

  Use plugins and configurations from other directories, and publish a port:
      cnimble add demo blue --cni-path /usr/lib/cni --conf-dir ./net.d \\
          --cap-args '{\"portMappings\":[{\"hostPort\":8080,\"containerPort\":80,\"protocol\":\"tcp\"}]}'

  List networks, attachments and plugins, and check a network:
      cnimble networks
      cnimble ls
      cnimble plugins
      cnimble validate demo

Exit status:
  0  success
  1  a plugin or the container runtime refused; its message and code are shown
  2  the command line or an environment variable is wrong, or names an unknown
     pod, container, namespace or key
  3  the network is unknown; a configuration, manifest or kubeconfig is missing
     or wrong; or validate --strict has findings
  4  a plugin, the container runtime or the API server is missing, can't be run
     or reached, gave no proper answer, or lacks the version
  5  a file of the node, a socket or stdout can't be read or written, or only
     root may do it
  6  doctor, tree --check or --cri, cri status, cri inspect or pod status has
     findings; or doctor has warnings; or node --once found a fault in the
     node's own network; or trace found what stops the packet
  7  doctor, gc --gone or gc --cri could not repair everything; or hand-over or
     network rm left something; or the record of a del stays
  8  trace cannot know whether the packet passes
  129, 130, 143
     stopped by SIGHUP, SIGINT or SIGTERM; an unfinished add was rolled back";

const COMMON: &str = "Options of all commands";

/// Attach containers to networks with CNI plugins.
///
/// A network is a file in the configuration directory. It lists the plugins that run one
/// after another. A container is a network namespace. The environment variables of cnitool
/// work. A flag overrides its variable.
#[derive(Debug, Parser)]
#[command(name = "cnimble", version = help::VERSION, after_long_help = EXAMPLES)]
pub(super) struct Cli {
    #[command(flatten)]
    pub(super) global: Global,
    /// The interface, before the verb.
    #[arg(short = 'i', hide = true, value_name = "NAME")]
    pub(super) ifname: Option<String>,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Args)]
#[command(next_help_heading = COMMON)]
pub(super) struct Global {
    /// Plugin directories, separated by `:` [default: /opt/cni/bin:/usr/lib/cni]
    #[arg(long, global = true, value_name = "DIRS", env = "CNI_PATH", hide_env_values = true)]
    pub(super) cni_path: Option<OsString>,
    /// The directory with network configurations [default: /etc/cni/net.d]
    #[arg(long, global = true, value_name = "DIR", env = "NETCONFPATH", hide_env_values = true)]
    pub(super) conf_dir: Option<OsString>,
    /// The directory for results of ADD, which are stored in `results` below it [default: /var/lib/cni]
    #[arg(long, global = true, value_name = "DIR")]
    pub(super) cache_dir: Option<PathBuf>,
    /// The directory with the locks of networks. All callers on a node need the same directory
    /// [default: /run/cnimble/locks]
    #[arg(long, global = true, value_name = "DIR", env = "CNIMBLE_LOCK_DIR", hide_env_values = true)]
    pub(super) lock_dir: Option<OsString>,
    /// The time limit for one run of a plugin; 0 means no limit
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 0)]
    pub(super) timeout: u64,
    /// Print results and errors as JSON
    #[arg(long, global = true)]
    pub(super) json: bool,
}

impl Cli {
    /// Moves an `--ifname` given before the verb to the arguments of the verb.
    pub(super) fn place_ifname(&mut self) -> Result<(), Report> {
        let Some(ifname) = self.ifname.take() else { return Ok(()) };
        match &mut self.command {
            Command::Add(given) => {
                given.ifname.get_or_insert(ifname);
                Ok(())
            }
            Command::Del(given) | Command::Check(given) => {
                given.attachment.ifname.get_or_insert(ifname);
                Ok(())
            }
            _ => Err(usage("-i is for add, del and check")),
        }
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Attach a network namespace to a network
    ///
    /// Prints the result as text on a terminal, or else as CNI JSON. If a plugin fails, the
    /// other plugins undo their changes.
    #[command(after_long_help = examples!["ip netns add blue", "cnimble add demo blue"])]
    Add(Attachment),
    /// Detach a network namespace from a network
    ///
    /// Goes by the record of `add` in the cache, and works without the namespace and the network's
    /// file. If a plugin fails, the other plugins still run.
    #[command(after_long_help = examples![
        "cnimble del demo blue",
        "cnimble del demo --container-id abc -i net1",
    ])]
    Del(Existing),
    /// Check that an attachment is as `add` left it
    #[command(after_long_help = examples!["cnimble check demo blue"])]
    Check(Existing),
    /// Remove the remains of invalid attachments
    ///
    /// A list names the valid attachments. Without a list nothing is deleted.
    #[command(after_long_help = examples!["cnimble gc demo --gone", "cnimble gc demo --cri --yes"])]
    Gc(Gc),
    /// Ask a network's plugins whether they can attach a container now
    #[command(after_long_help = examples!["cnimble status demo"])]
    Status(NetworkArgs),
    /// Check that a network's plugins exist and support its version
    ///
    /// With --strict the configuration is checked, too. It reports misspelt keys, wrong types
    /// and values, overlapping subnets, plugins in a wrong order, and capabilities that no
    /// plugin takes.
    #[command(after_long_help = examples![
        "cnimble validate demo",
        "cnimble validate --strict --offline ./demo.conflist",
    ])]
    Validate(Validate),
    /// Write the configuration of a new network with a free subnet
    #[command(after_long_help = examples![
        "cnimble init bridge demo --dry-run",
        "cnimble init ptp demo --subnet 10.1.2.0/24",
    ])]
    Init(Init),
    /// Print the JSON Schema of configurations, for editors
    #[command(after_long_help = examples!["cnimble schema bridge", "cnimble schema --all >network.json"])]
    Schema(Schema),
    /// Explain an error code, a key, or a rule of `validate --strict`
    #[command(after_long_help = examples![
        "cnimble explain 101",
        "cnimble explain ipam.ranges",
        "cnimble explain bridge.mtu",
    ])]
    Explain(Explain),
    /// Print the version, and the versions of the CNI specification
    #[command(after_long_help = examples!["cnimble version", "cnimble version --json"])]
    Version,
    /// Print the completion script of a shell
    #[command(after_long_help = examples![
        "cnimble completions bash >/etc/bash_completion.d/cnimble",
    ])]
    Completions(Completions),
    /// Print the manual page, or write the pages of all commands
    #[command(after_long_help = examples![
        "cnimble man | man -l -",
        "cnimble man /usr/local/share/man/man1",
    ])]
    Man(Man),
    /// List the plugins and their CNI versions
    #[command(after_long_help = examples!["cnimble plugins", "cnimble plugins --cni-path /usr/lib/cni"])]
    Plugins,
    /// List, show and remove networks; `networks` lists them, too
    #[command(after_long_help = examples!["cnimble network inspect demo", "cnimble network rm demo"])]
    Network(Network),
    /// The same as `network ls`
    #[command(after_long_help = examples!["cnimble networks"])]
    Networks,
    /// List attachments: pod, network, addresses, MAC, ports, age, state
    ///
    /// Addresses, MAC and state are the kernel's. Ports and age are those of the record of `add`.
    #[command(after_long_help = examples![
        "cnimble ls",
        "cnimble ls demo -o wide",
        "cnimble ls -o name",
    ])]
    Ls(Ls),
    /// Draw networks: bridges, ports, pods, addresses, routes, rules
    ///
    /// Shows the state of the kernel. The names of pods come from the cache, and from the
    /// owners that cnimble's plugins write on links and rules.
    #[command(after_long_help = examples![
        "cnimble tree",
        "cnimble tree shop/web",
        "cnimble tree --svg networks.svg",
    ])]
    Tree(Tree),
    /// Follow attachments: add, del, failed and repaired
    ///
    /// Each has its duration, if that is known. Supports all plugins and runtimes. Runs until a signal stops it. With --json it
    /// prints one object per line.
    #[command(after_long_help = examples!["cnimble events", "cnimble events --network demo --json"])]
    Events(Events),
    /// Show live counters of pods: bytes, packets, drops
    ///
    /// Drops of the bandwidth plugin's limits stand in columns of their own.
    #[command(after_long_help = examples!["cnimble stats", "cnimble stats web --once --json"])]
    Stats(Stats),
    /// Find what stops a packet from a pod, or to a published port
    ///
    /// Sends one packet, captures it on the links of its way, and traces it through the rules of
    /// nf_tables. Asks the kernel at each station: routes, links, neighbours, ports of bridges,
    /// forwarding.
    #[command(after_long_help = examples![
        "cnimble trace shop/web 10.7.0.1",
        "cnimble trace shop/web shop/db:5432",
        "cnimble trace blue internet --full-size",
        "cnimble trace blue internet --no-probe --json",
        "cnimble trace --from 192.0.2.9 10.7.0.2:8080",
    ])]
    Trace(Trace),
    /// Find orphaned leases, links, packet rules and cache entries
    ///
    /// Changes nothing without --repair. With it, orphans are removed, and living pods get
    /// lost packet rules back. An object stays if its pod lives or may live.
    #[command(after_long_help = examples!["cnimble doctor", "cnimble doctor --cri --repair"])]
    Doctor(Doctor),
    /// Put back at once what living pods lose on the host
    ///
    /// It acts as soon as the kernel reports a change, and repairs what `doctor --repair` repairs of
    /// living pods: packet rules, bridges, addresses and settings of the host. A flush of the
    /// ruleset or a reload of a firewall is repaired within a second. If another program removes the
    /// repairs of a network twenty times in a row, within ten seconds each, the network is left
    /// alone for ten minutes. SIGHUP looks at once. SIGINT or SIGTERM stops it.
    #[command(after_long_help = examples!["cnimble guard"])]
    Guard(Guard),
    /// Convert the rules of living pods for the Go plugins
    ///
    /// Call it before you install them. DEL of the Go plugins removes only their own rules. So each
    /// pod gets its packet rules in their form, by iptables, and cnimble's tables are removed. No
    /// connection is lost. Changes nothing without --yes. `scripts/install --uninstall` runs it.
    #[command(after_long_help = examples!["cnimble hand-over", "cnimble hand-over --yes"])]
    HandOver(HandOver),
    /// Pods on the default network, as a kubelet sets them up
    Pod(Pod),
    /// The pods of the container runtime, by CRI: containerd, CRI-O, k3s
    Cri(Cri),
    /// Set up, list and release a cluster's addresses (cluster-local)
    #[command(after_long_help = examples!["cnimble ipam blocks pods"])]
    Ipam(Ipam),
    /// Keep the pods of manifests up, as a kubelet does
    ///
    /// Reads pods from a directory, a URL or the Kubernetes API server. Each pod gets a network
    /// namespace and a network. Changes are followed and faults repaired. SIGINT or SIGTERM
    /// stops it, and pods keep their networks. SIGHUP reads everything again.
    #[command(after_long_help = examples![
        "cnimble run --manifests /etc/kubernetes/manifests",
        "cnimble run --kubeconfig kubeconfig --only-managed",
    ])]
    Run(Box<Run>),
    /// Serve CRI, the kubelet's interface, for pod sandboxes only
    ///
    /// A CRI client such as crictl creates, lists and removes network namespaces of pods with
    /// their networks. There are no containers and no images. SIGINT or SIGTERM stops it after
    /// the running calls, and sandboxes stay. SIGHUP reads the networks again.
    Serve(Box<Serve>),
    /// Maintain the network of a cluster's node: routes, masquerading
    ///
    /// Reads the nodes from a Kubernetes API server. Writes the configuration of the pods'
    /// network for this node's podCIDRs. Keeps a route to the pods of each other node. Traffic
    /// that leaves the cluster gets the node's address. All nodes must be on one link. SIGINT
    /// or SIGTERM stops it, and its routes, rules and files stay.
    #[command(after_long_help = examples![
        "cnimble node --kubeconfig /etc/kubernetes/kubelet.conf --once --dry-run",
        "cnimble node --in-cluster",
    ])]
    Node(Box<Node>),
}

impl Command {
    pub(super) fn log_format(&self) -> LogFormat {
        match self {
            Command::Run(given) => given.log_format,
            Command::Serve(given) => given.log_format,
            Command::Node(given) => given.log_format,
            Command::Guard(given) => given.log_format,
            _ => LogFormat::default(),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Leases {
    /// A lease directory of host-local; repeatable [default: /var/lib/cni/networks and the
    /// directories that networks name]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct Attachment {
    /// The network's name, or the path of its file
    #[arg(add = ArgValueCompleter::new(names::networks))]
    pub(super) network: String,
    /// The namespace: a path, or a name from `ip netns`. `del` needs none if --container-id is given
    #[arg(add = ArgValueCompleter::new(names::namespaces))]
    pub(super) netns: Option<String>,
    /// The interface inside the namespace [env: CNI_IFNAME] [default: eth0]
    #[arg(short, long, value_name = "NAME", add = ArgValueCompleter::new(names::attached_interfaces))]
    pub(super) ifname: Option<String>,
    /// The container ID [default: as cnitool, a hash of the namespace's path]
    #[arg(long, value_name = "ID", add = ArgValueCompleter::new(names::containers))]
    pub(super) container_id: Option<String>,
    /// Arguments for the plugins: `KEY=VALUE;KEY=VALUE`
    #[arg(long, value_name = "ARGS", env = "CNI_ARGS", hide_env_values = true)]
    pub(super) args: Option<String>,
    /// Capability arguments, a JSON object: `{"portMappings": […]}`
    #[arg(long, value_name = "JSON", env = "CAP_ARGS", hide_env_values = true)]
    pub(super) cap_args: Option<String>,
}

/// The arguments of a verb for an attachment that `add` made.
#[derive(Debug, Args)]
pub(super) struct Existing {
    #[command(flatten)]
    pub(super) attachment: Attachment,
    /// Go by the network's file, also if the cache has the configuration of `add`. What other
    /// plugins made stays
    #[arg(long)]
    pub(super) from_file: bool,
}

/// The arguments of a verb for one network.
#[derive(Debug, Args)]
pub(super) struct NetworkArgs {
    /// The network's name, or the path of its file
    #[arg(add = ArgValueCompleter::new(names::networks))]
    pub(super) network: String,
    /// Ignored, because cnitool requires a namespace
    #[arg(hide = true)]
    pub(super) netns: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct Gc {
    #[command(flatten)]
    pub(super) named: NetworkArgs,
    #[command(flatten)]
    pub(super) valid: Valid,
    /// With --gone and --cri: ignore younger leases and rules without other evidence. With --cri it is
    /// also the time between the two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub(super) grace: u64,
    /// With --gone and --cri: a lease directory of host-local; repeatable [default: /var/lib/cni/networks
    /// and the directories that networks name]
    #[arg(long, value_name = "DIR")]
    pub(super) data_dir: Vec<PathBuf>,
    /// Delete by the network's file, also if the cache has the configuration of `add`. What other
    /// plugins made stays
    #[arg(long, conflicts_with_all = ["gone", "cri"])]
    pub(super) from_file: bool,
    /// With --cri: clean up. Without it the command only reports
    #[arg(long, requires = "cri")]
    pub(super) yes: bool,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
pub(super) struct Valid {
    /// A valid attachment; repeatable
    #[arg(long, value_name = "CONTAINER_ID/IFNAME")]
    pub(super) valid: Vec<String>,
    /// A file with the valid attachments: `[{"containerID": "…", "ifname": "eth0"}]`; - is stdin
    #[arg(long, value_name = "FILE")]
    pub(super) valid_file: Option<PathBuf>,
    /// Clean up what the doctor finds in this network. An object stays if its pod lives or may live
    #[arg(long)]
    pub(super) gone: bool,
    /// Like --gone, but every sandbox that the container runtime lists is valid, too. Looks twice, with
    /// the grace period between. Changes nothing without --yes
    #[arg(long, value_name = "SOCKET", num_args = 0..=1, default_missing_value = "")]
    pub(super) cri: Option<OsString>,
    /// No attachment is valid: clean up everything of this network
    #[arg(long)]
    pub(super) all: bool,
}
