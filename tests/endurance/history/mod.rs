//! A history: pods are added and deleted in every possible way, while clean-ups run and processes are killed.
//!
//! The ways are `cnimble add` and `del`, another runtime with our plugins and the Go plugins, `cnimble pod`, `cnimble
//! run` and containerd. Plugins, commands and `run` are killed. Everything is logged, and a checker reads the log. No
//! ADD that succeeded may lose anything before its DEL begins, and no address may have two living owners.
//! `scripts/stress history` runs for a long time.

mod check;
mod clean;
mod containers;
mod log;
mod look;
mod plan;
mod pods;
mod site;
mod workers;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};

use cnimble_tests::{PATIENCE, announce, go_to_meet, need, wait_until};

use self::log::{Event, Log, Meaning, Outcome};
use self::look::Claim;
use self::site::Site;
use super::number;

const WORKERS: usize = 3;
const CLEANERS: usize = 2;

/// The state that all actors share.
struct Board<'s> {
    site: &'s Site,
    end: Instant,
    /// Attachments after their ADD and before the start of their DEL.
    living: Mutex<BTreeMap<String, Claim>>,
    /// A list of valid attachments is correct only while its network gets no new ones.
    gate: RwLock<()>,
    /// The number of actors that may still do something.
    busy: AtomicUsize,
    looked: AtomicBool,
}

impl Board<'_> {
    fn is_over(&self) -> bool {
        Instant::now() > self.end
    }

    fn enter(&self, who: &str, claim: Claim) {
        self.living.lock().unwrap().insert(who.to_owned(), claim);
    }

    fn leave(&self, who: &str) {
        self.living.lock().unwrap().remove(who);
    }

    fn claim(&self, who: &str) -> Option<Claim> {
        self.living.lock().unwrap().get(who).cloned()
    }

    fn all(&self) -> Vec<(String, Claim)> {
        self.living.lock().unwrap().iter().map(|(who, claim)| (who.clone(), claim.clone())).collect()
    }

    /// Looks at everything again and again, and once more when all actors are done.
    fn look(&self) {
        loop {
            let last = self.busy.load(Ordering::SeqCst) == 0;
            self.site.look(&self.all());
            if last {
                self.looked.store(true, Ordering::SeqCst);
                return;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// An active actor. It is dropped even if the actor panics.
struct Busy<'b>(&'b Board<'b>);

impl Busy<'_> {
    /// Waits for the last look, for actors that remove their pods at their end.
    fn wait_for_the_last_look(self) {
        let board = self.0;
        drop(self);
        wait_until(PATIENCE, || board.looked.load(Ordering::SeqCst));
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Runs all actors until the time is over, and looks at everything when they have stopped.
fn act(board: &Board<'_>, seed: u64, containerd: bool) {
    type Actor<'b> = Box<dyn FnOnce(Busy<'b>) + Send + 'b>;
    let mut actors: Vec<Actor<'_>> = Vec::new();
    for number in 0..WORKERS {
        actors.push(Box::new(move |_busy| workers::work(board, seed, number)));
    }
    for number in 0..CLEANERS {
        actors.push(Box::new(move |_busy| clean::clean(board, seed, number)));
    }
    actors.push(Box::new(move |_busy| pods::pod(board, seed)));
    actors.push(Box::new(move |busy| pods::runner(board, seed, busy)));
    if containerd {
        actors.push(Box::new(move |busy| containers::containers(board, seed, busy)));
    }
    board.busy.store(actors.len(), Ordering::SeqCst);
    std::thread::scope(|scope| {
        for actor in actors {
            scope.spawn(move || actor(Busy(board)));
        }
        board.look();
    });
}

/// Returns the number of operations of each kind, for the report.
fn counts(events: &[Event]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for event in events {
        let name = match event {
            Event::Begin { meaning: Meaning::Adds, .. } => "ADDs",
            Event::Begin { meaning: Meaning::Ends, .. } => "DELs",
            Event::Begin { what, .. } if what.starts_with("gc ") => "gc --gone",
            Event::Begin { what, .. } if what.starts_with("doctor ") => "doctor --repair",
            Event::Begin { what, .. } if what.starts_with("CHECK") => "CHECKs",
            Event::Begin { what, .. } if what.starts_with("SIG") => "ends of run",
            Event::Begin { .. } => "others",
            Event::End { outcome: Outcome::Killed(_), .. } => "killed",
            Event::End { outcome: Outcome::Theirs(_), .. } => "failures of the Go plugins",
            Event::End { .. } => continue,
            Event::Look { .. } => "looks",
        };
        *counts.entry(name).or_default() += 1;
    }
    counts.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
}

#[test]
fn history_of_a_node_has_no_loss_before_its_del() {
    need!("ip", "nft", "iptables-nft-save", "unshare", "nsenter");
    let (seconds, seed) = (number("CNIMBLE_HISTORY_SECONDS", 15), number("CNIMBLE_SEED", 1));
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("history-{seed}.jsonl"));
    let go = go_to_meet().ok();
    // A daemon and its containers need more than a few seconds.
    let containerd = seconds >= 60 && containers::why_not().is_none();
    announce(
        "NOTE",
        &format!(
            "seed {seed}, {seconds} s, Go plugins: {go:?}, containerd: {containerd}; {}",
            path.display()
        ),
    );
    // Built before the measured time.
    cnimble_tests::command();
    let site = Site::new(Log::create(&path), go);
    let board = Board {
        site: &site,
        end: Instant::now() + Duration::from_secs(seconds),
        living: Mutex::default(),
        gate: RwLock::default(),
        busy: AtomicUsize::new(0),
        looked: AtomicBool::new(false),
    };
    act(&board, seed, containerd);
    let events = site.log.events();
    announce("NOTE", &format!("seed {seed}: {}", counts(&events)));
    let was_told = |event: &Event| matches!(event, Event::End { told, .. } if !told.is_empty());
    assert!(events.iter().any(was_told), "no ADD succeeded: log {}", site.log.path().display());
    let found = check::findings(&events);
    assert!(found.is_empty(), "seed {seed}, log {}: {found:#?}", site.log.path().display());
    let left = end(&board);
    assert!(left.is_empty(), "seed {seed}, log {}: left in the end: {left:#?}", site.log.path().display());
}

/// Ends everything, and cleans up attachments without a DEL. Returns the remains.
fn end(board: &Board<'_>) -> Vec<String> {
    let site = board.site;
    for (who, claim) in board.all() {
        let begun = site.log.begin("end", Meaning::Ends, &who, "namespace removed");
        board.leave(&who);
        if claim.netns.starts_with("/run/netns/") {
            site.node.sh(&format!("ip netns del {}", claim.id));
        }
        site.log.end(begun, Outcome::Done, log::Facts::new());
    }
    // This includes attachments after a killed ADD and without a DEL.
    site.node.sh("ip -all netns del");
    pods::all_down(site);
    let mut left = Vec::new();
    wait_until(PATIENCE, || {
        clean::sweep(site);
        left = site.left();
        left.is_empty()
    });
    left
}
