//! The samples of the plugins: `sample.json` in each folder, with a configuration that has every option on, and its
//! needs. Tests of all plugins use them.
//!
//! | key | default | |
//! |---|---|---|
//! | `role` | | `main`: makes an interface; `chained`: works on that of bridge; `ipam` |
//! | `config` | | the configuration; `$DIR` in it is a directory of the test's own |
//! | `ifname` | `eth0` | CNI_IFNAME |
//! | `kinds` | none | the kinds of interfaces that not every kernel has |
//! | `host` | none | what the host has before anything else: arguments of `ip`, one command each |
//! | `oldest` | 0.1.0 | the first version of the specification that the plugin speaks |
//! | `counted` | none | JSON pointers to numbers, or to names that end in one, that no two pods may share |
//! | `lends` | false | what is in the pod is the host's, and goes back to it when the pod dies |
//! | `server` | false | it asks a DHCP server, by the pod's interface: see [`Sample::serve`] |
//! | `apart` | none | why the suites that call ADD with samples leave it out; its folder has tests in their place |

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::{Attachment, Background, Host, Network, Pod, configs, vm};

/// The bridge of a DHCP server and its clients.
const BRIDGE: &str = "br-served";

/// Where a plugin stands in a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It makes an interface.
    Main,
    /// It works on the interface of another.
    Chained,
    /// The plugin gives addresses.
    Ipam,
}

/// The sample of a plugin.
#[derive(Debug)]
pub struct Sample {
    /// The name of the plugin.
    pub plugin: String,
    /// Its place in a chain.
    pub role: Role,
    /// The value of CNI_IFNAME.
    pub ifname: String,
    /// The first version that it speaks.
    pub oldest: String,
    apart: String,
    kinds: Vec<String>,
    host: Vec<String>,
    counted: Vec<String>,
    /// Whether a pod has a device of the host. The kernel gives hardware back when a namespace goes; for
    /// virtual ones, which tests have, that is done by hand.
    pub lends: bool,
    server: bool,
    config: Value,
}

/// The folders that hold a plugin each.
fn folders() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found: Vec<PathBuf> = ["plugins", "ipam"]
        .iter()
        .flat_map(|dir| std::fs::read_dir(root.join(dir)).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("sample.json").exists())
        .collect();
    found.sort_by_key(|path| path.file_name().map(std::ffi::OsStr::to_owned));
    found
}

