//! A node for two pods, and the checks after two verbs.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Value, json};

use cnimble_tests::{Attachment, Call, Host, Network, PATIENCE, Pod, Snapshot, wait_until};

use crate::kinds::Kind;

use super::actor::Ended;
use super::{Act, Scene};

const IDS: [&str; 2] = ["pod-a", "pod-b"];

pub struct Node {
    host: Host,
    pods: [Pod; 2],
    bare: Snapshot,
    /// The chain for each pod.
    chains: [Vec<Value>; 2],
    ifname: &'static str,
    /// The results of the living pods.
    living: RefCell<[Option<Value>; 2]>,
}

impl Node {
    /// Returns a node on which the pods in `before` have been added.
    pub fn new(kind: &Kind, before: &[usize]) -> Self {
        let host = Host::hasty();
        let pods = [(); 2].map(|()| kind.chain.pod());
        let mut chains = [0, 1].map(|number| kind.configs(&host, number));
        if kind.edited {
            host.ip("link add br0 type bridge");
            host.ip("address add 10.7.7.1/24 dev br0");
            chains.iter_mut().for_each(|chain| chain[0]["forceAddress"] = json!(true));
        }
        let bare = Snapshot::of_ns(&pods[0]);
        let ifname = kind.chain.ifname();
        let node = Node { host, pods, bare, chains, ifname, living: RefCell::default() };
        for who in before {
            let mut prev = None;
            for at in 0..node.length() {
                prev = Some(node.call(Act::Add(*who), at, prev.as_ref()).run().result());
            }
            node.living.borrow_mut()[*who] = prev;
        }
        node
    }

    pub fn length(&self) -> usize {
        self.chains[0].len()
    }

    pub fn plugin(&self, at: usize) -> &str {
        self.chains[0][at]["type"].as_str().unwrap()
    }

    fn attachment(&self, who: usize) -> Attachment {
        Kind::named(Attachment::new(IDS[who], &self.pods[who])).ifname(self.ifname)
    }

    /// Returns the call of plugin `at` in a verb.
    pub fn call(&self, act: Act, at: usize, prev: Option<&Value>) -> Call<'_> {
        let net = |who: usize| Network::new(&self.host, self.chains[who][at].clone());
        let known = |who: usize| self.living.borrow()[who].clone();
        match act {
            Act::Add(who) => net(who).call("ADD", &self.attachment(who), prev),
            Act::Unheard(who) => {
                let call = net(who).call("ADD", &self.attachment(who), prev);
                if at + 1 == self.length() { call.unheard() } else { call }
            }
            Act::Del(who) => net(who).call("DEL", &self.attachment(who), known(who).as_ref()),
            Act::Check(who) => net(who).call("CHECK", &self.attachment(who), known(who).as_ref()),
            Act::GcBut(who) => self.gc(at, json!([self.attachment(1 - who).listed()])),
            Act::Status => net(0).status_call(),
        }
    }

    fn gc(&self, at: usize, valid: Value) -> Call<'_> {
        let call = Network::new(&self.host, self.chains[0][at].clone()).gc_call(Some(valid));
        call.pinning(self.host.dir(), &[&self.pods[0], &self.pods[1]])
    }

    /// Runs GC without valid attachments.
    pub fn tidy(&self) -> Result<(), String> {
        for at in 0..self.length() {
            let gc = self.gc(at, json!([])).try_run()?;
            gc.status.eq(&0).then_some(()).ok_or_else(|| gc.describe())?;
        }
        Ok(())
    }

    /// Checks the state when both verbs have ended, then deletes all pods.
    pub fn settle(&self, scene: Scene, ended: [Ended; 2]) -> Result<(), String> {
        for (act, ended) in scene.acts.into_iter().zip(ended) {
            match (act, ended.failed) {
                (Act::Unheard(who), Some(_)) => {
                    for at in (0..self.length() - 1).rev() {
                        let call = self.call(Act::Del(who), at, None).try_run()?;
                        call.status.eq(&0).then_some(()).ok_or_else(|| call.describe())?;
                    }
                }
                (Act::Unheard(_), None) => return Err("an ADD that nobody hears succeeds".to_owned()),
                (_, Some(outcome)) => return Err(outcome.describe()),
                (Act::Add(who), None) => self.living.borrow_mut()[who] = ended.result,
                (Act::Del(who) | Act::GcBut(who), None) => self.living.borrow_mut()[who] = None,
                (Act::Check(_) | Act::Status, None) => {}
            }
        }
        self.check()?;
        self.clear()
    }

    /// Checks that every living pod passes CHECK and has addresses which no other pod has.
    fn check(&self) -> Result<(), String> {
        let mut addresses = BTreeSet::new();
        for (who, id) in IDS.iter().enumerate() {
            let Some(result) = self.living.borrow()[who].clone() else { continue };
            for at in 0..self.length() {
                let check = self.call(Act::Check(who), at, None).try_run()?;
                if check.status != 0 {
                    return Err(format!("afterwards, CHECK of {id}: {}", check.describe()));
                }
            }
            for ip in result["ips"].as_array().into_iter().flatten() {
                let ip = ip["address"].as_str().unwrap_or_default();
                // Every pod has the loopback addresses.
                if !ip.starts_with("127.") && !ip.starts_with("::1/") && !addresses.insert(ip.to_owned()) {
                    return Err(format!("both have {ip}"));
                }
            }
        }
        Ok(())
    }

    /// Deletes the living pods.
    fn clear(&self) -> Result<(), String> {
        for (who, id) in IDS.iter().enumerate() {
            if self.living.borrow()[who].is_none() {
                continue;
            }
            for at in (0..self.length()).rev() {
                let del = self.call(Act::Del(who), at, None).try_run()?;
                if del.status != 0 {
                    return Err(format!("afterwards, DEL of {id}: {}", del.describe()));
                }
            }
        }
        Ok(())
    }

    /// Returns the state of the host. If an ADD fails, a bridge may stay incomplete. The next ADD completes it.
    pub fn rest(&self, scene: Scene) -> Snapshot {
        let notes = ["last_reserved_ip", ".cnimble-index"];
        let fails = scene.acts.iter().any(|act| matches!(act, Act::Unheard(_)));
        let left_out = notes.into_iter().chain(fails.then_some("br0"));
        left_out.fold(Snapshot::of(&self.host).without_chance(), Snapshot::without_lines)
    }

    /// Returns what is on the host and in no expected state, what all expected states have and the host lacks, and what
    /// is left in the pods.
    pub fn differences(&self, scene: Scene, rests: &[Snapshot]) -> String {
        let any = rests.iter().cloned().reduce(Snapshot::or).unwrap();
        let all = rests.iter().cloned().reduce(|all, rest| all.and(&rest)).unwrap();
        let mut text = String::new();
        wait_until(PATIENCE, || {
            let now = self.rest(scene);
            text = any.diff(&any.clone().or(now.clone())) + &all.diff(&all.clone().and(&now));
            text.extend(self.pods.iter().map(|pod| self.bare.diff(&Snapshot::of_ns(pod))));
            text.is_empty()
        });
        text
    }
}
