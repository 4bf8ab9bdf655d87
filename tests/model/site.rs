//! The real node: a host with its pods and files, and the plugins that are called there.

use std::ffi::CString;
use std::net::IpAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::sync::OnceLock;

use serde_json::{Value, json};

use cnimble_tests::trace::Fate;
use cnimble_tests::{Attachment, Host, Network, Outcome, Pod, command, go_plugins, plugin_dir};

use crate::node::{Edition, Key};
use crate::plan::{Backend, Net, PODS, Set};

pub(crate) struct Site {
    pub(crate) host: Host,
    pub(crate) pods: Vec<Pod>,
    nets: Vec<Net>,
    /// Whether the Go plugins replace ours, as a control.
    control: bool,
}

/// The result of a chain of plugins, called to its end or to the first failure.
pub(crate) struct Ended {
    pub(crate) last: Outcome,
    /// The index of the plugin that failed, or `None` if all succeeded.
    pub(crate) failed: Option<usize>,
}

pub(crate) fn name(net: usize) -> String {
    format!("model{net}")
}

pub(crate) fn id(container: u32) -> String {
    format!("ctr{container}x")
}

pub(crate) fn ifname(net: usize) -> String {
    format!("eth{net}")
}

/// Returns the second number of all addresses. No other process of the machine uses it, as an address in any namespace
/// keeps its lease valid. A socket with that name, which is closed with the process, reserves it.
fn octet() -> u32 {
    static HELD: OnceLock<(u32, UnixDatagram)> = OnceLock::new();
    let hold = |octet: u32| {
        let name = SocketAddr::from_abstract_name(format!("cnimble-model-10.{octet}")).unwrap();
        UnixDatagram::bind_addr(&name).ok().map(|socket| (octet, socket))
    };
    HELD.get_or_init(|| (100..200).find_map(hold).expect("a network that nobody tests with")).0
}

/// Returns the first three numbers of an IPv4 network, and the start of an IPv6 network.
pub(crate) fn prefixes(net: usize, edition: Edition) -> (String, String) {
    let third = 1 + net * 2 + usize::from(edition.subnet);
    (format!("10.{}.{third}", octet()), format!("fd00:{}:{third}:", octet()))
}

impl Site {
    pub(crate) fn new(nets: &[Net], control: bool) -> Self {
        let host = Host::hasty();
        std::fs::create_dir(host.dir().join("net.d")).unwrap();
        let pods = (0..PODS).map(|_| Pod::new()).collect();
        Site { host, pods, nets: nets.to_vec(), control }
    }

