//! Runs the fuzzers' targets for a short time, on the corpus and on reproducible changes of it. `CNIMBLE_FUZZ_RUNS` is
//! the number of runs for each target, and `CNIMBLE_FUZZ_SEED` the start of the loop.
#![cfg(test)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use cnimble_fuzz_targets::TARGETS;

/// Enough for every byte of a small corpus, in some seconds for all targets together.
const RUNS: usize = 4000;
/// The maximum size of inputs, as faults show in small ones.
const LIMIT: usize = 4096;

/// Values that often cause faults.
const BYTES: &[u8] =
    &[0, 1, 2, 3, 4, 8, 0x10, 0x7f, 0x80, 0xfe, 0xff, b'"', b'{', b'[', b',', b'=', b';', b'\n'];

/// Words that a random change would hardly produce.
const WORDS: &[&[u8]] = &[
    b"null",
    b"-1",
    b"18446744073709551616",
    b"1e999",
    b"1.5",
    b"true",
    b"{}",
    b"[]",
    b"\\u0000",
    b"\\ud800",
    b"0.0.0.0/0",
    b"255.255.255.255/32",
    b"::/0",
    b"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128",
    b"::ffff:10.1.2.3",
    b"1.1.0",
    b"\xc3\xa9",
    b"\r\n",
];

/// A xorshift64* generator, which is good enough and the same everywhere.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(number).unwrap() % limit.max(1)
    }

    fn change(&mut self, input: &mut Vec<u8>, other: &[u8]) {
        let at = self.below(input.len() + 1);
        let length = self.below(16.min(input.len() - at) + 1);
        match self.below(8) {
            0 if at < input.len() => input[at] ^= 1 << self.below(8),
            1 if at < input.len() => input[at] = BYTES[self.below(BYTES.len())],
            2 => drop(input.drain(at..at + length)),
            3 => {
                let piece = input[at..at + length].to_vec();
                let to = self.below(input.len() + 1);
                input.splice(to..to, piece);
            }
            4 => {
                let from = self.below(other.len() + 1);
                let end = (from + self.below(32)).min(other.len());
                input.splice(at..at + length, other[from..end].iter().copied());
            }
            5 => drop(input.splice(at..at + length, WORDS[self.below(WORDS.len())].iter().copied())),
            6 => input.truncate(at),
            _ => input.insert(at, BYTES[self.below(BYTES.len())]),
        }
        input.truncate(LIMIT);
    }
}

fn number(variable: &str, usual: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Returns the configurations of the plugins' samples.
fn samples() -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = ["plugins", "ipam"].map(|dir| std::fs::read_dir(root.join(dir)).unwrap());
    let mut paths: Vec<_> =
        folders.into_iter().flatten().map(|entry| entry.unwrap().path().join("sample.json")).collect();
    paths.sort();
    let texts = paths.iter().filter_map(|path| std::fs::read(path).ok());
    texts
        .map(|text| serde_json::from_slice::<serde_json::Value>(&text).unwrap()["config"].to_string().into())
        .collect()
}

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let entries = std::fs::read_dir(&dir).unwrap_or_else(|err| panic!("{}: {err}", dir.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut corpus: Vec<Vec<u8>> = paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
    if name == "config" {
        let samples = samples();
        assert!(samples.len() >= 10, "{} samples", samples.len());
        corpus.extend(samples);
    }
    corpus
}

#[test]
fn every_target_takes_any_bytes() {
    let (runs, seed) = (number("CNIMBLE_FUZZ_RUNS", RUNS), number("CNIMBLE_FUZZ_SEED", 1));
    let mut count = 0;
    for (name, target) in TARGETS {
        let corpus = corpus(name);
        assert!(!corpus.is_empty(), "no corpus for {name}");
        let mut chance = Chance(0x9e37_79b9_7f4a_7c15 ^ u64::try_from(seed).unwrap());
        let run = |input: &[u8]| {
            if catch_unwind(AssertUnwindSafe(|| target(input))).is_err() {
                panic!(
                    "{name}, seed {seed}: fails on these {} bytes:\n{}",
                    input.len(),
                    input.escape_ascii()
                );
            }
        };
        corpus.iter().for_each(|input| run(input));
        run(b"");
        for _ in 0..runs {
            let mut input = corpus[chance.below(corpus.len())].clone();
            let other = &corpus[chance.below(corpus.len())];
            for _ in 0..=chance.below(4) {
                chance.change(&mut input, other);
            }
            run(&input);
        }
        count += corpus.len() + 1 + runs;
    }
    println!("NOTE {count} inputs for {} targets, seed {seed}", TARGETS.len());
}

/// `scripts/fuzz` runs the same targets as this file.
#[test]
fn every_target_has_a_fuzzer() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/fuzz_targets");
    let mut files: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    let names: Vec<String> = TARGETS.iter().map(|(name, _)| format!("{name}.rs")).collect();
    assert_eq!(files, names);
}
