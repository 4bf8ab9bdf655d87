//! Two concurrent verbs of a network: one stops before a call with a visible effect, and the other runs there.
//!
//! The possible stops are calls on files and messages to the kernel. The state after both verbs must be that of one of
//! the two sequential orders. Other pods must not notice anything, and no verb may fail because of the other.

mod actor;
mod node;

use cnimble_tests::trace::untraceable;
use cnimble_tests::{Snapshot, need, sample_size, skip};

use crate::kinds::{Kind, others};
use crate::points::{Chance, Tally, seed, share_by};

use actor::Actor;
use node::Node;

/// A verb for one of the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    Add(usize),
    /// An ADD that completes its work, but cannot write its result.
    Unheard(usize),
    Del(usize),
    Check(usize),
    /// A GC for which all pods but this one are valid.
    GcBut(usize),
    Status,
}

use Act::{Add, Check, Del, GcBut, Status, Unheard};

/// The pods that exist before, and the two concurrent verbs.
#[derive(Debug, Clone, Copy)]
pub struct Scene {
    pub before: &'static [usize],
    pub acts: [Act; 2],
}

impl Scene {
    /// Returns true if both acts remove a pod, or undo an incomplete ADD.
    fn takes_two(&self) -> bool {
        self.acts.iter().all(|act| matches!(act, Del(_) | GcBut(_) | Unheard(_)))
    }
}

const SCENES: &[Scene] = &[
    Scene { before: &[], acts: [Add(0), Add(1)] },
    Scene { before: &[], acts: [Unheard(0), Add(1)] },
    Scene { before: &[], acts: [Unheard(0), Unheard(1)] },
    Scene { before: &[1], acts: [Add(0), Del(1)] },
    Scene { before: &[1], acts: [Unheard(0), Del(1)] },
    Scene { before: &[1], acts: [Add(0), GcBut(1)] },
    Scene { before: &[1], acts: [Add(0), Check(1)] },
    Scene { before: &[0, 1], acts: [Del(0), Del(1)] },
    Scene { before: &[0, 1], acts: [Del(0), Check(1)] },
    Scene { before: &[0, 1], acts: [Del(0), GcBut(1)] },
    Scene { before: &[0, 1], acts: [GcBut(0), Check(1)] },
    Scene { before: &[0], acts: [Del(0), Del(0)] },
    Scene { before: &[0], acts: [Del(0), GcBut(0)] },
    Scene { before: &[0], acts: [GcBut(0), GcBut(0)] },
    Scene { before: &[], acts: [Add(0), Status] },
];

/// The verb that stops, the call before which it stops, and the number of calls that the other makes meanwhile.
#[derive(Debug, Clone, Copy)]
struct Order {
    first: usize,
    calls: usize,
    others: usize,
}

/// Runs both verbs to their ends in this order. Returns whether the first reached its stop.
fn carry_out(node: &Node, scene: Scene, order: Order) -> Result<bool, String> {
    let [mut one, mut two] = scene.acts.map(|act| Actor::new(node, act));
    let (first, other) = if order.first == 0 { (&mut one, &mut two) } else { (&mut two, &mut one) };
    let met = first.lead(order.calls) == order.calls && !first.has_ended();
    other.lead(order.others);
    while !(first.has_ended() && other.has_ended()) {
        let made = first.lead(usize::MAX) + other.lead(usize::MAX);
        if made == 0 && !(first.has_ended() && other.has_ended()) {
            return Err(format!("both wait: {} and {}", first.stands(), other.stands()));
        }
    }
    let ended = [one.end(), two.end()];
    node.settle(scene, ended)?;
    Ok(met)
}

/// Runs the two verbs one after the other. Returns the final state and the number of calls of each verb.
fn alone(kind: &Kind, scene: Scene, first: usize) -> (Snapshot, [usize; 2]) {
    let node = Node::new(kind, scene.before);
    let mut lengths = [0; 2];
    let mut ended = [None, None];
    for at in [first, 1 - first] {
        let mut actor = Actor::new(&node, scene.acts[at]);
        lengths[at] = actor.lead(usize::MAX);
        ended[at] = Some(actor.end());
    }
    node.settle(scene, ended.map(Option::unwrap)).unwrap_or_else(|why| panic!("{scene:?} one by one: {why}"));
    (node.rest(scene), lengths)
}

/// Returns the allowed final states. They are those of the sequential orders. A failing verb may also have helped the
/// other with something that stays after any ADD.
fn rests(kind: &Kind, scene: Scene) -> (Vec<Snapshot>, [usize; 2]) {
    let [(one, many), (two, few)] = [0, 1].map(|first| alone(kind, scene, first));
    let lengths = [many[0].min(few[0]), many[1].min(few[1])];
    let mut rests = vec![one, two];
    let heard = |act| if let Unheard(who) = act { Add(who) } else { act };
    let heard = Scene { acts: scene.acts.map(heard), ..scene };
    if heard.acts != scene.acts {
        rests.push(alone(kind, heard, 0).0);
    }
    (rests, lengths)
}

