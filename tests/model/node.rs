//! The model: the state of a node, and the effect of each operation. It does not touch the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cnimble_cni::hash::hash16;
use cnimble_rules::objects::ifb;
use serde_json::Value;

use crate::look::{
    Facts, has_port, has_word, is_in, is_in_pod, is_of_link, is_of_somebody, is_rule, leased, pod_of,
    split_pod,
};
use crate::plan::{Net, PODS, Plan, Set};
use crate::site::{id, ifname, name};
use crate::whole::lacks;

/// A GC removed the interface of a pod from a network with sbr. Nothing then leads to the rules.
pub(crate) const LEFT_TO_THE_POD: &str = "interfaces that GC took from sbr";

/// The index of a network and the number of a container.
pub(crate) type Key = (usize, u32);

/// The edits of a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Edition {
    pub(crate) subnet: bool,
    pub(crate) masq_switched: bool,
}

/// The state of an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Added, and not yet read.
    New,
    /// Complete, except for changes from outside.
    Living,
    /// The pod is gone, and no DEL was called.
    Gone,
    /// A verb was killed or run by the Go plugins, so parts may exist.
    Loose,
}

/// An attachment, with its expected facts.
#[derive(Debug, Clone)]
pub(crate) struct Att {
    pub(crate) by: Set,
    pub(crate) state: State,
    /// The index of the pod, while it lives.
    pub(crate) pod: Option<usize>,
    pub(crate) edition: Edition,
    pub(crate) port: Option<u16>,
    pub(crate) ips: Vec<IpAddr>,
    /// The name of the host's end.
    pub(crate) veth: String,
    pub(crate) result: Value,
    /// The facts that the kernel and the files have about it.
    pub(crate) has: Facts,
    /// Its rules were flushed.
    pub(crate) flushed: bool,
    /// An administrator has renamed or removed its link.
    pub(crate) meddled: bool,
    /// Its leases are from an earlier boot. Other pods may get the addresses.
    pub(crate) void: bool,
    /// It was added over the remains of an earlier ADD. Leases of that ADD in another subnet stay until its DEL.
    pub(crate) again: bool,
    /// An earlier attachment may have left rules: that of `again`, or one for which DEL removed only what its result
    /// named.
    pub(crate) inherits: bool,
}

/// The modelled state of a node.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) nets: Vec<Net>,
    pub(crate) editions: Vec<Edition>,
    /// The container of each pod.
    pub(crate) containers: Vec<u32>,
    next: u32,
    pub(crate) atts: BTreeMap<Key, Att>,
    /// Whether the Go plugins replace ours. The model then expects only what any plugin has to do.
    pub(crate) control: bool,
    /// Containers of which Go's DEL left rules, after a DEL of ours that had a result. Our DEL removes only what the
    /// result names.
    pub(crate) left_over: BTreeSet<u32>,
    /// The facts before any operation.
    pub(crate) base: Facts,
    /// The last reading.
    pub(crate) seen: Facts,
    /// The number of events of each kind, for the report.
    pub(crate) counts: BTreeMap<&'static str, usize>,
}

