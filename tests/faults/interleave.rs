//! Verbs of host-local at once, in every order of their system calls that takes two switches at most.
//!
//! No model of the lock, the index and the leases: it is the shipped plugin and a real directory. One process
//! comes to its n-th call about the directory and stands there. The other comes as far as it can, or to its m-th call.
//! Then the first goes on to its end, or is killed where it stands, and the other follows.
//! A process that waits for the lock is passed over until it has it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use cnimble_tests::trace::{State, Stepped, untraceable};
use cnimble_tests::{Attachment, Call, Host, Network, Outcome, announce, need, skip};

use crate::points::{Chance, Tally, bound, seed, share};

/// A verb in a scene.
#[derive(Debug, Clone, Copy)]
enum Act {
    Add(&'static str),
    /// One that fails when it has the lock already, and takes back what it has made.
    Fails(&'static str),
    /// One that may find no free address.
    AddIfRoom(&'static str),
    Del(&'static str),
    /// All that is named in the scene is valid, but for this.
    GcBut(&'static str),
}

impl Act {
    fn id(self) -> &'static str {
        match self {
            Act::Add(id) | Act::Fails(id) | Act::AddIfRoom(id) | Act::Del(id) | Act::GcBut(id) => id,
        }
    }
}

/// What is there, and what happens at once.
struct Scene {
    name: &'static str,
    ranges: Value,
    /// How many leases of no interest are there.
    many: usize,
    before: &'static [&'static str],
    /// Of these, the lease is from an earlier boot.
    void: &'static [&'static str],
    acts: [Act; 2],
}

const SMALL: &str = "10.9.0.0/24";
/// Room for two pods and no more: .0, the gateway and .3 are given to none.
const TWO: (&str, &str, &str) = ("10.9.0.0/29", "10.9.0.2", "10.9.0.3");

fn ranges(subnet: &str) -> Value {
    json!([[{ "subnet": subnet }], [{ "subnet": "fd09::/64" }]])
}

fn two() -> Value {
    json!([[{ "subnet": TWO.0, "rangeStart": TWO.1, "rangeEnd": TWO.2 }]])
}

fn scenes() -> Vec<Scene> {
    use Act::{Add, AddIfRoom, Del, Fails, GcBut};
    let fresh = |name, acts| Scene { name, ranges: ranges(SMALL), many: 0, before: &[], void: &[], acts };
    let few = |name, acts| Scene { before: &["a", "b"], ..fresh(name, acts) };
    let full = |name, acts| Scene { ranges: two(), before: &["a", "b"], ..fresh(name, acts) };
    let many = |name, acts| Scene { many: 70, before: &["a", "b"], ..fresh(name, acts) };
    vec![
        fresh("the first ADDs of a node", [Add("c"), Add("d")]),
        fresh("an ADD that takes its directory back, and an ADD", [Fails("c"), Add("d")]),
        fresh("two that take their directory back", [Fails("c"), Fails("d")]),
        few("an ADD and a DEL", [Add("c"), Del("a")]),
        few("two DELs", [Del("a"), Del("b")]),
        few("two DELs of one", [Del("a"), Del("a")]),
        few("an ADD and a GC", [Add("c"), GcBut("a")]),
        few("a DEL and a GC of the same", [Del("a"), GcBut("a")]),
        full("an ADD into a full range and a DEL", [AddIfRoom("c"), Del("a")]),
        Scene { void: &["a"], ..full("two ADDs for one void lease", [AddIfRoom("c"), AddIfRoom("d")]) },
        Scene { void: &["a"], ..full("an ADD and a DEL for one void lease", [AddIfRoom("c"), Del("a")]) },
        many("two ADDs with an index", [Add("c"), Add("d")]),
        many("an ADD and a DEL with an index", [Add("c"), Del("a")]),
        many("an ADD that fails and a DEL with an index", [Fails("c"), Del("a")]),
        many("a GC and a DEL with an index", [GcBut("a"), Del("b")]),
        many("a GC and an ADD with an index", [GcBut("a"), Add("c")]),
    ]
}

/// A node with the leases of a scene.
struct Site<'s> {
    scene: &'s Scene,
    host: Host,
}

impl<'s> Site<'s> {
    fn new(scene: &'s Scene) -> Self {
        let site = Site { scene, host: Host::hasty() };
        for n in 0..scene.many {
            site.call("ADD", &format!("many{n}"), None).run().success();
        }
        site
    }

