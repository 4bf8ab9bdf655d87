//! A node with a network, which must return to the same state after each test.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use cnimble_tests::trace::{Fate, Syscall, Traced};
use cnimble_tests::{
    Attachment, Call, Host, Network, Outcome, PATIENCE, Pod, Snapshot, plugin_dir, wait_until,
};

use crate::kinds::Kind;

/// A verb that is disturbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Add,
    Del,
    Check,
    Gc,
    Status,
}

impl Verb {
    pub fn name(self) -> &'static str {
        match self {
            Verb::Add => "ADD",
            Verb::Del => "DEL",
            Verb::Check => "CHECK",
            Verb::Gc => "GC",
            Verb::Status => "STATUS",
        }
    }
}

/// A node with a network and its pods.
pub struct Site {
    pub host: Host,
    chain: Vec<Value>,
    /// The chain for the neighbour.
    beside: Vec<Value>,
    ifname: &'static str,
    wait: Option<&'static str>,
    /// Whether GC looks into pinned namespaces. Only the victim's may then be pinned.
    secluded: bool,
    /// Whether a pod holds a device of the host.
    lends: bool,
    leaves_nothing: bool,
    has_uplink: bool,
    plugins: PathBuf,
    pub victim: Pod,
    neighbour: Option<(Pod, Vec<Value>)>,
    before: Snapshot,
    pod_before: Snapshot,
}

/// The files with the last address, the index and former addresses, which are not leases.
const NOTES: &[&str] = &["last_reserved_ip", ".cnimble-index", ".cnimble-kept"];

/// The texts that only a pod has. The addresses are those of the first pod.
const OF_THE_FIRST: &[&str] = &["victim", "veth", "10.1.2.2", "fd00:1:2::2", ".cnimble-new"];

/// Returns the matches of `text`: whole words for addresses, any part of a line for other texts.
fn told(now: &Snapshot, text: &str) -> Vec<String> {
    if text.contains("1:2::") || text.contains("1.2.") { now.mentions(text) } else { now.lines_with(text) }
}

/// The gateway of the vlan of [`Kind`].
const VLAN_GATEWAY: &str = "br0.100";