impl Node {
    pub(crate) fn new(plan: &Plan, base: Facts, control: bool) -> Self {
        let pods = u32::from(PODS);
        Node {
            nets: plan.nets.clone(),
            editions: vec![Edition::default(); plan.nets.len()],
            containers: (0..pods).collect(),
            next: pods,
            atts: BTreeMap::new(),
            control,
            left_over: BTreeSet::new(),
            seen: base.clone(),
            base,
            counts: BTreeMap::new(),
        }
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub(crate) fn net(&self, number: u8) -> usize {
        usize::from(number) % self.nets.len()
    }

    /// Returns the key of the attachment of this pod, whether it exists or not.
    pub(crate) fn key(&self, net: u8, pod: u8) -> Key {
        (self.net(net), self.containers[usize::from(pod)])
    }

    /// Returns the attachments of a network that its runtime calls valid.
    pub(crate) fn valid(&self, net: usize, without: Option<u32>) -> Vec<Key> {
        let listed =
            |(key, att): &(&Key, &Att)| key.0 == net && att.state == State::Living && Some(key.1) != without;
        self.atts.iter().filter(listed).map(|(key, _)| *key).collect()
    }

    /// Returns the indexes of pods that have an interface.
    pub(crate) fn places(&self) -> BTreeSet<usize> {
        self.atts.values().filter_map(|att| att.pod).collect()
    }

    fn new_container(&mut self, pod: usize) {
        self.containers[pod] = self.next;
        self.next += 1;
    }

    /// The pod dies. The contents of its namespace are removed.
    pub(crate) fn die(&mut self, pod: usize) {
        for att in self.atts.values_mut().filter(|att| att.pod == Some(pod)) {
            att.pod = None;
            att.lose_links();
            if att.state == State::Living {
                att.state = State::Gone;
            }
        }
        self.new_container(pod);
    }

    pub(crate) fn reboot(&mut self) {
        for att in self.atts.values_mut() {
            att.pod = None;
            att.void |= att.by == Set::Ours && !self.control;
            att.has.retain(|fact| fact.starts_with("lease "));
            if att.state == State::Living {
                att.state = State::Gone;
            }
        }
        (0..self.containers.len()).for_each(|pod| self.new_container(pod));
    }

    pub(crate) fn flush(&mut self) {
        for att in self.atts.values_mut() {
            let before = att.has.len();
            att.has.retain(|fact| !is_rule(fact));
            att.flushed |= att.has.len() < before;
        }
    }

    /// The host's end was renamed or removed.
    pub(crate) fn meddle(&mut self, key: Key, renamed: Option<String>) {
        let Some(att) = self.atts.get_mut(&key) else { return };
        att.meddled = true;
        match renamed {
            Some(name) => att.veth = name,
            None => att.lose_links(),
        }
    }

    /// Returns the owner of a fact. It is the attachment that is named with the network, has the link or the address,
    /// or is named.
    fn owner(&self, fact: &str) -> Option<Key> {
        // It belongs to a bridge, or to a link that may be gone. The next verb removes it then.
        if fact.contains("ingressPolicy") || fact.contains(" portmap-localnet: ") {
            return None;
        }
        let found = |test: &dyn Fn(&Key, &Att) -> bool| {
            self.atts.iter().find(|(key, att)| test(key, att)).map(|(key, _)| *key)
        };
        let named = |key: &Key| has_word(fact, &id(key.1));
        // A rule in a pod may outlive its interface there, and another pod may have the address by then.
        let has_address = |att: &Att| {
            pod_of(fact).is_none_or(|pod| att.pod == Some(pod))
                && att.ips.iter().any(|ip| has_word(fact, &ip.to_string()))
        };
        if fact.contains(" cni_hostport ")
            && let Some(key) = found(&|key, att| named(key) && has_address(att)).or_else(|| {
                found(&|key, att| named(key) && att.port.is_some_and(|port| has_port(fact, port)))
            })
        {
            // Go's mapping stays after another pod got its address.
            return Some(key);
        }
        // A backup that isn't complete has a hash as its name.
        let backup = |key: &Key| hash16(&format!("{}_{}.json", id(key.1), ifname(key.0)));
        let of_network = found(&|key, _| named(key) && has_word(fact, &name(key.0)));
        // The remains of a DEL in one network do not belong to the container's other network.
        if of_network.is_none()
            && self.is_left_over(fact)
            && (0..self.nets.len()).any(|net| has_word(fact, &name(net)))
        {
            return None;
        }
        of_network
            .or_else(|| found(&|key, _| fact.starts_with("tuning ") && has_word(fact, &backup(key))))
            .or_else(|| found(&|key, att| att.pod.is_some_and(|pod| is_in(fact, pod, &ifname(key.0)))))
            .or_else(|| found(&|_, att| !att.veth.is_empty() && has_word(fact, &att.veth)))
            .or_else(|| found(&|key, _| has_word(fact, &ifb::name(&name(key.0), &id(key.1)))))
            .or_else(|| found(&|_, att| matches!(att.state, State::New | State::Living) && has_address(att)))
            .or_else(|| found(&|_, att| att.state == State::Gone && !att.void && has_address(att)))
            .or_else(|| found(&|_, att| !att.void && has_address(att)))
            // The Go plugins' chains of the MAC check belong to a container and an interface.
            .or_else(|| found(&|key, _| named(key) && has_word(fact, &ifname(key.0))))
            .or_else(|| found(&|key, att| named(key) && att.port.is_some()))
            .or_else(|| found(&|key, _| named(key)))
            // The Go plugins' links have no alias. Neither has a link of ours if its ADD was killed early.
            .or_else(|| found(&|_, att| att.state == State::Loose && fact.starts_with("link")))
    }

    /// Returns true if a DEL with a result may have left this rule, as the result didn't name it.
    fn is_left_over(&self, fact: &str) -> bool {
        is_rule(fact) && self.left_over.iter().any(|of| has_word(fact, &id(*of)))
    }

    /// Returns the facts of each attachment, and those without an owner.
    pub(crate) fn sorted(&self, facts: &Facts) -> (BTreeMap<Key, Facts>, Facts) {
        let (mut owned, mut rest) = (BTreeMap::<Key, Facts>::new(), Facts::new());
        for fact in facts.difference(&self.base) {
            match self.owner(fact) {
                Some(key) => owned.entry(key).or_default().insert(fact.clone()),
                None => rest.insert(fact.clone()),
            };
        }
        (owned, rest)
    }

    /// Learns what an interrupted verb has created, from the link's alias and the lease of an address.
    fn learn(&mut self, facts: &Facts) {
        for (key, att) in self.atts.iter_mut().filter(|(_, att)| att.state == State::Loose) {
            let (network, container) = (name(key.0), id(key.1));
            let named = |fact: &&String| has_word(fact, &container) && has_word(fact, &network);
            let of = facts.iter().filter(named);
            if let Some(link) = of.filter_map(|fact| fact.strip_prefix("link veth")?.split(' ').next()).next()
            {
                att.veth = format!("veth{link}");
            }
            for (ip, content) in leased(facts, &network) {
                if has_word(content, &container) && !att.ips.contains(&ip) {
                    att.ips.push(ip);
                }
            }
        }
    }

    /// Returns true if this is a rule of the earlier attachment for an address that the attachment no longer has. The
    /// pod that gets the address takes it over.
    fn is_stale(&self, key: &Key, att: &Att, fact: &str) -> bool {
        let mut words = fact.split(|letter: char| !(letter.is_ascii_hexdigit() || ".:".contains(letter)));
        let is_other = |ip: IpAddr| self.nets[key.0].gives(key.0, &ip) && !att.ips.contains(&ip);
        att.inherits
            && is_rule(fact)
            && words.any(|word| word.parse().is_ok_and(is_other))
            && !att.ips.iter().any(|ip| has_word(fact, &ip.to_string()))
    }

    /// Returns the differences between a reading and the model, and learns new facts. The list is empty if there are
    /// none.
    pub(crate) fn compare(&mut self, facts: Facts) -> Vec<String> {
        self.learn(&facts);
        let (mut owned, rest) = self.sorted(&facts);
        // A lease that a killed ADD was writing stays until the next verb.
        let killed = self.atts.values().any(|att| att.state == State::Loose);
        // sbr finds its rules by the interface or the result. A DEL that has neither leaves them until the pod ends.
        let unplugged =
            ["links renamed or removed", LEFT_TO_THE_POD].iter().any(|what| self.counts.contains_key(what));
        let may_be = |fact: &String| {
            self.is_left_over(fact)
                || (killed && fact.contains("/.cnimble-new-"))
                || (unplugged && is_in_pod(fact, "-rule "))
        };
        let strays = rest.iter().filter(|fact| is_of_somebody(fact) && !may_be(fact));
        let mut wrong: Vec<String> = strays.map(|fact| format!("of nobody: {fact}")).collect();
        for (key, att) in &self.atts {
            let real = owned.get(key).cloned().unwrap_or_default();
            let who = format!("{} in {}", id(key.1), name(key.0));
            match att.state {
                State::Loose => {}
                State::New => {
                    wrong.extend(
                        lacks(&self.nets[key.0], *key, att, &real, att.by == Set::Ours && !self.control)
                            .into_iter()
                            .map(|what| format!("{who} was added and {what}")),
                    );
                }
                State::Living | State::Gone => {
                    // The Go plugins' chains of the MAC check are tied to an interface name.
                    let of_link =
                        |fact: &&String| att.meddled && (is_of_link(fact) || fact.contains("cni-br-iface-"));
                    let lost = att.has.difference(&real).filter(|fact| {
                        !(of_link(fact)
                            || att.void && fact.starts_with("lease ")
                            || self.is_stale(key, att, fact))
                    });
                    let more = real.difference(&att.has).filter(|fact| !of_link(fact));
                    wrong.extend(lost.map(|fact| format!("{who} has lost: {fact}")));
                    wrong.extend(more.map(|fact| format!("{who} has more: {fact}")));
                }
            }
        }
        if self.atts.is_empty() && !rest.iter().any(|fact| self.is_left_over(fact)) {
            let ours = |fact: &&String| match fact.split(' ').next() {
                Some("table") => fact.contains("cnimble"),
                Some("sysctl") => fact.ends_with(": 2"),
                _ => false,
            };
            wrong.extend(rest.iter().filter(ours).map(|fact| format!("nobody is there, and {fact}")));
        }
        if wrong.is_empty() {
            self.seen = facts;
            for (key, att) in &mut self.atts {
                att.has = owned.remove(key).unwrap_or_default();
                if att.state == State::New {
                    att.state = State::Living;
                }
            }
        }
        wrong
    }
}

impl Att {
    fn lose_links(&mut self) {
        let veth = &self.veth;
        self.has.retain(|fact| {
            let gone = fact.starts_with("pod")
                || fact.starts_with(&format!("link {veth} "))
                || fact.starts_with("link-route ");
            !gone
        });
    }
}

impl Node {
    /// Returns the pods in which this network's interface is a veth that is down and has no alias.
    pub(crate) fn pods_with_nameless_pairs(&self, net: usize) -> BTreeSet<usize> {
        let words = [" kind=veth ", " up=false ", " alias=() "];
        let is_nameless = |fact: &&String| words.iter().all(|word| fact.contains(word));
        let of_net = |pod: usize, fact: &str| is_in(fact, pod, &ifname(net));
        let facts = self.seen.iter().filter(is_nameless);
        facts.filter_map(|fact| pod_of(fact).filter(|pod| of_net(*pod, fact))).collect()
    }

    /// Returns true if a pod has one of the addresses of this attachment.
    pub(crate) fn shares_address(&self, att: &Att) -> bool {
        let has = |fact: &str| att.ips.iter().any(|ip| has_word(fact, &ip.to_string()));
        self.seen.iter().any(|fact| split_pod(fact).is_some_and(|(_, rest)| has(rest)))
    }
}