fn try_order(kind: &Kind, scene: Scene, order: Order, rests: &[Snapshot]) -> Result<bool, String> {
    let node = Node::new(kind, scene.before);
    let met = carry_out(&node, scene, order)?;
    let mut differences = node.differences(scene, rests);
    if !differences.is_empty() && scene.takes_two() {
        // Each verb may have assumed that the other pod stays. GC removes the rest of both.
        node.tidy()?;
        differences = node.differences(scene, rests);
    }
    if differences.is_empty() { Ok(met) } else { Err(format!("left behind both:\n{differences}")) }
}

fn count_order(kind: &Kind, scene: Scene, order: Order, rests: &[Snapshot], tally: &Tally) {
    let tried = try_order(kind, scene, order, rests);
    tally.tried(*tried.as_ref().unwrap_or(&true));
    if let Err(why) = tried {
        tally.failed(&format!("{scene:?} {order:?}: {why}"));
    }
}

/// Returns every order of a scene, or at most `most`.
fn orders(lengths: [usize; 2], most: usize, chance: &mut Chance) -> Vec<Order> {
    let mut orders = Vec::new();
    for first in 0..2 {
        for calls in 1..lengths[first] {
            // In every other order, the first resumes while the other is still running.
            let others = if chance.below(2) == 0 { usize::MAX } else { chance.below(lengths[1 - first]) };
            orders.push(Order { first, calls, others });
        }
    }
    chance.some(orders, most)
}

/// The work of a node after its last pod takes time, but hardly any processor time.
const HANDS: usize = 6;

/// Runs every scene, each at every stop or at no more than `otherwise`.
fn in_company(kind: &Kind, otherwise: usize) {
    in_scenes(SCENES, kind, otherwise);
}

fn in_scenes(scenes: &[Scene], kind: &Kind, otherwise: usize) {
    need!("ip", "nft");
    if let Some(why) = untraceable() {
        skip!("{why}");
    }
    let tally = Tally::new(&format!("two verbs of {} (seed {})", kind.name, seed()));
    share_by(HANDS, scenes, |scenes| {
        for scene in scenes {
            let (rests, lengths) = rests(kind, *scene);
            for order in orders(lengths, sample_size(otherwise), &mut Chance::new(seed())) {
                count_order(kind, *scene, order, &rests, &tally);
            }
        }
    });
    assert_eq!(tally.end(), 0, "wrong, see above");
}

#[test]
fn two_verbs_of_bridge_at_any_call() {
    in_company(&Kind::of("first bridge"), 2);
}

/// The failed ADD has made the bridge. Its undo looks whether other pods use it, and the other ADD may join between that
/// look and a removal. Few of all stops lie there, so each stop of the second half is tried.
#[test]
fn an_undo_takes_nothing_from_an_add_that_joins_meanwhile() {
    need!("ip", "nft");
    if let Some(why) = untraceable() {
        skip!("{why}");
    }
    let kind = Kind::of("first bridge");
    let scene = Scene { before: &[], acts: [Unheard(0), Add(1)] };
    let tally = Tally::new("an undo beside an ADD");
    let (rests, lengths) = rests(&kind, scene);
    let stops: Vec<usize> = (lengths[0] / 2..lengths[0]).collect();
    share_by(HANDS, &stops, |stops| {
        for calls in stops {
            let order = Order { first: 0, calls: *calls, others: usize::MAX };
            count_order(&kind, scene, order, &rests, &tally);
        }
    });
    assert_eq!(tally.end(), 0, "wrong, see above");
}

#[test]
fn two_verbs_of_an_edited_bridge_at_any_call() {
    in_company(&Kind::of("edited bridge"), 1);
}

#[test]
fn two_verbs_of_ptp_at_any_call() {
    in_company(&Kind::of("ptp"), 1);
}

#[test]
fn two_verbs_of_a_chain_at_any_call() {
    in_company(&Kind::of("chain"), 2);
}

/// Without loopback, which has only the pod's own `lo`, and without static, which gives both pods the same address.
/// Without CNIMBLE_STRESS each plugin gets every fourth scene.
#[test]
fn two_verbs_of_every_other_plugin_at_any_call() {
    let all = std::env::var_os("CNIMBLE_STRESS").is_some();
    let is_alone = |plugin: &str| ["loopback", "static"].contains(&plugin);
    let samples = others().filter(|sample| sample.missing().is_none() && !is_alone(&sample.plugin));
    for (number, sample) in samples.enumerate() {
        let scenes = SCENES.iter().enumerate().filter(|(at, _)| all || at % 4 == number % 4);
        let scenes: Vec<Scene> = scenes.map(|(_, scene)| *scene).collect();
        in_scenes(&scenes, &Kind::of(&sample.plugin), 3);
    }
}
