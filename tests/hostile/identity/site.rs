//! A node with an uplink that is a veth, and pods of several networks beside the hostile one.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use cnimble_tests::stream::Stream;
use cnimble_tests::{
    Background, Host, Lan, Ns, Outcome, PATIENCE, Pod, Snapshot, command, plugin_dir, wait_until,
};

use super::deed::{Own, Target};
use super::mallory::Mallory;

/// The container ID of the hostile pod. Its objects have it in their aliases and comments.
const ID: &str = "mallory";

pub(super) struct Site {
    host: Host,
    _lan: Lan,
    _pods: Vec<Pod>,
    ports: Vec<String>,
    streams: Vec<Stream>,
}

/// A running `cnimble guard`.
pub(super) struct Guard {
    _process: Background,
    log: PathBuf,
}

impl Guard {
    pub(super) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }
}

/// The node without the hostile pod's own objects.
pub(super) struct Seen {
    kernel: Snapshot,
    elements: BTreeSet<String>,
}

impl Seen {
    #[track_caller]
    pub(super) fn assert_same(&self, later: &Seen, when: &str) {
        self.kernel.assert_same(&later.kernel, when);
        let lost: Vec<_> = self.elements.difference(&later.elements).collect();
        let added: Vec<_> = later.elements.difference(&self.elements).collect();
        assert!(lost.is_empty() && added.is_empty(), "{when}: elements lost {lost:#?}, added {added:#?}");
    }
}

fn subnet(number: usize) -> String {
    format!("10.230.{number}.0/24")
}

impl Site {
    pub(super) fn new() -> Self {
        let host = Host::hasty();
        host.set_sysctl("ipv4/ip_forward", "1");
        let lan = Lan::behind(&host, "up0");
        lan.ip("route add 10.230.0.0/16 via 10.7.0.2");
        host.ip("address add 10.7.0.2/24 dev up0");
        host.ip("route add default via 10.7.0.1 dev up0");
        fs::create_dir(host.dir().join("net.d")).unwrap();
        let mut site = Site { host, _lan: lan, _pods: Vec::new(), ports: Vec::new(), streams: Vec::new() };
        site.networks();
        let networks = ["checked", "isolated", "routed", "evil", "zz-canary"];
        let pods: Vec<Pod> = networks.iter().map(|_| Pod::new()).collect();
        let mut addresses = Vec::new();
        for (network, pod) in networks.iter().zip(&pods) {
            let (port, ip) = site.add(network, pod, &format!("resident-{network}"));
            site.ports.push(port);
            addresses.push(ip);
        }
        // The Go plugins write no alias.
        site.host.shell(&format!("ip link set {} alias ''", site.ports[2]));
        site.streams.push(Stream::between(&site._lan, &pods[0], &addresses[0]));
        site.streams.push(Stream::between(&pods[1], &pods[2], &addresses[2]));
        site.streams.push(Stream::between(&pods[3], &site._lan, "10.7.0.1"));
        site._pods = pods;
        site
    }

    fn networks(&self) {
        let bridge = |number: usize, more: Value| {
            let mut plugin = json!({
                "type": "bridge", "bridge": format!("br{number}"), "isDefaultGateway": true, "ipMasq": true,
                "ipam": {
                    "type": "host-local", "dataDir": self.host.data_dir(), "ranges": [[{"subnet": subnet(number)}]],
                },
            });
            let more = more.as_object().cloned().unwrap_or_default();
            plugin.as_object_mut().unwrap().extend(more);
            plugin
        };
        let routed = |number: usize| {
            let mut plugin = bridge(number, json!({"type": "ptp"}));
            plugin["ipam"]["routes"] = json!([{"dst": "0.0.0.0/0"}]);
            for key in ["bridge", "isDefaultGateway"] {
                plugin.as_object_mut().unwrap().remove(key);
            }
            plugin
        };
        let firewall = json!({"type": "firewall"});
        for (name, plugins) in [
            ("checked", vec![bridge(1, json!({"macspoofchk": true, "mtuAuto": true})), firewall.clone()]),
            (
                "isolated",
                vec![
                    bridge(2, json!({"portIsolation": true})),
                    json!({"type": "firewall", "ingressPolicy": "isolated"}),
                ],
            ),
            ("routed", vec![routed(3)]),
            ("evil", vec![bridge(4, json!({"macspoofchk": true, "mtuAuto": true})), firewall]),
            ("evil-routed", vec![routed(5)]),
            ("zz-canary", vec![bridge(6, json!({}))]),
        ] {
            let list = json!({"cniVersion": "1.0.0", "name": name, "plugins": plugins});
            fs::write(self.host.dir().join(format!("net.d/{name}.conflist")), list.to_string()).unwrap();
        }
    }

    fn cnimble(&self, args: &[&str]) -> Command {
        let mut cnimble = self.host.command(command().to_str().unwrap());
        cnimble.args(args).arg("--cache-dir").arg(self.host.dir().join("cache"));
        cnimble.env("CNI_PATH", plugin_dir()).env("NETCONFPATH", self.host.dir().join("net.d"));
        cnimble.env("CNIMBLE_DEL_WAIT", "1");
        cnimble
    }

    /// Returns the port on the host, and the address.
    fn add(&self, network: &str, pod: &Ns, id: &str) -> (String, String) {
        self.add_by(plugin_dir(), network, pod, id)
    }