    fn network(&self) -> Network<'_> {
        let dir = self.host.data_dir();
        let config = json!({ "cniVersion": "1.1.0", "name": "net", "type": "host-local",
            "ipam": { "type": "host-local", "dataDir": dir, "ranges": self.scene.ranges } });
        Network::new(&self.host, config)
    }

    fn attachment(id: &str) -> Attachment {
        Attachment { id: id.into(), netns: "/nowhere".into(), ifname: "eth0".into(), args: String::new() }
    }

    fn call(&self, verb: &str, id: &str, prev: Option<&Value>) -> Call<'_> {
        self.network().call(verb, &Self::attachment(id), prev)
    }

    fn act(&self, act: Act) -> Call<'_> {
        match act {
            Act::Add(id) | Act::AddIfRoom(id) => self.call("ADD", id, None),
            Act::Fails(id) => {
                let asks = Attachment { args: "IP=192.0.2.1".into(), ..Self::attachment(id) };
                self.network().call("ADD", &asks, None)
            }
            Act::Del(id) => self.call("DEL", id, None),
            Act::GcBut(id) => {
                let many: Vec<String> = (0..self.scene.many).map(|n| format!("many{n}")).collect();
                let all = self.scene.names().into_iter().chain(many.iter().map(String::as_str));
                let valid: Vec<Value> =
                    all.filter(|name| *name != id).map(|name| Self::attachment(name).listed()).collect();
                self.network().gc_call(Some(json!(valid)))
            }
        }
    }

    fn dir(&self) -> PathBuf {
        self.host.data_dir().join("net")
    }

    /// What the scene begins with.
    fn set(&self) -> Result<(), String> {
        if self.scene.many == 0 {
            let _ = std::fs::remove_dir_all(self.host.data_dir());
        }
        for id in self.scene.before {
            self.call("ADD", id, None).try_run()?.try_result()?;
        }
        for (ip, id) in self.leases()? {
            if self.scene.void.contains(&id.as_str()) {
                mark_as_earlier(&self.dir().join(ip));
            }
        }
        Ok(())
    }

    /// The owner of each address. Anything else that looks like a lease is an error.
    fn leases(&self) -> Result<BTreeMap<String, String>, String> {
        let Ok(entries) = std::fs::read_dir(self.dir()) else { return Ok(BTreeMap::new()) };
        let mut leases = BTreeMap::new();
        for entry in entries {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.parse::<std::net::IpAddr>().is_err() {
                continue;
            }
            let content = std::fs::read_to_string(self.dir().join(&name)).map_err(|err| err.to_string())?;
            let owner = content.strip_suffix("\r\neth0").ok_or_else(|| format!("{name} has {content:?}"))?;
            leases.insert(name, owner.to_owned());
        }
        Ok(leases)
    }

    fn held_by(&self, id: &str) -> Result<BTreeSet<String>, String> {
        Ok(self.leases()?.into_iter().filter(|(_, owner)| owner == id).map(|(ip, _)| ip).collect())
    }
}

impl Scene {
    /// Whoever has a part in it.
    fn names(&self) -> BTreeSet<&'static str> {
        self.before.iter().copied().chain(self.acts.iter().map(|act| act.id())).collect()
    }
}

/// Who begins, and how far each comes before the other has its turn.
#[derive(Debug, Clone, Copy)]
struct Order {
    first: usize,
    calls: usize,
    /// Of the other one; as far as it can without this.
    others: usize,
    /// Whether the first is killed where it stands.
    killed: bool,
}

