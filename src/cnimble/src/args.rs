//! The arguments and subcommands of the command line.

pub(crate) mod config;
pub(crate) mod cri;
pub(crate) mod follow;
pub(crate) mod ipam;
pub(crate) mod node;
pub(crate) mod pod;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod service;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::engine::ArgValueCompleter;

use super::names;
use super::report::{Report, usage};
use config::{Completions, Explain, Init, Man, Schema, Validate};
use cri::Cri;
use follow::{Events, Stats};
use ipam::Ipam;
use node::Node;
use pod::Pod;
use run::Run;
use serve::Serve;
use service::LogFormat;

const EXAMPLES: &str = "\
Examples:
  Give a network namespace an interface in the network \"demo\", and take it away again:
      ip netns add blue
      cnimble add demo blue
      ip netns exec blue ip address
      cnimble del demo blue

  With plugins and configuration from elsewhere, and a published port:
      cnimble add demo blue --cni-path /usr/lib/cni --conf-dir ./net.d \\
          --cap-args '{\"portMappings\":[{\"hostPort\":8080,\"containerPort\":80,\"protocol\":\"tcp\"}]}'

  What is there, and would it work?
      cnimble networks
      cnimble plugins
      cnimble validate demo

Exit status:
  0  done
  1  a plugin or the container runtime refused; its text and code are shown
  2  the command line or an environment variable is wrong, or names an unknown pod,
     container, namespace or key
  3  the network is unknown, or a configuration, manifest or kubeconfig is missing or wrong;
     validate --strict found something
  4  a plugin, the container runtime or the API server is missing, can't be run or reached,
     gave no proper answer, or lacks the version
  5  a file of the node, a socket or stdout can't be read or written, or takes root
  6  doctor, cri status, cri inspect or pod status found something; node --once: something
     is wrong with the node's own network
  7  doctor could not repair everything; hand-over left something
  129, 130, 143
     stopped by SIGHUP, SIGINT, SIGTERM; an unfinished add was rolled back";

const COMMON: &str = "Options of all commands";

/// Attach containers to networks with CNI plugins.
///
/// A network is a file in the configuration directory that names a chain of plugins; a
/// container is a network namespace. The environment variables of cnitool work, and
/// flags override them.
#[derive(Debug, Parser)]
#[command(
    name = "cnimble",
    version = concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("CNIMBLE_COMMIT"), ", CNI specification 0.1.0 to 1.1.0)"),
    after_long_help = EXAMPLES,
    after_help = "`cnimble --help` has examples and the exit status.",
)]
pub(super) struct Cli {
    #[command(flatten)]
    pub(super) global: Global,
    /// The interface, before the verb.
    #[arg(short = 'i', hide = true, value_name = "NAME")]
    pub(super) ifname: Option<String>,
    #[command(subcommand)]
    pub(super) command: Command,
}

/// Options of all subcommands.
#[derive(Debug, Args)]
pub(super) struct Global {
    /// Directories with plugins, separated by `:` [default: /opt/cni/bin:/usr/lib/cni]
    #[arg(long, global = true, help_heading = COMMON, value_name = "DIRS", env = "CNI_PATH", hide_env_values = true)]
    pub(super) cni_path: Option<OsString>,
    /// Directory with network configurations [default: /etc/cni/net.d]
    #[arg(long, global = true, help_heading = COMMON, value_name = "DIR", env = "NETCONFPATH", hide_env_values = true)]
    pub(super) conf_dir: Option<OsString>,
    /// Directory under which results are kept, in `results` [default: /var/lib/cni]
    #[arg(long, global = true, help_heading = COMMON, value_name = "DIR")]
    pub(super) cache_dir: Option<PathBuf>,
    /// Directory with the locks of networks, the same for all that work on this node
    /// [default: /run/cnimble/locks]
    #[arg(long, global = true, help_heading = COMMON, value_name = "DIR", env = "CNIMBLE_LOCK_DIR", hide_env_values = true)]
    pub(super) lock_dir: Option<OsString>,
    /// Seconds that one execution of a plugin may take; 0 is no limit
    #[arg(long, global = true, help_heading = COMMON, value_name = "SECONDS", default_value_t = 0)]
    pub(super) timeout: u64,
    /// Print JSON, errors too
    #[arg(long, global = true, help_heading = COMMON)]
    pub(super) json: bool,
}