/// The names of both ends of the vlan's gateway, if there is one. It stays with its bridge. A killed ADD may have left it
/// unfinished, and the next one completes it.
fn vlan_gateway(now: &Snapshot) -> Vec<String> {
    let link = now.lines_with(&format!(r#""ifname":"{VLAN_GATEWAY}""#)).into_iter().next();
    let link = link.and_then(|line| serde_json::from_str::<Value>(line.trim_start_matches("link: ")).ok());
    let name = |key: &str| link.as_ref().and_then(|link| link[key].as_str().map(str::to_owned));
    ["ifname", "link"].into_iter().filter_map(name).collect()
}

/// The state without what a network leaves when it has no pods: forwarding, and an empty directory for leases.
fn network_left(now: &Snapshot) -> Snapshot {
    let now = now.clone().without("sysctl").without_lines("net64/lock ");
    now.without_lines("net64/ 755")
}

impl Site {
    pub fn new(kind: &Kind) -> Self {
        Self::by(plugin_dir(), kind)
    }

    /// Returns a node that uses the plugins in a directory.
    pub fn by(plugins: &Path, kind: &Kind) -> Self {
        let host = Host::hasty();
        let victim = kind.chain.pod();
        let mut site = Site {
            chain: kind.configs(&host, 0),
            beside: kind.configs(&host, 1000),
            ifname: kind.chain.ifname(),
            wait: kind.wait,
            secluded: kind.chain.is_picky(),
            lends: kind.chain.lends(),
            leaves_nothing: kind.leaves_nothing(),
            has_uplink: kind.has_uplink(),
            before: Snapshot::of_ns(&victim),
            pod_before: Snapshot::of_ns(&victim),
            plugins: plugins.to_owned(),
            neighbour: None,
            victim,
            host,
        };
        if kind.neighbour {
            let pod = kind.chain.pod();
            let results =
                site.added(&Kind::named(Attachment::new("neighbour", &pod)).ifname(site.ifname)).unwrap();
            site.neighbour = Some((pod, results));
        }
        for n in 0..kind.leases {
            let (net, name) = (site.link(0), format!("many{n}"));
            net.call("ADD", &site.named(&name), None).run().success();
        }
        if kind.neighbour {
            // The bridge learns of its port after some time.
            Snapshot::settled(&site.host);
        }
        site.before = site.look();
        site
    }

    /// Returns the seconds to wait for the kernel to remove things. For foreign plugins the wait is short, because each
    /// of their remains takes all of it.
    fn patience(&self) -> f32 {
        if self.plugins == plugin_dir() { PATIENCE } else { 2.0 }
    }

    fn look(&self) -> Snapshot {
        NOTES.iter().fold(Snapshot::of(&self.host), |snapshot, name| snapshot.without_lines(name))
    }

    /// Returns the number of plugins.
    pub fn length(&self) -> usize {
        self.chain.len()
    }

    pub fn plugin(&self, at: usize) -> &str {
        self.chain[at]["type"].as_str().unwrap()
    }

    pub fn link(&self, at: usize) -> Network<'_> {
        Network::by(&self.plugins, &self.host, self.chain[at].clone())
    }

    /// Returns plugin `at` for an attachment. No two attachments can have the same host port.
    fn link_of(&self, att: &Attachment, at: usize) -> Network<'_> {
        let configs = if att.id == "neighbour" { &self.beside } else { &self.chain };
        Network::by(&self.plugins, &self.host, configs[at].clone())
    }

    fn named(&self, id: &str) -> Attachment {
        Kind::named(Attachment::new(id, &self.victim)).ifname(self.ifname)
    }

    pub fn attachment(&self) -> Attachment {
        self.named("victim")
    }

    fn neighbour_attachment(&self) -> Attachment {
        let (pod, _) = self.neighbour.as_ref().unwrap();
        Kind::named(Attachment::new("neighbour", pod)).ifname(self.ifname)
    }

    /// Calls ADD of the first `count` plugins, and returns their results.
    pub fn add_some(&self, att: &Attachment, count: usize) -> Result<Vec<Value>, String> {
        let mut results: Vec<Value> = Vec::new();
        for at in 0..count {
            let outcome = self.link_of(att, at).call("ADD", att, results.last()).try_run()?;
            results.push(outcome.try_result()?);
        }
        Ok(results)
    }

    /// Calls ADD of all plugins.
    pub fn added(&self, att: &Attachment) -> Result<Vec<Value>, String> {
        self.add_some(att, self.length())
    }

    /// Calls DEL of all plugins, the last first. `prev` is the last result that the runtime knows, if any.
    pub fn del(&self, att: &Attachment, prev: Option<&Value>) -> Result<(), String> {
        self.del_some(att, prev, self.length())
    }

    /// Calls DEL of the first `count` plugins.
    pub fn del_some(&self, att: &Attachment, prev: Option<&Value>, count: usize) -> Result<(), String> {
        let mut failures = Vec::new();
        for at in (0..count).rev() {
            match self.link_of(att, at).call("DEL", att, prev).try_run() {
                Ok(outcome) if outcome.status == 0 && outcome.stdout.is_empty() => {}
                Ok(outcome) => failures.push(outcome.describe()),
                Err(slow) => failures.push(slow),
            }
        }
        if failures.is_empty() { Ok(()) } else { Err(format!("DEL: {}", failures.join("\n"))) }
    }

    /// Calls CHECK of all plugins.
    pub fn checked(&self, att: &Attachment, last: &Value) -> Result<(), String> {
        for at in 0..self.length() {
            let outcome = self.link_of(att, at).call("CHECK", att, Some(last)).try_run()?;
            if outcome.status != 0 {
                return Err(format!("CHECK: {}", outcome.describe()));
            }
        }
        self.bridge_is_complete()
    }

    /// Checks what CHECK can't know: whether the bridge was to be marked as cnimble's, and to have an uplink.
    fn bridge_is_complete(&self) -> Result<(), String> {
        if self.plugin(0) != "bridge" || self.plugins != plugin_dir() {
            return Ok(());
        }
        let bridge = self.host.link(self.chain[0]["bridge"].as_str().unwrap());
        if !bridge["ifalias"].as_str().is_some_and(|alias| alias.contains("made by cnimble")) {
            return Err(format!("the bridge has no alias: {bridge}"));
        }
        if bridge["group"] != "default" {
            return Err(format!("the bridge is still marked as unfinished: {bridge}"));
        }
        if self.has_uplink && self.host.link("up0")["master"] != bridge["ifname"] {
            return Err("the uplink is not on the bridge".to_owned());
        }
        if !self.chain[0]["vlan"].is_null() {
            let gateway = self.host.link(VLAN_GATEWAY);
            if gateway["ifalias"] != "gateway of vlan 100" || gateway["operstate"] != "UP" {
                return Err(format!("the gateway of the vlan is not complete: {gateway}"));
            }
        }
        Ok(())
    }

    /// Calls GC of the plugins from `first` on. Only the neighbour is valid.
    pub fn gc_from(&self, first: usize) -> Result<(), String> {
        (first..self.length()).try_for_each(|at| {
            let outcome = self.gc_call(at).try_run()?;
            if outcome.status == 0 { Ok(()) } else { Err(format!("GC: {}", outcome.describe())) }
        })
    }

    fn gc_call(&self, at: usize) -> Call<'_> {
        let mut valid: Vec<Value> = Vec::new();
        valid.extend(self.neighbour.iter().map(|_| self.neighbour_attachment().listed()));
        let many = self.before.lines_with("many").len();
        valid.extend((0..many).map(|n| self.named(&format!("many{n}")).listed()));
        let call = self.link(at).gc_call(Some(json!(valid)));
        if self.secluded { call.pinning(self.host.dir(), &[&self.victim]) } else { call }
    }

    /// Runs everything up to the verb of plugin `at`, and then that verb under `fate`.
    pub fn disturbed(&self, verb: Verb, at: usize, fate: &Fate) -> Result<Disturbed, String> {
        let att = self.attachment();
        let count = if verb == Verb::Add { at } else { self.length() };
        let results = match verb {
            Verb::Status => Vec::new(),
            _ => self.add_some(&att, count)?,
        };
        let last = results.last();
        // The state that a failing plugin must restore.
        let earlier = match fate {
            Fate::Told { .. } | Fate::Unanswered { .. } | Fate::Starved { .. } if verb == Verb::Add => {
                Some(self.whole())
            }
            _ => None,
        };
        let call = match verb {
            Verb::Add => self.link(at).call("ADD", &att, last),
            Verb::Check => self.link(at).call("CHECK", &att, last),
            Verb::Del => {
                for later in (at + 1..self.length()).rev() {
                    self.link(later).call("DEL", &att, last).run().success();
                }
                self.link(at).call("DEL", &att, last)
            }
            Verb::Gc => {
                for earlier in 0..at {
                    self.gc_call(earlier).run().success();
                }
                self.gc_call(at)
            }
            Verb::Status => self.link(at).status_call(),
        };
        let call = match self.wait {
            Some(wait) => call.env("CNIMBLE_DEL_WAIT", wait),
            None => call,
        };
        let (outcome, traced) = call.traced(fate);
        Ok(Disturbed { outcome, traced, last: last.cloned(), earlier })
    }

    /// Returns the calls of the verb of plugin `at` on a fresh node, undisturbed. This is the shorter of two lists,
    /// since a verb that waits for the kernel asks again.
    pub fn usual_calls(kind: &Kind, verb: Verb, at: usize) -> Vec<Syscall> {
        let [one, other] = [(); 2].map(|()| Site::new(kind).calls(verb, at));
        if one.len() <= other.len() { one } else { other }
    }

    /// Returns the calls of the verb of plugin `at`, undisturbed.
    pub fn calls(&self, verb: Verb, at: usize) -> Vec<Syscall> {
        let run = self.disturbed(verb, at, &Fate::Watched).unwrap();
        run.outcome.success();
        self.del(&self.attachment(), run.last.as_ref()).unwrap();
        run.traced.calls
    }

    /// Returns the lasting differences on the host. If the pod was the first, the network itself stays. Then only the
    /// lines that refer to the pod count.
    pub fn diff(&self) -> String {
        let mut diff = String::new();
        wait_until(self.patience(), || {
            let now = self.look();
            diff = match &self.neighbour {
                Some(_) => self.before.diff(&now),
                None if self.leaves_nothing => network_left(&self.before).diff(&network_left(&now)),
                None => {
                    let gateway = vlan_gateway(&now);
                    let is_its = |line: &String| gateway.iter().any(|name| line.contains(name.as_str()));
                    let lines = OF_THE_FIRST.iter().flat_map(|text| told(&now, text));
                    lines.filter(|line| !is_its(line)).collect()
                }
            };
            diff.is_empty()
        });
        diff
    }

    /// Returns the full state of host and pod.
    fn whole(&self) -> [Snapshot; 2] {
        // The index of leases may have been rewritten.
        [Snapshot::of(&self.host).without_lines(".cnimble-index"), Snapshot::of_ns(&self.victim)]
    }

    /// Replaces the victim's namespace.
    pub fn end_victim(&mut self) {
        if self.lends {
            for name in self.victim.links().iter().filter(|name| *name != "lo") {
                self.victim.ip(&format!("link set {name} netns {}", self.host.path()));
            }
        }
        self.victim = Pod::new();
    }

    /// Returns what a failed ADD has left.
    pub fn left_by(&self, run: &Disturbed) -> String {
        let mut diff = String::new();
        wait_until(self.patience(), || {
            let pairs = run.earlier.iter().flatten().zip(self.whole());
            diff = pairs.map(|(earlier, now)| earlier.diff(&now)).collect();
            diff.is_empty()
        });
        diff
    }

    /// Returns the differences in the pod.
    pub fn pod_diff(&self) -> String {
        let mut diff = String::new();
        wait_until(self.patience(), || {
            diff = self.pod_before.diff(&Snapshot::of_ns(&self.victim));
            diff.is_empty()
        });
        diff
    }

    /// Checks that the neighbour still is in the state that ADD created.
    pub fn neighbour_lives(&self) -> Result<(), String> {
        let Some((_, results)) = &self.neighbour else { return Ok(()) };
        self.checked(&self.neighbour_attachment(), results.last().unwrap())
    }
}

/// The outcome of a verb under a fate.
pub struct Disturbed {
    pub outcome: Outcome,
    pub traced: Traced,
    /// The last result before the verb.
    pub last: Option<Value>,
    /// The state of host and pod before an ADD.
    earlier: Option<[Snapshot; 2]>,
}
