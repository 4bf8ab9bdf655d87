//! The model: what a node has, and what each operation makes of it. Nothing in here touches the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cnimble_cni::hash::hash16;
use cnimble_made::ifb;
use serde_json::Value;

use crate::look::{
    Facts, has_port, has_word, is_in, is_in_pod, is_of_link, is_of_somebody, is_rule, leased, pod_of,
    split_pod,
};
use crate::plan::{Net, PODS, Plan, Set};
use crate::site::{id, ifname, name};
use crate::whole::lacks;

/// A GC took the interface of a pod from a network with sbr, whose rules nothing leads to then.
pub(crate) const LEFT_TO_THE_POD: &str = "interfaces that GC took from sbr";

/// A network and a container.
pub(crate) type Key = (usize, u32);

/// What was edited in a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Edition {
    pub(crate) subnet: bool,
    pub(crate) masq_switched: bool,
}

/// What is known of an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// It has been added, and was not looked at yet.
    New,
    /// Whole, but for what was done to it from outside.
    Living,
    /// The pod is gone, and no DEL came.
    Gone,
    /// A verb was killed, or done by the Go plugins: some of it may be there.
    Loose,
}

/// An attachment.
#[derive(Debug, Clone)]
pub(crate) struct Att {
    pub(crate) by: Set,
    pub(crate) state: State,
    /// The pod's place, while it lives.
    pub(crate) pod: Option<usize>,
    pub(crate) edition: Edition,
    pub(crate) port: Option<u16>,
    pub(crate) ips: Vec<IpAddr>,
    /// The host's end.
    pub(crate) veth: String,
    pub(crate) result: Value,
    /// What the kernel and the files have of it.
    pub(crate) has: Facts,
    /// Its rules were flushed.
    pub(crate) flushed: bool,
    /// Somebody has renamed or removed its link.
    pub(crate) meddled: bool,
    /// Its leases are of an earlier boot: others may get the addresses.
    pub(crate) void: bool,
    /// It was added over what was left of an earlier ADD, whose leases in another subnet stay until its DEL.
    pub(crate) again: bool,
    /// An earlier life may have left rules: that of `again`, or one whose DEL removed only what its result named.
    pub(crate) heir: bool,
}

