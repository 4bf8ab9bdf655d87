//! The same kills for the Go plugins, to compare the remains.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use cnimble_tests::trace::untraceable;
use cnimble_tests::{announce, need_go, plugin_dir, sample_size, skip};

use crate::kill::{Aftermath, Point, die};
use crate::kinds::Kind;
use crate::points::{Chance, seed, share};
use crate::site::{Site, Verb};

/// The kinds of damage, and how they appear in the message of [`die`].
const DAMAGE: [(&str, &[&str]); 5] = [
    ("lease left", &["\n  leases +"]),
    ("link left", &["\n  link +"]),
    ("rules left", &["\n  nft +", "\n  iptables-nft +", "\n  ip6tables-nft +"]),
    ("DEL fails", &["DEL: "]),
    ("next ADD fails", &["the next ADD: "]),
];

/// Returns one line of the table: the number of kills, and the number with each kind of damage.
fn row(
    plugins: &Path,
    verb: Verb,
    aftermath: Aftermath,
    most: usize,
    chance: &mut Chance,
) -> (usize, String) {
    let kind = Kind::common();
    let calls = Site::by(plugins, &kind).calls(verb, 0);
    let point = |n| Point { verb, at: 0, n, call: String::new(), alone: false, aftermath };
    let points = chance.some((0..calls.len()).map(point).collect(), most);
    let damage: Mutex<BTreeMap<&str, usize>> = Mutex::default();
    share(&points, |points| {
        let mut site = Site::by(plugins, &kind);
        for point in points {
            let Err(mut why) = die(&mut site, point) else { continue };
            if why.starts_with("DEL: ") {
                // A DEL that fails may still have done its work.
                why += &format!("\n{}", site.diff());
            }
            let mut damage = damage.lock().unwrap();
            for (what, signs) in DAMAGE {
                if signs.iter().any(|sign| why.contains(sign)) {
                    let count = damage.entry(what).or_default();
                    *count += 1;
                    if *count == 1 {
                        announce("FIRST", &format!("{what}, {point:?}: {why}"));
                    }
                }
            }
            *damage.entry("any").or_default() += 1;
            drop(damage);
            site = Site::by(plugins, &kind);
        }
    });
    let damage = damage.into_inner().unwrap();
    let count = |what: &str| damage.get(what).copied().unwrap_or(0);
    let cells: Vec<String> = DAMAGE.iter().map(|(what, _)| count(what).to_string()).collect();
    let line = format!("{} of {} | {} | {}", points.len(), calls.len(), count("any"), cells.join(" | "));
    (count("any"), line)
}

/// Fails if our plugins leave anything. Only reports the remains of the Go plugins.
#[test]
fn killed_like_the_go_plugins() {
    need_go!(go, "ip", "nft", "iptables-nft-save");
    if let Some(why) = untraceable() {
        skip!("{why}");
    }
    let seed = seed();
    let mut chance = Chance::new(seed);
    let heads: Vec<&str> = DAMAGE.iter().map(|(what, _)| *what).collect();
    announce("NOTE", &format!("seed {seed}"));
    announce(
        "TABLE",
        &format!("| plugins | killed in | then DEL | points | damaged | {} |", heads.join(" | ")),
    );
    let mut ours = 0;
    for (name, plugins) in [("cnimble", plugin_dir()), ("Go", go)] {
        for verb in [Verb::Add, Verb::Del] {
            for (aftermath, after) in
                [(Aftermath::Del, "with the namespace"), (Aftermath::DelWithoutNetns, "after the namespace")]
            {
                let (damaged, line) = row(plugins, verb, aftermath, sample_size(4).min(300), &mut chance);
                announce("TABLE", &format!("| {name} | {} | {after} | {line} |", verb.name()));
                ours += if name == "cnimble" { damaged } else { 0 };
            }
        }
    }
    assert_eq!(ours, 0, "ours leave something");
}