    fn plugins(&self, by: Set) -> &'static Path {
        match by {
            Set::Ours if !self.control => plugin_dir(),
            _ => go_plugins().expect("looked for before"),
        }
    }

    /// Returns the chain with its current configuration.
    fn configs(&self, net: usize, edition: Edition, port: Option<u16>) -> Vec<Value> {
        let of = &self.nets[net];
        let (four, six) = prefixes(net, edition);
        let (mut ranges, mut routes) = (Vec::new(), Vec::new());
        let end = 9 + of.room;
        let last = format!("{:x}", 0x10 + u32::from(of.room) - 1);
        if of.v4 {
            ranges.push(json!([{
                "subnet": format!("{four}.0/24"), "gateway": format!("{four}.1"),
                "rangeStart": format!("{four}.10"), "rangeEnd": format!("{four}.{end}"),
            }]));
            routes.push(json!({"dst": format!("10.98.{net}.0/24")}));
        }
        if of.v6 {
            ranges.push(json!([{
                "subnet": format!("{six}:/64"), "gateway": format!("{six}:1"),
                "rangeStart": format!("{six}:10"), "rangeEnd": format!("{six}:{last}"),
            }]));
            routes.push(json!({"dst": format!("fd98:{net}::/64")}));
        }
        let dir = self.host.dir();
        let ipam = json!({
            "type": "host-local", "dataDir": dir.join("networks"), "ranges": ranges,
            "routes": if of.gateway || of.ptp { routes } else { Vec::new() },
        });
        let mut main = if of.ptp {
            json!({"type": "ptp"})
        } else {
            json!({
                "type": "bridge", "bridge": format!("br{net}"), "isGateway": of.gateway,
                "forceAddress": of.force_address, "macspoofchk": of.spoof, "portIsolation": of.isolated,
                "removeUnusedBridge": of.goes,
            })
        };
        main["ipam"] = ipam;
        if let Some(backend) = edition.masq(of) {
            main["ipMasq"] = json!(true);
            main["ipMasqBackend"] = json!(backend.name());
        }
        let mut chain = vec![main];
        if let Some(backend) = of.ports {
            let one = |port| json!({"hostPort": port, "containerPort": 80, "protocol": "tcp"});
            let mappings: Vec<Value> = port.into_iter().map(one).collect();
            chain.push(json!({
                "type": "portmap", "backend": backend.name(), "runtimeConfig": {"portMappings": mappings},
            }));
        }
        if let Some((backend, same_bridge)) = of.firewall {
            let policy = if same_bridge { "same-bridge" } else { "open" };
            chain.push(json!({"type": "firewall", "backend": backend.name(), "ingressPolicy": policy}));
        }
        if of.shaped {
            let rate = [("ingressRate", 8_000_000), ("ingressBurst", 800_000), ("egressRate", 8_000_000)];
            let mut config = json!({"type": "bandwidth", "egressBurst": 800_000});
            rate.iter().for_each(|(key, value)| config[key] = json!(value));
            chain.push(config);
        }
        if of.tuned {
            let sysctl = json!({"net.ipv4.conf.IFNAME.arp_filter": "1"});
            chain.push(json!({
                "type": "tuning", "mtu": 1400, "sysctl": sysctl, "dataDir": dir.join("tuning").join(name(net)),
            }));
        }
        if of.sbr {
            chain.push(json!({"type": "sbr"}));
        }
        for config in &mut chain {
            config["name"] = json!(name(net));
        }
        chain
    }

    /// Returns the chain for a verb. Its versions are supported by both sets of plugins.
    fn chain(
        &self,
        by: Set,
        verb: &str,
        net: usize,
        edition: Edition,
        port: Option<u16>,
    ) -> Vec<Network<'_>> {
        let version = if ["GC", "STATUS"].contains(&verb) { "1.1.0" } else { "1.0.0" };
        let mut configs = self.configs(net, edition, port);
        configs.iter_mut().for_each(|config| config["cniVersion"] = json!(version));
        configs.into_iter().map(|config| Network::by(self.plugins(by), &self.host, config)).collect()
    }

    fn attachment(&self, (net, container): Key, pod: Option<usize>) -> Attachment {
        let netns = pod.map_or_else(String::new, |pod| self.pods[pod].path().to_owned());
        Attachment { id: id(container), netns, ifname: ifname(net), args: String::new() }
    }

    /// Calls ADD of all plugins, up to the first failure.
    pub(crate) fn add(&self, by: Set, key: Key, pod: usize, edition: Edition, port: Option<u16>) -> Ended {
        let att = self.attachment(key, Some(pod));
        let mut result = None;
        let mut last = None;
        for (at, network) in self.chain(by, "ADD", key.0, edition, port).iter().enumerate() {
            let outcome = network.call("ADD", &att, result.as_ref()).run();
            if outcome.status != 0 {
                return Ended { last: outcome, failed: Some(at) };
            }
            result = Some(outcome.result());
            last = Some(outcome);
        }
        Ended { last: last.unwrap(), failed: None }
    }

    /// Calls DEL of all plugins, the last one first. A runtime stops at a failure.
    pub(crate) fn del(
        &self,
        by: Set,
        key: Key,
        pod: Option<usize>,
        edition: Edition,
        (port, told): (Option<u16>, Option<&Value>),
    ) -> Ended {
        let att = self.attachment(key, pod);
        let chain = self.chain(by, "DEL", key.0, edition, port);
        ended(chain.iter().rev().map(|network| network.del(&att, told)))
    }

    pub(crate) fn check(
        &self,
        key: Key,
        pod: usize,
        edition: Edition,
        port: Option<u16>,
        told: &Value,
    ) -> Ended {
        let att = self.attachment(key, Some(pod));
        let chain = self.chain(Set::Ours, "CHECK", key.0, edition, port);
        ended(chain.iter().map(|network| network.check(&att, told)))
    }

    pub(crate) fn gc(&self, net: usize, edition: Edition, valid: &[Key]) -> Ended {
        let valid: Vec<Value> = valid.iter().map(|key| self.attachment(*key, None).listed()).collect();
        let chain = self.chain(Set::Ours, "GC", net, edition, None);
        ended(chain.iter().map(|network| network.gc(Some(json!(valid)))))
    }

    pub(crate) fn status(&self, net: usize, edition: Edition) -> Ended {
        let chain = self.chain(Set::Ours, "STATUS", net, edition, None);
        ended(chain.iter().map(Network::status))
    }

    /// Runs the verb, and kills one of the plugins (`at.0`) before a system call (`at.1`).
    pub(crate) fn killed(
        &self,
        verb: &str,
        key: Key,
        pod: Option<usize>,
        edition: Edition,
        (port, told, valid): (Option<u16>, Option<&Value>, &[Key]),
        at: (u8, u16),
    ) {
        let att = self.attachment(key, pod);
        let mut chain = self.chain(Set::Ours, verb, key.0, edition, port);
        if verb == "DEL" {
            chain.reverse();
        }
        let valid: Vec<Value> = valid.iter().map(|key| self.attachment(*key, None).listed()).collect();
        let victim = usize::from(at.0) % chain.len();
        let mut result = told.cloned();
        for (number, network) in chain.iter().enumerate() {
            let call = match verb {
                "GC" => network.gc_call(Some(json!(valid))),
                _ => network.call(verb, &att, result.as_ref()),
            };
            if number == victim {
                call.traced(&Fate::KilledAt(usize::from(at.1)));
                return;
            }
            let outcome = call.run();
            if outcome.status != 0 {
                return;
            }
            if verb == "ADD" {
                result = Some(outcome.result());
            }
        }
    }

    /// Removes the pod's namespace. A new pod takes its place.
    pub(crate) fn die(&mut self, pod: usize) {
        self.pods[pod] = Pod::new();
    }

    /// Reboots the machine. Files stay, except for those below /run, and leases count as those of an earlier boot.
    pub(crate) fn reboot(&mut self) {
        self.host.reboot();
        self.host.set_sysctl("ipv6/conf/default/accept_dad", "0");
        self.pods = (0..PODS).map(|_| Pod::new()).collect();
        let _ = std::fs::remove_dir_all(self.host.dir().join("tuning"));
        for net in 0..self.nets.len() {
            let dir = self.host.dir().join("networks").join(name(net));
            for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
                match entry.file_name().to_str() {
                    // It contains the ID of its boot, which is not this one.
                    Some(".cnimble-index") => std::fs::remove_file(entry.path()).unwrap(),
                    _ => of_an_earlier_boot(&entry.path()),
                }
            }
        }
    }

    /// Runs `cnimble doctor --json`.
    pub(crate) fn doctor(&self, editions: &[Edition]) -> Outcome {
        let conf = self.host.dir().join("net.d");
        for (net, edition) in editions.iter().enumerate() {
            let plugins = self.configs(net, *edition, None);
            let list = json!({"cniVersion": "1.0.0", "name": name(net), "plugins": plugins});
            std::fs::write(conf.join(format!("{}.conflist", name(net))), list.to_string()).unwrap();
        }
        let mut call = self.host.command(command());
        call.args(["doctor", "--json", "--grace", "0", "--data-dir"]).arg(self.host.dir().join("networks"));
        call.arg("--cache-dir").arg(self.host.dir().join("cache"));
        call.env("CNI_PATH", plugin_dir()).env("NETCONFPATH", conf);
        Outcome::of(&mut call)
    }
}