/// What came of it.
struct Came {
    outcomes: [Outcome; 2],
    /// How many calls the other made in between.
    others: usize,
    /// The first came as far as it should.
    met: bool,
}

/// Makes at most so many calls; how many.
fn lead(process: &mut Stepped, calls: usize) -> usize {
    process.look();
    (0..calls)
        .take_while(|_| {
            process.look() == State::Ready && {
                process.step();
                true
            }
        })
        .count()
}

fn ended(process: &mut Stepped) -> bool {
    matches!(process.look(), State::Ended(_))
}

fn carry_out(site: &Site<'_>, order: Order) -> Result<Came, String> {
    let acts = site.scene.acts;
    let dir = site.host.data_dir();
    let mut processes = acts.map(|act| site.act(act).stepped(&dir));
    let [one, two] = &mut processes;
    let (first, other) = if order.first == 0 { (one, two) } else { (two, one) };
    let met = lead(first, order.calls) == order.calls && !ended(first);
    let others = lead(other, order.others);
    if order.killed {
        first.kill();
    }
    // Each as far as it can, in turn, until both have ended.
    while !(ended(first) && ended(other)) {
        let made = lead(first, usize::MAX) + lead(other, usize::MAX);
        if made == 0 && !(ended(first) && ended(other)) {
            return Err(format!("both wait: one in {}, the other in {}", first.call(), other.call()));
        }
    }
    let mut acts = acts.iter();
    let outcomes = processes.map(|process| Outcome::from(&format!("{:?}", acts.next()), process.finish()));
    Ok(Came { outcomes, others, met })
}

/// Whether all is right behind it, and what comes next finds it so.
fn judge(site: &Site<'_>, order: Order, came: &Came) -> Result<(), String> {
    let scene = site.scene;
    let mut living: BTreeSet<&str> = scene.before.iter().copied().collect();
    // Of whom a killed verb, or what is void, may have left something or nothing.
    let mut unsure: BTreeSet<&str> = scene.void.iter().copied().collect();
    let mut given = BTreeMap::new();
    for (number, (act, outcome)) in scene.acts.iter().zip(&came.outcomes).enumerate() {
        let id = act.id();
        if order.killed && order.first == number {
            unsure.insert(id);
            continue;
        }
        let result = match act {
            Act::Add(_) => Some(outcome.try_result()?),
            Act::AddIfRoom(_) if outcome.status == 0 => Some(outcome.try_result()?),
            Act::Fails(_) | Act::AddIfRoom(_) => {
                let error = outcome.try_error()?;
                if error.code != 101 {
                    return Err(outcome.describe());
                }
                None
            }
            Act::Del(_) | Act::GcBut(_) if outcome.status == 0 && outcome.stdout.is_empty() => None,
            Act::Del(_) | Act::GcBut(_) => return Err(outcome.describe()),
        };
        match result {
            Some(result) => {
                living.insert(id);
                given.insert(id, addresses(&result));
            }
            None => drop(living.remove(id)),
        }
    }
    for id in scene.names().difference(&unsure) {
        let held = site.held_by(id)?;
        let wanted = if living.contains(id) { scene.ranges.as_array().unwrap().len() } else { 0 };
        if held.len() != wanted || given.get(id).is_some_and(|given| *given != held) {
            return Err(format!("{id} was given {:?} and has {held:?}", given.get(id)));
        }
    }
    if !order.killed && !scene.void.is_empty() && given.is_empty() {
        return Err("nobody has the address that was to be had".to_owned());
    }
    for id in living.difference(&unsure) {
        let check = site.call("CHECK", id, Some(&json!({ "cniVersion": "1.1.0" }))).try_run()?;
        if check.status != 0 {
            return Err(format!("CHECK of {id}: {}", check.describe()));
        }
    }
    // DEL finds all of it, also by the index.
    for id in scene.names() {
        let del = site.call("DEL", id, None).try_run()?;
        let left = site.held_by(id)?;
        if del.status != 0 || !left.is_empty() {
            return Err(format!("DEL of {id} leaves {left:?}: {}", del.describe()));
        }
    }
    let left = site.leases()?.len();
    let others = scene.many * scene.ranges.as_array().unwrap().len();
    if left != others {
        return Err(format!("{left} leases are left, not {others}"));
    }
    let half = std::fs::read_dir(site.dir()).into_iter().flatten().map(|entry| entry.unwrap().file_name());
    let half: Vec<_> = half.filter(|name| name.to_string_lossy().starts_with(".cnimble-new")).collect();
    if half.is_empty() { Ok(()) } else { Err(format!("half-written: {half:?}")) }
}

