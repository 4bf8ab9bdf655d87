//! Chooses the points to try, distributes them to threads and reports the counts.

use std::sync::atomic::{AtomicUsize, Ordering};

use cnimble_tests::trace::untraceable;
use cnimble_tests::{announce, need, seclude_thread, skip};

use crate::kinds::Kind;
use crate::site::{Site, Verb};

/// Returns the verbs to try on a network in the virtual machine: all for the first network, `few` for the others. The
/// others share most of their code with the first one and with the tests outside. `scripts/stress` tries all.
pub fn verbs_inside<'v>(first: bool, all: &'v [Verb], few: &'v [Verb]) -> &'v [Verb] {
    if first || std::env::var_os("CNIMBLE_STRESS").is_some() { all } else { few }
}

/// Returns the random seed, from CNIMBLE_SEED. Without it the sample is always the same, so that test runs are
/// reproducible. `scripts/stress` sets a new one each time.
pub fn seed() -> u64 {
    std::env::var("CNIMBLE_SEED").map_or(1, |seed| seed.parse().expect("CNIMBLE_SEED: a number"))
}

/// A pseudo-random number generator (xorshift), with the same sequence for the same seed.
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Chance(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % end as u64).unwrap()
    }

    /// Returns at most `most` elements of a list, in their order.
    pub fn some<T>(&mut self, mut list: Vec<T>, most: usize) -> Vec<T> {
        while list.len() > most {
            let at = self.below(list.len());
            list.remove(at);
        }
        list
    }
}

/// The n-th step (from 0) of a verb of a plugin.
#[derive(Debug, Clone)]
pub struct Nth {
    pub verb: Verb,
    /// The index of the plugin in the chain.
    pub at: usize,
    pub nth: usize,
}

/// Returns all steps of a verb, or at most `most`. `count` returns their number for each plugin of the chain.
pub fn numbered(
    kind: &Kind,
    verb: Verb,
    most: usize,
    chance: &mut Chance,
    count: impl Fn(usize) -> usize,
) -> Vec<Nth> {
    let of = |at| (0..count(at)).map(move |nth| Nth { verb, at, nth });
    chance.some((0..Site::new(kind).length()).flat_map(of).collect(), most)
}

/// The counts of a test.
pub struct Tally {
    what: String,
    tried: AtomicUsize,
    met: AtomicUsize,
    wrong: AtomicUsize,
}

/// The number of points between two progress messages.
const PROGRESS: usize = 500;

/// The minimum size of a sample. With fewer points the program was not traced.
pub const FEWEST: usize = 4;

/// The number of attempts to reach a point.
const ATTEMPTS: usize = 3;

/// The number of failures that are printed. Further ones are only counted.
const SHOWN: usize = 10;

impl Tally {
    pub fn new(what: &str) -> Self {
        let zero = || AtomicUsize::new(0);
        Tally { what: what.to_owned(), tried: zero(), met: zero(), wrong: zero() }
    }

    /// Counts one more point, and whether the verb reached it.
    pub fn tried(&self, met: bool) {
        let tried = self.tried.fetch_add(1, Ordering::Relaxed) + 1;
        if tried.is_multiple_of(PROGRESS) {
            announce("...", &format!("{}: {tried}", self.what));
        }
        self.met.fetch_add(usize::from(met), Ordering::Relaxed);
    }

    pub fn failed(&self, why: &str) {
        if self.wrong.fetch_add(1, Ordering::Relaxed) < SHOWN {
            announce("WRONG", &format!("{}: {why}", self.what));
        }
    }

    /// Prints the counts. Returns how many points went wrong.
    pub fn end(self) -> usize {
        let [tried, met, wrong] = [self.tried, self.met, self.wrong].map(AtomicUsize::into_inner);
        announce("NOTE", &format!("{}: {tried} points tried, {met} reached, {wrong} wrong", self.what));
        assert!(tried >= FEWEST, "only {tried} points?");
        assert!(met * 10 > tried * 9, "only {met} of {tried} points were reached");
        wrong
    }
}

/// Processes a list with two threads.
pub fn share<T: Sync>(list: &[T], work: impl Fn(&mut dyn Iterator<Item = &T>) + Sync) {
    share_by(2, list, work);
}

/// Processes a list with `hands` threads, each with a `/run` of its own.
pub fn share_by<T: Sync>(hands: usize, list: &[T], work: impl Fn(&mut dyn Iterator<Item = &T>) + Sync) {
    let next = AtomicUsize::new(0);
    let name = std::thread::current().name().unwrap_or("?").to_owned();
    std::thread::scope(|scope| {
        for _ in 0..hands {
            let hand = || {
                seclude_thread();
                work(&mut std::iter::from_fn(|| list.get(next.fetch_add(1, Ordering::Relaxed))));
            };
            std::thread::Builder::new().name(name.clone()).spawn_scoped(scope, hand).unwrap();
        }
    });
}

/// Runs `once` at each of the `points` of a network's verbs, and fails the test if any went wrong. A node is reused
/// until a point goes wrong on it. `name` describes a point.
pub fn at_each_point<P: Sync>(
    what: &str,
    kind: &str,
    verbs: &[Verb],
    points: impl Fn(&Kind, Verb, u64) -> Vec<P>,
    once: impl Fn(&mut Site, &P) -> Result<bool, String> + Sync,
    name: impl Fn(&Site, &P) -> String + Sync,
) {
    need!("ip", "nft");
    if let Some(why) = untraceable() {
        skip!("{why}");
    }
    let kind = &Kind::of(kind);
    let seed = seed();
    let mut wrong = 0;
    for verb in verbs {
        let points = points(kind, *verb, seed);
        let tally = Tally::new(&format!("{what} in {} of {} (seed {seed})", verb.name(), kind.name));
        share(&points, |points| {
            let mut site = Site::new(kind);
            for point in points {
                let mut outcome = once(&mut site, point);
                for _ in 1..ATTEMPTS {
                    // On a busy machine a verb may take another path, with fewer calls.
                    if !matches!(outcome, Ok(false)) {
                        break;
                    }
                    site = Site::new(kind);
                    outcome = once(&mut site, point);
                }
                tally.tried(*outcome.as_ref().unwrap_or(&true));
                let failed = outcome.is_err();
                if let Err(why) = outcome {
                    tally.failed(&format!("{}: {why}", name(&site, point)));
                }
                if failed || !kind.neighbour {
                    site = Site::new(kind);
                }
            }
        });
        wrong += tally.end();
    }
    assert_eq!(wrong, 0, "wrong, see above");
}