/// Returns the first call that fails, or the last call.
fn ended(calls: impl Iterator<Item = Outcome>) -> Ended {
    let mut last = None;
    for (at, outcome) in calls.enumerate() {
        let failed = outcome.status != 0;
        last = Some(outcome);
        if failed {
            return Ended { last: last.unwrap(), failed: Some(at) };
        }
    }
    Ended { last: last.expect("a chain has a plugin"), failed: None }
}

/// Marks a lease of ours, which has the boot ID in an extended attribute.
fn of_an_earlier_boot(path: &Path) {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let (name, value) = (c"user.cnimble.boot", b"another");
    // SAFETY: both texts end with a NUL, and the value has the length that is told. XATTR_REPLACE: files
    // without such an attribute stay as they are.
    unsafe {
        libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), libc::XATTR_REPLACE);
    }
}

impl Net {
    /// Returns true if pods of this network can get this address, in either edition.
    pub(crate) fn gives(&self, net: usize, ip: &IpAddr) -> bool {
        let room = usize::from(self.room);
        [false, true].into_iter().any(|subnet| {
            let (four, six) = prefixes(net, Edition { subnet, masq_switched: false });
            (0..room).any(|number| {
                let text = [format!("{four}.{}", 10 + number), format!("{six}:{:x}", 0x10 + number)];
                text.iter().any(|text| text.parse() == Ok(*ip))
            })
        })
    }
}

impl Edition {
    /// Returns the backend of masquerading, if there is any.
    pub(crate) fn masq(self, net: &Net) -> Option<Backend> {
        match (net.masq, self.masq_switched) {
            (Some(_), true) => None,
            (None, true) => Some(Backend::Nftables),
            (masq, false) => masq,
        }
    }
}
