//! Runs of equal lines in two places.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::Source;

/// A run of so many equal lines of code counts.
const LONG: usize = 6;

/// Lines of code that say little, such as a closing brace, do not count.
const WORDS: usize = 4;

/// Pairs of places with equal runs, each as text.
pub(crate) fn duplicates(sources: &[Source]) -> Vec<String> {
    let lines: Vec<Vec<(usize, &str)>> = sources.iter().map(counted).collect();
    let mut places: BTreeMap<Vec<&str>, Vec<(usize, usize)>> = BTreeMap::new();
    for (file, lines) in lines.iter().enumerate() {
        for (at, run) in lines.windows(LONG).enumerate() {
            places.entry(run.iter().map(|(_, text)| *text).collect()).or_default().push((file, at));
        }
    }
    let mut pairs = BTreeSet::new();
    for same in places.values() {
        for (number, one) in same.iter().enumerate() {
            pairs.extend(same[number + 1..].iter().map(|other| (*one, *other)));
        }
    }
    // A longer run is many pairs, each one line on. The first of them stands for it.
    let before = |(file, at): (usize, usize)| at.checked_sub(1).map(|at| (file, at));
    let is_first = |(one, other): &&((usize, usize), (usize, usize))| match (before(*one), before(*other)) {
        (Some(one), Some(other)) => !pairs.contains(&(one, other)),
        _ => true,
    };
    let place =
        |(file, at): (usize, usize)| format!("{}:{}", sources[file].path.display(), lines[file][at].0 + 1);
    pairs.iter().filter(is_first).map(|(one, other)| format!("{} {}", place(*one), place(*other))).collect()
}

/// The lines that count, with their numbers from 0.
fn counted(source: &Source) -> Vec<(usize, &str)> {
    let lines = source.code.iter().enumerate().map(|(number, line)| (number, line.trim()));
    lines
        .filter(|(_, line)| line.chars().filter(|letter| letter.is_alphanumeric()).count() >= WORDS)
        .filter(|(_, line)| !line.starts_with("use ") && !line.starts_with("#["))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_run_counts_once() {
        let run: String = (0..8).map(|number| format!("let line{number} = other{number};\n")).collect();
        let sources = ["a.rs", "b.rs"].map(|path| Source::new(Path::new(path), &format!("// {path}\n{run}")));
        assert_eq!(duplicates(&sources), ["a.rs:2 b.rs:2"]);
    }
}
