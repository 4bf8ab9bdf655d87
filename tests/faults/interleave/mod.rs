//! Two concurrent verbs of host-local, in every order of their system calls with at most two switches.
//!
//! The test uses the shipped plugin and a real directory, not a model of the lock, the index and the leases. One
//! process stops before its n-th call on the directory. The other runs as far as it can, or to its m-th call. Then the
//! first runs to its end, or is killed where it stopped, and the other follows. A process that waits for the lock is
//! skipped until it has the lock.

mod judge;
mod site;

use serde_json::json;

use cnimble_tests::trace::{Places, State, Stepped, untraceable};
use cnimble_tests::{Outcome, need, sample_size, skip};

use crate::points::{Chance, Tally, seed, share};

use judge::judge;
use site::Act::{self, Add, AddIfRoom, Del, Fails, GcBut};
use site::{Scene, Site};

fn fresh(name: &'static str, acts: [Act; 2]) -> Scene {
    let ranges = json!([[{ "subnet": "10.9.0.0/24" }], [{ "subnet": "fd09::/64" }]]);
    Scene { name, ranges, many: 0, before: &[], void: &[], acts }
}

fn few(name: &'static str, acts: [Act; 2]) -> Scene {
    Scene { before: &["a", "b"], ..fresh(name, acts) }
}

/// A scene with room for two pods.
fn full(name: &'static str, acts: [Act; 2]) -> Scene {
    let range = json!({ "subnet": "10.9.0.0/29", "rangeStart": "10.9.0.2", "rangeEnd": "10.9.0.3" });
    Scene { ranges: json!([[range]]), ..few(name, acts) }
}

/// A scene in which the oldest lease is from an earlier boot.
fn void(name: &'static str, acts: [Act; 2]) -> Scene {
    Scene { void: &["a"], ..full(name, acts) }
}

/// A scene with enough leases for an index.
fn many(name: &'static str, acts: [Act; 2]) -> Scene {
    Scene { many: 70, ..few(name, acts) }
}

/// The process that starts first, and the number of calls before each switch.
#[derive(Debug, Clone, Copy)]
struct Order {
    first: usize,
    calls: usize,
    /// The calls of the other process before the second switch. The maximum means as far as it can.
    others: usize,
    /// Whether the first is killed at the switch.
    killed: bool,
}

/// The outcome of an order.
struct Came {
    outcomes: [Outcome; 2],
    /// The number of calls that the other made in between.
    others: usize,
    /// Whether the first reached its switch.
    met: bool,
}

/// Makes at most `calls` calls and returns how many it made.
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
    let mut processes = acts.map(|act| site.act(act).stepped(Places::Files(dir.clone())));
    let [one, two] = &mut processes;
    let (first, other) = if order.first == 0 { (one, two) } else { (two, one) };
    let met = lead(first, order.calls) == order.calls && !ended(first);
    let others = lead(other, order.others);
    if order.killed {
        first.kill();
    }
    // Each runs as far as it can, in turn, until both have ended.
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

/// Returns how many possible switches an act has when it runs alone.
fn length(scene: &Scene, number: usize) -> usize {
    let site = Site::new(scene);
    site.set().unwrap();
    let mut process = site.act(scene.acts[number]).stepped(Places::Files(site.host.data_dir()));
    lead(&mut process, usize::MAX)
}

/// Returns all orders with one switch.
fn places(scene: &Scene) -> Vec<Order> {
    let mut places = Vec::new();
    for first in 0..2 {
        for calls in 1..length(scene, first) {
            places.extend([false, true].map(|killed| Order { first, calls, others: usize::MAX, killed }));
        }
    }
    places
}

#[test]
fn two_verbs_on_a_fresh_node_in_any_order() {
    in_any_order(
        &[
            fresh("the first ADDs of a node", [Add("c"), Add("d")]),
            fresh("an ADD that takes its directory back, and an ADD", [Fails("c"), Add("d")]),
            fresh("two that take their directory back", [Fails("c"), Fails("d")]),
        ],
        40,
    );
}

#[test]
fn two_verbs_among_leases_in_any_order() {
    in_any_order(
        &[
            few("an ADD and a DEL", [Add("c"), Del("a")]),
            few("two DELs", [Del("a"), Del("b")]),
            few("two DELs of one", [Del("a"), Del("a")]),
            few("an ADD and a GC", [Add("c"), GcBut("a")]),
            few("a DEL and a GC of the same", [Del("a"), GcBut("a")]),
        ],
        12,
    );
}

#[test]
fn two_verbs_in_a_full_range_in_any_order() {
    in_any_order(
        &[
            full("an ADD into a full range and a DEL", [AddIfRoom("c"), Del("a")]),
            void("two ADDs for one void lease", [AddIfRoom("c"), AddIfRoom("d")]),
            void("an ADD and a DEL for one void lease", [AddIfRoom("c"), Del("a")]),
        ],
        20,
    );
}

#[test]
fn two_verbs_with_an_index_in_any_order() {
    in_any_order(
        &[
            many("two ADDs with an index", [Add("c"), Add("d")]),
            many("an ADD and a DEL with an index", [Add("c"), Del("a")]),
            many("an ADD that fails and a DEL with an index", [Fails("c"), Del("a")]),
            many("a GC and a DEL with an index", [GcBut("a"), Del("b")]),
            many("a GC and an ADD with an index", [GcBut("a"), Add("c")]),
        ],
        12,
    );
}

/// Runs every order of each scene, or `otherwise` first switches of each. The second switch is where the other has to
/// wait or ends.
fn in_any_order(scenes: &[Scene], otherwise: usize) {
    need!("ip");
    if let Some(why) = untraceable() {
        skip!("{why}");
    }
    let most = sample_size(otherwise);
    let seed = seed();
    let mut wrong = 0;
    for scene in scenes {
        let places = Chance::new(seed).some(places(scene), most);
        let tally = Tally::new(&format!("{} (seed {seed})", scene.name));
        share(&places, |places| {
            let mut site = Site::new(scene);
            for place in places {
                let second = if most == usize::MAX { 1 } else { usize::MAX };
                for others in second..=usize::MAX {
                    let tried = try_order(&site, Order { others, ..*place });
                    tally.tried(tried.as_ref().map_or(true, |came| came.met));
                    match tried {
                        // More calls would repeat the same order.
                        Ok(came) if came.others < others => break,
                        Ok(_) => {}
                        Err(why) => {
                            tally.failed(&format!(
                                "{place:?}, the other {others}, of {:?}: {why}",
                                scene.acts
                            ));
                            site = Site::new(scene);
                            break;
                        }
                    }
                }
            }
        });
        wrong += tally.end();
    }
    assert_eq!(wrong, 0, "wrong, see above");
}

fn try_order(site: &Site<'_>, order: Order) -> Result<Came, String> {
    site.set()?;
    let came = carry_out(site, order)?;
    judge(site, order, &came)?;
    Ok(came)
}
