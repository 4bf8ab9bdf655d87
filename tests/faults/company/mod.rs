//! Verbs of a network at once: one stands still before a call that others could notice, and another is carried out there.
//!
//! Calls about files and messages to the kernel are the places to stand at. What is left behind both must be what one of the
//! two orders without an overlap leaves; nobody else may notice anything, and no verb may fail for the other.

mod actor;
mod node;

use cnimble_tests::trace::untraceable;
use cnimble_tests::{Snapshot, need, skip};

use crate::kinds::{Kind, others};
use crate::points::{Chance, Tally, bound, seed, share_by};

use actor::Actor;
use node::Node;

/// A verb for one of the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    Add(usize),
    /// One that has done all its work, and can't say so.
    Unheard(usize),
    Del(usize),
    Check(usize),
    /// This pod is the only one that isn't valid.
    GcBut(usize),
    Status,
}

use Act::{Add, Check, Del, GcBut, Status, Unheard};

/// Who is there, and what happens at once.
#[derive(Debug, Clone, Copy)]
pub struct Scene {
    pub before: &'static [usize],
    pub acts: [Act; 2],
}

impl Scene {
    /// Whether both acts take a pod away, or what an ADD has begun.
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

/// Which of the two stands still, before which of its calls, and how many calls the other makes in the meantime.
#[derive(Debug, Clone, Copy)]
struct Order {
    first: usize,
    calls: usize,
    others: usize,
}

/// Lets both come to their ends in this order; whether the first came to its place.
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

/// What is left when one is behind the other; how many calls each makes.
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

/// What may be left: what is left when one is behind the other; who fails may have helped another to what stays of any ADD.
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
        // Each may have taken the other for one that stays. What is then left of both is for GC.
        node.tidy()?;
        differences = node.differences(scene, rests);
    }
    if differences.is_empty() { Ok(met) } else { Err(format!("left behind both:\n{differences}")) }
}

/// Every place of a scene, or so many.
fn orders(lengths: [usize; 2], most: usize, chance: &mut Chance) -> Vec<Order> {
    let mut orders = Vec::new();
    for first in 0..2 {
        for calls in 1..lengths[first] {
            // Every other time, the first goes on while the other is on its way.
            let others = if chance.below(2) == 0 { usize::MAX } else { chance.below(lengths[1 - first]) };
            orders.push(Order { first, calls, others });
        }
    }
    chance.some(orders, most)
}

/// What a node does behind its last pod takes time, but hardly any of a processor's.
const HANDS: usize = 6;

/// Every scene, each at every place, or at so many.
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
            for order in orders(lengths, bound(otherwise), &mut Chance::new(seed())) {
                let tried = try_order(kind, *scene, order, &rests);
                tally.tried(*tried.as_ref().unwrap_or(&true));
                if let Err(why) = tried {
                    tally.failed(&format!("{scene:?} {order:?}: {why}"));
                }
            }
        }
    });
    assert_eq!(tally.end(), 0, "wrong, see above");
}

#[test]
fn two_verbs_of_bridge_at_any_call() {
    in_company(&Kind::of("first bridge"), 2);
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

/// Not loopback, which has nothing but the pod's own `lo`, and not static, which gives both pods the same address. Without
/// CNIMBLE_STRESS each has every fourth scene.
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