/// A node.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) nets: Vec<Net>,
    pub(crate) editions: Vec<Edition>,
    /// The containers in the pods' places.
    pub(crate) containers: Vec<u32>,
    next: u32,
    pub(crate) atts: BTreeMap<Key, Att>,
    /// Whether the Go plugins are in the place of ours. Of them the model asks what any plugin has to do.
    pub(crate) control: bool,
    /// Containers that Go's DEL left rules of, behind a DEL of ours that had a result: it removes what that names.
    pub(crate) left_over: BTreeSet<u32>,
    /// What was there before anything happened.
    pub(crate) base: Facts,
    /// The last reading.
    pub(crate) seen: Facts,
    /// How often there was what, for people.
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

    /// The attachment of the pod in a place, be it there or not.
    pub(crate) fn key(&self, net: u8, pod: u8) -> Key {
        (self.net(net), self.containers[usize::from(pod)])
    }

    /// The attachments of a network that its runtime calls valid.
    pub(crate) fn valid(&self, net: usize, without: Option<u32>) -> Vec<Key> {
        let listed =
            |(key, att): &(&Key, &Att)| key.0 == net && att.state == State::Living && Some(key.1) != without;
        self.atts.iter().filter(listed).map(|(key, _)| *key).collect()
    }

    /// The places of pods that have an interface.
    pub(crate) fn places(&self) -> BTreeSet<usize> {
        self.atts.values().filter_map(|att| att.pod).collect()
    }

    fn new_container(&mut self, pod: usize) {
        self.containers[pod] = self.next;
        self.next += 1;
    }

    /// The pod in a place dies. What is of its namespace goes with that.
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

    /// The host's end has another name, or isn't there any more.
    pub(crate) fn meddle(&mut self, key: Key, renamed: Option<String>) {
        let Some(att) = self.atts.get_mut(&key) else { return };
        att.meddled = true;
        match renamed {
            Some(name) => att.veth = name,
            None => att.lose_links(),
        }
    }

    /// Whose a fact is: who is named with the network, or has the link or the address, or is named.
    fn owner(&self, fact: &str) -> Option<Key> {
        // A bridge's, or a link's that may be gone: whoever comes along removes it then.
        if fact.contains("ingressPolicy") || fact.contains(" portmap-localnet: ") {
            return None;
        }
        let found = |test: &dyn Fn(&Key, &Att) -> bool| {
            self.atts.iter().find(|(key, att)| test(key, att)).map(|(key, _)| *key)
        };
        let named = |key: &Key| has_word(fact, &id(key.1));
        // A rule in a pod may outlive its interface there, and the address may be another pod's by then.
        let has_address = |att: &Att| {
            pod_of(fact).is_none_or(|pod| att.pod == Some(pod))
                && att.ips.iter().any(|ip| has_word(fact, &ip.to_string()))
        };
        if fact.contains(" cni_hostport ")
            && let Some(key) = found(&|key, att| named(key) && has_address(att)).or_else(|| {
                found(&|key, att| named(key) && att.port.is_some_and(|port| has_port(fact, port)))
            })
        {
            // Go's mapping stays when its address has become another pod's.
            return Some(key);
        }
        // A backup that isn't whole has a hash for a name.
        let backup = |key: &Key| hash16(&format!("{}_{}.json", id(key.1), ifname(key.0)));
        let of_network = found(&|key, _| named(key) && has_word(fact, &name(key.0)));
        // What a DEL has left in a network is not the container's other network's.
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
            // The Go plugins' chains of the MAC check are of a container and an interface.
            .or_else(|| found(&|key, _| named(key) && has_word(fact, &ifname(key.0))))
            .or_else(|| found(&|key, att| named(key) && att.port.is_some()))
            .or_else(|| found(&|key, _| named(key)))
            // The Go plugins' links have no alias, nor has one of ours yet whose ADD was killed.
            .or_else(|| found(&|_, att| att.state == State::Loose && fact.starts_with("link")))
    }

    /// Whether it is a rule that a DEL with a result may have left, as the result didn't name it.
    fn is_left_over(&self, fact: &str) -> bool {
        is_rule(fact) && self.left_over.iter().any(|of| has_word(fact, &id(*of)))
    }

    /// Each one's facts, and those of nobody.
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

    /// What a verb that didn't come to its end has made says itself whose it is: the link by its alias, an
    /// address by its lease.
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

    /// Whether it is a rule that the life before has left, for an address that isn't the attachment's any more: the
    /// pod that gets the address takes it over.
    fn is_stale(&self, key: &Key, att: &Att, fact: &str) -> bool {
        let mut words = fact.split(|letter: char| !(letter.is_ascii_hexdigit() || ".:".contains(letter)));
        let is_other = |ip: IpAddr| self.nets[key.0].gives(key.0, &ip) && !att.ips.contains(&ip);
        att.heir
            && is_rule(fact)
            && words.any(|word| word.parse().is_ok_and(is_other))
            && !att.ips.iter().any(|ip| has_word(fact, &ip.to_string()))
    }

    /// What is wrong with a reading; nothing if it is what it should be. What is new is learnt then.
    pub(crate) fn compare(&mut self, facts: Facts) -> Vec<String> {
        self.learn(&facts);
        let (mut owned, rest) = self.sorted(&facts);
        // A lease that was being written when its ADD was killed stays until the next verb comes along.
        let killed = self.atts.values().any(|att| att.state == State::Loose);
        // sbr finds its rules by the interface or the result: a DEL that has neither leaves them to the pod's end.
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
                    // The Go plugins' chains of the MAC check are for a name.
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
    /// The pods whose interface of this network is a veth without an alias that is down.
    pub(crate) fn pods_with_nameless_pairs(&self, net: usize) -> BTreeSet<usize> {
        let words = [" kind=veth ", " up=false ", " alias=() "];
        let is_nameless = |fact: &&String| words.iter().all(|word| fact.contains(word));
        let of_net = |pod: usize, fact: &str| is_in(fact, pod, &ifname(net));
        let facts = self.seen.iter().filter(is_nameless);
        facts.filter_map(|fact| pod_of(fact).filter(|pod| of_net(*pod, fact))).collect()
    }

    /// Whether a pod has one of its addresses.
    pub(crate) fn shares_address(&self, att: &Att) -> bool {
        let has = |fact: &str| att.ips.iter().any(|ip| has_word(fact, &ip.to_string()));
        self.seen.iter().any(|fact| split_pod(fact).is_some_and(|(_, rest)| has(rest)))
    }
}