/// Makes a lease one of an earlier boot, by the extended attribute that says of which it is.
fn mark_as_earlier(lease: &Path) {
    let path = CString::new(lease.as_os_str().as_bytes()).unwrap();
    let (name, value) = (c"user.cnimble.boot", b"1d7fe3a3-0000-4000-8000-000000000000");
    // SAFETY: each pointer is to what its length, or the zero byte at its end, says.
    let marked = unsafe {
        libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), libc::XATTR_REPLACE)
    };
    assert_eq!(marked, 0, "{}: {}", lease.display(), std::io::Error::last_os_error());
}

fn addresses(result: &Value) -> BTreeSet<String> {
    let ips = result["ips"].as_array().into_iter().flatten();
    let text = |ip: &Value| ip["address"].as_str().unwrap_or_default().split('/').next().unwrap().to_owned();
    ips.map(text).collect()
}

/// How many calls an act makes alone, of those that are places to switch at.
fn length(scene: &Scene, number: usize) -> usize {
    let site = Site::new(scene);
    site.set().unwrap();
    let mut process = site.act(scene.acts[number]).stepped(&site.host.data_dir());
    lead(&mut process, usize::MAX)
}

/// A place of the first switch.
#[derive(Debug, Clone, Copy)]
struct Place {
    first: usize,
    calls: usize,
    killed: bool,
}

fn places(scene: &Scene) -> Vec<Place> {
    let mut places = Vec::new();
    for first in 0..2 {
        for calls in 1..length(scene, first) {
            places.extend([false, true].map(|killed| Place { first, calls, killed }));
        }
    }
    places
}

#[test]
fn verbs_at_once_in_any_order_of_their_calls() {
    need!("ip");
    if let Some(why) = untraceable() {
        skip!("{why}");
    }
    let most = bound(12);
    let seed = seed();
    let mut wrong = 0;
    for scene in &scenes() {
        let mut chance = Chance::new(seed);
        let places = chance.some(places(scene), most);
        assert!(places.len() >= most.min(10), "{}: only {} places?", scene.name, places.len());
        let tally = Tally::new(&format!("interleaved: {} (seed {seed})", scene.name));
        share(&places, |places| {
            let mut site = Site::new(scene);
            for place in places {
                let Place { first, calls, killed } = *place;
                // The second switch at every place where there is one, or only where the other has to wait or ends.
                let every = if most == usize::MAX { 1..usize::MAX } else { usize::MAX - 1..usize::MAX };
                for others in every {
                    let order = Order { first, calls, others, killed };
                    let came = site.set().and_then(|()| carry_out(&site, order));
                    let judged = came.and_then(|came| judge(&site, order, &came).map(|()| came));
                    tally.tried(judged.as_ref().map_or(true, |came| came.met));
                    match judged {
                        // It can't go further: more calls would be the same order again.
                        Ok(came) if came.others < others => break,
                        Ok(_) => {}
                        Err(why) => {
                            tally.failed(&format!("{order:?} of {:?}: {why}", scene.acts));
                            site = Site::new(scene);
                            break;
                        }
                    }
                }
            }
        });
        wrong += tally.end();
    }
    announce("NOTE", &format!("{} scenes", scenes().len()));
    assert_eq!(wrong, 0, "wrong, see above");
}