impl Cli {
    /// Moves an `--ifname` given before the verb to the arguments of the verb.
    pub(super) fn place_ifname(&mut self) -> Result<(), Report> {
        let Some(ifname) = self.ifname.take() else { return Ok(()) };
        match &mut self.command {
            Command::Add(given) | Command::Del(given) | Command::Check(given) => {
                given.ifname.get_or_insert(ifname);
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
    /// Prints the result: for people on a terminal, as CNI JSON elsewhere. If a plugin
    /// fails, what was made until then is taken back.
    Add(Attachment),
    /// Detach a network namespace from a network
    ///
    /// Needs neither the namespace nor the configuration to exist still: the cache knows
    /// what was added. Goes on past a plugin that fails.
    Del(Attachment),
    /// Check that an attachment is still as `add` left it
    Check(Attachment),
    /// Clean up after attachments that are gone
    ///
    /// The list of valid attachments decides. Without a list nothing is deleted.
    Gc(Gc),
    /// Ask a network's plugins whether they could attach a container now
    Status(Named),
    /// Check that a network's plugins are there and support its version
    ///
    /// With --strict also that its configuration is sound: misspelt keys, wrong types and values, subnets
    /// that overlap, plugins in a useless order, capabilities that no plugin takes.
    Validate(Validate),
    /// Write the file of a new network, with a free subnet, and check it
    Init(Init),
    /// Print the JSON Schema of configurations, for editors
    Schema(Schema),
    /// Explain an error code, a key of a configuration, or a rule of `validate --strict`
    Explain(Explain),
    /// Print the completions for a shell
    Completions(Completions),
    /// Print the manual page, or write those of all commands
    Man(Man),
    /// List the plugins with the CNI versions that they support
    Plugins,
    /// List the networks, and what is wrong with those that can't be used
    Networks,
    /// Draw the node's networks: bridges, ports, pods, addresses, routes, packet rules
    ///
    /// Shows what the kernel has. Whose it is comes from the cache, which knows the pods of
    /// any plugins, and from what our plugins write on links and rules.
    Tree(Tree),
    /// Follow what happens to attachments: add, del, failed, repaired, and how long it took
    ///
    /// By any plugins and any runtime. Runs until it is stopped; with --json it prints an object a line.
    Events(Events),
    /// Show pods' counters, live: bytes, packets, drops, and what bandwidth limits drop
    Stats(Stats),
    /// Find orphans: leases, links, packet rules and cache entries without a pod
    ///
    /// Looks only, unless --repair is given. What lives, or may live, is left alone; pods that
    /// live and have lost their packet rules get them back.
    Doctor(Doctor),
    /// Hand the rules of living pods over to the Go plugins, before those take our place
    ///
    /// Their DEL removes what they make, and nothing from our tables. So each pod gets its packet
    /// rules in their form, by iptables, and our tables go; no connection is lost. Looks only, unless
    /// --yes is given. `scripts/install --uninstall` runs it.
    HandOver(HandOver),
    /// Pods on the default network, the kubelet's way
    Pod(Pod),
    /// The container runtime's pods, by CRI: containerd, CRI-O, k3s
    Cri(Cri),
    /// A cluster's addresses: set up, list, release (IPAM plugin cluster-local)
    Ipam(Ipam),
    /// Keep the pods of manifests up, as a kubelet does
    ///
    /// Reads pods from a directory, a URL or the Kubernetes API server, gives each its network
    /// namespace and its network, follows changes, and repairs what breaks. Runs until it is
    /// stopped by SIGINT or SIGTERM; pods keep their networks then. SIGHUP reads everything again.
    Run(Box<Run>),
    /// Serve CRI, the kubelet's interface to container runtimes, for pod sandboxes only
    ///
    /// A client of CRI, such as crictl, makes, lists and removes pods' network namespaces with their
    /// networks; there are no containers and no images. Runs until it is stopped by SIGINT or SIGTERM,
    /// which let the calls under way end; sandboxes stay. SIGHUP reads the networks again.
    Serve(Box<Serve>),
    /// Look after a node of a cluster: routes to other nodes' pods, masquerading, the runtime's network
    ///
    /// Asks a Kubernetes API server for nodes, writes the file of the pods' network for this node's podCIDRs,
    /// keeps a route to each other node's pods, and gives what leaves the cluster the node's address. All nodes
    /// have to be on one link. Runs until it is stopped by SIGINT or SIGTERM; what it has made stays then.
    Node(Box<Node>),
}

impl Command {
    /// Returns the log format of a long-running subcommand.
    pub(super) fn log_format(&self) -> LogFormat {
        match self {
            Command::Run(given) => given.log_format,
            Command::Serve(given) => given.log_format,
            Command::Node(given) => given.log_format,
            _ => LogFormat::default(),
        }
    }
}

/// How to draw.
#[derive(Debug, Args)]
pub(super) struct Tree {
    /// Draw with ASCII letters only
    #[arg(long, conflicts_with = "svg")]
    pub(super) ascii: bool,
    /// Write an SVG picture to this file instead; - is stdout
    #[arg(long, value_name = "FILE")]
    pub(super) svg: Option<PathBuf>,
    /// Note at each pod what the doctor finds about it
    #[arg(long)]
    pub(super) check: bool,
    /// Ask the container runtime, too: names of pods, and what the doctor finds about them
    #[arg(long, value_name = "SOCKET", num_args = 0..=1, default_missing_value = "")]
    pub(super) cri: Option<OsString>,
}

/// What to look at, and what to do.
#[derive(Debug, Args)]
pub(super) struct Doctor {
    /// Repair what was found
    #[arg(long)]
    pub(super) repair: bool,
    /// Repair living pods inside their namespaces, too: addresses, routes, an interface that is down
    #[arg(long, requires = "repair")]
    pub(super) pods: bool,
    /// A directory of host-local, instead of the usual ones; may be given many times
    /// [default: /var/lib/cni/networks and those that networks name]
    #[arg(long, value_name = "DIR")]
    pub(super) data_dir: Vec<PathBuf>,
    /// Leave alone what is younger than this: it may be of an `add` that isn't finished
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub(super) grace: u64,
    /// Ask the container runtime, too: its sandboxes speak for what bears their IDs, and are looked at
    /// themselves
    #[arg(long, value_name = "SOCKET", num_args = 0..=1, default_missing_value = "")]
    pub(super) cri: Option<OsString>,
}

/// What is handed over, and how.
#[derive(Debug, Args)]
pub(super) struct HandOver {
    /// Do it. If something can't be handed over, nothing is changed
    #[arg(long)]
    pub(super) yes: bool,
    /// Hand over what can be; the rest stays in our tables, where the Go plugins won't find it
    #[arg(long, requires = "yes")]
    pub(super) force: bool,
    /// A directory of host-local, instead of the usual ones; may be given many times
    /// [default: /var/lib/cni/networks and those that networks name]
    #[arg(long, value_name = "DIR")]
    pub(super) data_dir: Vec<PathBuf>,
    /// Directory for what is known of pods of `cnimble pod` and `cnimble run`
    #[arg(long, value_name = "DIR", default_value = "/var/lib/cnimble")]
    pub(super) state_dir: PathBuf,
}

/// Network and namespace.
#[derive(Debug, Args)]
pub(super) struct Attachment {
    /// The network's name, or the path of its file
    #[arg(add = ArgValueCompleter::new(names::networks))]
    pub(super) network: String,
    /// The namespace: a path, or a name from `ip netns`. `del` may go without if
    /// --container-id is there
    #[arg(add = ArgValueCompleter::new(names::namespaces))]
    pub(super) netns: Option<String>,
    /// The interface inside the namespace [env: CNI_IFNAME] [default: eth0]
    #[arg(short, long, value_name = "NAME", add = ArgValueCompleter::new(names::attached_interfaces))]
    pub(super) ifname: Option<String>,
    /// The container's ID [default: cnitool's, made from the path of the namespace]
    #[arg(long, value_name = "ID", add = ArgValueCompleter::new(names::containers))]
    pub(super) container_id: Option<String>,
    /// Arguments for the plugins: `KEY=VALUE;KEY=VALUE`
    #[arg(long, value_name = "ARGS", env = "CNI_ARGS", hide_env_values = true)]
    pub(super) args: Option<String>,
    /// Capability arguments, a JSON object: `{"portMappings": […]}`
    #[arg(long, value_name = "JSON", env = "CAP_ARGS", hide_env_values = true)]
    pub(super) cap_args: Option<String>,
}

/// Network only.
#[derive(Debug, Args)]
pub(super) struct Named {
    /// The network's name, or the path of its file
    #[arg(add = ArgValueCompleter::new(names::networks))]
    pub(super) network: String,
    /// Ignored; cnitool wants it
    #[arg(hide = true)]
    pub(super) netns: Option<String>,
}

/// Which attachments are valid.
#[derive(Debug, Args)]
pub(super) struct Gc {
    #[command(flatten)]
    pub(super) named: Named,
    #[command(flatten)]
    pub(super) valid: Valid,
    /// With --gone and --cri: leave alone what is younger than this, if only a lease or rules tell of
    /// it. With --cri also the time between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub(super) grace: u64,
    /// With --gone and --cri: a directory of host-local, instead of the usual ones; may be given many
    /// times
    #[arg(long, value_name = "DIR")]
    pub(super) data_dir: Vec<PathBuf>,
    /// With --cri: do it, instead of telling what would be done
    #[arg(long, requires = "cri")]
    pub(super) yes: bool,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
pub(super) struct Valid {
    /// A valid attachment; may be given many times
    #[arg(long, value_name = "CONTAINER_ID/IFNAME")]
    pub(super) valid: Vec<String>,
    /// A file with the valid ones: `[{"containerID": "…", "ifname": "eth0"}]`; - is stdin
    #[arg(long, value_name = "FILE")]
    pub(super) valid_file: Option<PathBuf>,
    /// Clean up what doctor would find in this network; what lives, or may live, is left alone
    #[arg(long)]
    pub(super) gone: bool,
    /// As --gone, and every sandbox that the container runtime lists is valid, in whatever state; looks
    /// twice, with the grace period between, and tells what --yes would do
    #[arg(long, value_name = "SOCKET", num_args = 0..=1, default_missing_value = "")]
    pub(super) cri: Option<OsString>,
    /// None is valid: clean everything of this network
    #[arg(long)]
    pub(super) all: bool,
}