impl Sample {
    /// All of them, by name. `tests/policy.rs` sees to it that each plugin has one.
    pub fn all() -> &'static [Sample] {
        static ALL: OnceLock<Vec<Sample>> = OnceLock::new();
        ALL.get_or_init(|| folders().iter().map(|folder| Sample::read(folder)).collect())
    }

    /// The one of a plugin.
    ///
    /// # Panics
    /// Panics if the plugin has none.
    pub fn of(plugin: &str) -> &'static Sample {
        let found = Sample::all().iter().find(|sample| sample.plugin == plugin);
        found.unwrap_or_else(|| panic!("{plugin} has no sample.json"))
    }

    /// The samples with this role.
    pub fn with(role: Role) -> impl Iterator<Item = &'static Sample> {
        Sample::all().iter().filter(move |sample| sample.role == role)
    }

    fn read(folder: &Path) -> Sample {
        let path = folder.join("sample.json");
        let value: Value = serde_json::from_slice(&std::fs::read(&path).unwrap())
            .unwrap_or_else(|err| panic!("{}: {err}", path.display()));
        let text = |key: &str, default: &str| value[key].as_str().unwrap_or(default).to_owned();
        let list = |key: &str| {
            let list = value[key].as_array().into_iter().flatten();
            list.map(|item| item.as_str().unwrap().to_owned()).collect()
        };
        Sample {
            plugin: folder.file_name().unwrap().to_str().unwrap().to_owned(),
            role: match value["role"].as_str() {
                Some("main") => Role::Main,
                Some("chained") => Role::Chained,
                Some("ipam") => Role::Ipam,
                other => panic!("{}: role {other:?}", path.display()),
            },
            ifname: text("ifname", "eth0"),
            oldest: text("oldest", "0.1.0"),
            apart: text("apart", ""),
            kinds: list("kinds"),
            host: list("host"),
            counted: list("counted"),
            lends: value["lends"] == true,
            server: value["server"] == true,
            config: value["config"].clone(),
        }
    }

    /// The configuration as it stands in the file.
    pub fn raw(&self) -> &Value {
        &self.config
    }

    /// The configuration on this host.
    pub fn config(&self, host: &Host) -> Value {
        self.numbered(host, 0)
    }

    /// The configuration for the pod with this number: no two pods can have the same port. The host
    /// gets what the sample needs, the first time.
    pub fn numbered(&self, host: &Host, number: u64) -> Value {
        self.prepare(host);
        let dir = host.dir().to_str().unwrap();
        let mut config: Value = serde_json::from_str(&self.config.to_string().replace("$DIR", dir)).unwrap();
        config["cniVersion"] = configs::newest().into();
        for pointer in &self.counted {
            let value = config.pointer_mut(pointer).unwrap_or_else(|| panic!("{}: {pointer}", self.plugin));
            *value = match value.as_str() {
                Some(name) => {
                    let stem = name.trim_end_matches(|digit: char| digit.is_ascii_digit());
                    json!(format!("{stem}{}", name[stem.len()..].parse::<u64>().unwrap() + number))
                }
                None => json!(value.as_u64().unwrap() + number),
            };
        }
        config
    }

    /// Runs the commands for the host that have not run yet: samples may have the same.
    pub fn prepare(&self, host: &Host) {
        for command in &self.host {
            let done = host.dir().join(format!("prepared-{}", cnimble_cni::hash16(command)));
            if !done.exists() {
                host.ip(command);
                std::fs::write(done, "").unwrap();
            }
        }
    }

    /// Whether it needs kinds of interfaces that not every kernel has.
    pub fn is_picky(&self) -> bool {
        !self.kinds.is_empty()
    }

    /// Whether the machine of `scripts/vm` is the place to try it: it is picky, and the kernel outside
    /// can't serve it.
    pub fn is_for_the_machine(&self) -> bool {
        self.is_picky() && vm::outside_lacks(&self.plugin)
    }

    /// Whether no suite can call ADD with it: it needs more than a host.
    pub fn is_apart(&self) -> bool {
        !self.apart.is_empty()
    }

    /// Why ADD can't be called with it here: its kind is unknown to this kernel, or it is apart.
    pub fn missing(&self) -> Option<String> {
        if self.is_apart() {
            return Some(self.apart.clone());
        }
        let lacks = |kind: &&String| vm::lacks(kind);
        self.kinds.iter().find(lacks).map(|kind| format!("this kernel has no interfaces of the kind {kind}"))
    }

    /// Whether its plugin asks a DHCP server. It is apart then, but for suites that [`serve`](Self::serve) it.
    pub fn is_served(&self) -> bool {
        self.server
    }

    /// If its plugin asks a DHCP server: one, on a bridge of the host that the pods of [`place`](Self::place) are on.
    pub fn serve(&self, host: &Host) -> Option<Background> {
        if !self.server {
            return None;
        }
        host.ip(&format!("link add {BRIDGE} type bridge"));
        host.ip(&format!("address add 10.8.0.1/24 dev {BRIDGE}"));
        host.ip(&format!("link set {BRIDGE} up"));
        let mut dnsmasq = host.command("dnsmasq");
        dnsmasq.args([
            "--keep-in-foreground",
            "--conf-file=/dev/null",
            "--port=0",
            "--no-ping",
            "--user=root",
        ]);
        dnsmasq.args(["--pid-file=", "--leasefile-ro", "--dhcp-authoritative", "--bind-dynamic"]);
        dnsmasq.arg(format!("--interface={BRIDGE}")).arg("--dhcp-range=10.8.0.10,10.8.0.99,1h");
        Some(Background::start(dnsmasq.stdin(Stdio::null()).stderr(Stdio::null())))
    }

    /// A pod as its plugin finds it. [`Pod::new`] has brought `lo` up, which is loopback's work.
    pub fn pod(&self) -> Pod {
        let pod = Pod::new();
        if self.ifname == "lo" {
            pod.ip("link set lo down");
        }
        pod
    }

    /// A pod on `host` that its plugin can be called for.
    pub fn place<'h>(&self, host: &'h Host, id: &str, number: u64) -> Place<'h> {
        let pod = self.pod();
        if self.server {
            let port = crate::unique("port");
            host.cable(&port, &pod, &self.ifname);
            host.ip(&format!("link set {port} master {BRIDGE}"));
            // Until then the bridge drops what a client asks, and the client asks again seconds later.
            let forwards = || host.ip(&format!("-d link show {port}")).contains("state forwarding");
            assert!(crate::wait_until(crate::PATIENCE, forwards), "{port} doesn't forward");
        }
        let att = Attachment::new(id, &pod).ifname(&self.ifname);
        let base = (self.role == Role::Chained).then(|| Network::new(host, configs::dual(host)));
        let prev = base.as_ref().map(|base| base.added(&att));
        let mut net = Network::new(host, self.numbered(host, number));
        if let Some(base) = &base {
            net.config["name"] = base.config["name"].clone();
        }
        Place { net, att, prev, pod, base }
    }
}

/// A pod that a sample's plugin can be called for: if it is one of a chain, with bridge in front.
pub struct Place<'h> {
    /// The network of the sample.
    pub net: Network<'h>,
    /// The attachment of the pod.
    pub att: Attachment,
    /// The result of bridge.
    pub prev: Option<Value>,
    /// The pod of the place.
    pub pod: Pod,
    base: Option<Network<'h>>,
}

impl Place<'_> {
    /// ADD that must succeed.
    #[track_caller]
    pub fn added(&self) -> Value {
        self.net.call("ADD", &self.att, self.prev.as_ref()).run().result()
    }

    /// DEL of what stands in front.
    pub fn clear(&self) {
        if let Some(base) = &self.base {
            base.deleted(&self.att, self.prev.as_ref());
        }
    }
}