    fn add_by(&self, plugins: &Path, network: &str, pod: &Ns, id: &str) -> (String, String) {
        let args = ["add", network, pod.path(), "--container-id", id];
        let result = Outcome::of(self.cnimble(&args).env("CNI_PATH", plugins)).result();
        let port = result["interfaces"]
            .as_array()
            .unwrap()
            .iter()
            .find(|interface| interface["name"].as_str().is_some_and(|name| name.starts_with("veth")));
        let ip = result["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap();
        (port.unwrap()["name"].as_str().unwrap().to_owned(), ip.to_owned())
    }

    pub(super) fn attach(&self, mallory: &Mallory, network: &str) -> Own {
        let (port, ip) = self.add(network, mallory.pod(), ID);
        let link = mallory.pod().link("eth0");
        let text = |key: &str| link[key].as_str().unwrap().to_owned();
        Own { port, ip, mac: text("address"), index: link["ifindex"].as_u64().unwrap() }
    }

    pub(super) fn detach(&self, mallory: &Mallory, network: &str) {
        let args = ["del", network, mallory.pod().path(), "--container-id", ID];
        Outcome::of(&mut self.cnimble(&args)).success();
    }

    /// Returns the port of a pod that the plugins in `dir` attach.
    pub(super) fn attach_by(&self, dir: &Path, pod: &Pod, network: &str) -> String {
        self.add_by(dir, network, pod, "other-build").0
    }

    pub(super) fn check(&self, network: &str, pod: &Ns) {
        let args = ["check", network, pod.path(), "--container-id", ID];
        Outcome::of(&mut self.cnimble(&args)).success();
    }

    pub(super) fn rename(&self, port: &str, name: &str) {
        self.host.ip(&format!("link set {port} down"));
        self.host.ip(&format!("link set {port} name {name}"));
    }

    /// The port leaves its bridge, and the doctor puts it back.
    #[track_caller]
    pub(super) fn loses_and_regains(&self, port: &str, bridge: &str) {
        let master = || self.host.link(port)["master"].clone();
        self.host.ip(&format!("link set {port} nomaster"));
        assert_eq!(master(), Value::Null);
        self.doctor_repairs(false);
        assert_eq!(master(), bridge, "{port}");
        assert!(self.host.link(port)["flags"].to_string().contains("\"UP\""), "{port}");
    }

    /// A link of the host, with what a pod can know of it.
    pub(super) fn target(&self, name: &str) -> Target {
        let link = self.host.link(name);
        let number = |key: &str| link[key].as_u64().unwrap_or_else(|| panic!("{key}: {link}"));
        let text = |key: &str| link[key].as_str().unwrap_or_default().to_owned();
        Target {
            name: name.to_owned(),
            index: number("ifindex"),
            peer: number("link_index"),
            mac: text("address"),
            alias: text("ifalias"),
        }
    }

    /// The ports of the other pods.
    pub(super) fn ports(&self) -> Vec<Target> {
        self.ports.iter().map(|port| self.target(port)).collect()
    }

    pub(super) fn guard(&self) -> Guard {
        let log = self.host.dir().join("guard.log");
        let data = self.host.data_dir();
        let mut command = self.cnimble(&["guard", "--data-dir", data.to_str().unwrap()]);
        command.stderr(File::create(&log).unwrap());
        let guard = Guard { _process: Background::start(&mut command), log };
        self.wait_for_a_repair(&guard);
        guard
    }

    /// Takes the gateway's address of a network away, and waits until the guard has put it back. By then it has looked
    /// at the networks with smaller names.
    pub(super) fn wait_for_a_repair(&self, guard: &Guard) {
        self.host.ip("address flush dev br6 scope global");
        let is_back = || self.host.addrs("br6").iter().any(|addr| addr.starts_with("10.230.6.1/"));
        assert!(wait_until(PATIENCE, is_back), "the guard repairs nothing: {}", guard.log());
    }

    pub(super) fn doctor_repairs(&self, pods: bool) {
        let data = self.host.data_dir();
        let mut args =
            vec!["doctor", "--json", "--repair", "--grace", "0", "--data-dir", data.to_str().unwrap()];
        if pods {
            args.push("--pods");
        }
        let outcome = Outcome::of(&mut self.cnimble(&args));
        let document: Value = serde_json::from_slice(&outcome.stdout).unwrap_or_default();
        assert!(document["findings"].is_array(), "{}", outcome.describe());
    }

    /// The node without the hostile pod's `port`.
    pub(super) fn seen(&self, port: &str) -> Seen {
        let mut kernel = Snapshot::of_ns(&self.host).without("nft").without_lines(ID);
        for section in ["iptables-nft", "ip6tables-nft"] {
            kernel = kernel.without(section);
        }
        if !port.is_empty() {
            kernel = kernel.without_lines(port);
        }
        let text = self.host.nft("-j list ruleset");
        let document: Value = serde_json::from_str(&text).unwrap();
        let mut elements = BTreeSet::new();
        for object in document["nftables"].as_array().unwrap() {
            for kind in ["set", "map"] {
                let set = &object[kind];
                for element in set["elem"].as_array().into_iter().flatten() {
                    elements.insert(format!("{} {}: {element}", set["table"], set["name"]));
                }
            }
        }
        elements.retain(|element| !element.contains(ID));
        Seen { kernel, elements }
    }

    pub(super) fn assert_connected(&self, when: &str) {
        self.streams.iter().for_each(|stream| stream.flows(when));
    }

    /// A process in the host's network namespace.
    pub(super) fn process_in_host(&self) -> Background {
        let mut command = self.host.command("sleep");
        command.arg("1000000").stdin(Stdio::null());
        Background::start(&mut command)
    }
}
