//! Files of a crate that need each other.
//!
//! A file needs another if it names a path of it by `use`. A module and its own submodules count as one idea: what a
//! module exports of them, and what they take from it by `super`, is no arrow.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::source::Source;

/// Sets of two or more files, each of which needs the others, directly or through them.
pub(crate) fn cycles(sources: &[Source]) -> Vec<Vec<PathBuf>> {
    let mut crates: BTreeMap<PathBuf, Vec<&Source>> = BTreeMap::new();
    for source in sources {
        // The last folder `src`: the first may be the one of the workspace.
        let depth = source.path.iter().collect::<Vec<_>>().iter().rposition(|part| *part == "src");
        let root: PathBuf = source.path.iter().take(depth.map_or(0, |depth| depth + 1)).collect();
        crates.entry(root).or_default().push(source);
    }
    crates.iter().flat_map(|(root, files)| in_crate(root, files)).collect()
}

fn in_crate(root: &Path, files: &[&Source]) -> Vec<Vec<PathBuf>> {
    let modules: BTreeMap<Vec<String>, usize> =
        files.iter().enumerate().map(|(number, file)| (module(root, &file.path), number)).collect();
    let names: Vec<Vec<String>> = files.iter().map(|file| module(root, &file.path)).collect();
    let needs: Vec<BTreeSet<usize>> = files
        .iter()
        .zip(&names)
        .map(|(file, name)| {
            let used = uses(file, name);
            let found = used.iter().filter_map(|path| deepest(&modules, path));
            found.filter(|other| !is_family(&names[*other], name)).collect()
        })
        .collect();
    let reach: Vec<BTreeSet<usize>> = (0..files.len()).map(|file| reachable(&needs, file)).collect();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for file in 0..files.len() {
        let cycle: Vec<usize> =
            reach[file].iter().copied().filter(|other| reach[*other].contains(&file)).collect();
        if cycle.len() > 1 && seen.insert(cycle.clone()) {
            found.push(cycle.iter().map(|number| files[*number].path.clone()).collect());
        }
    }
    found
}

/// Whether one is the other's module, or a module in it.
fn is_family(one: &[String], other: &[String]) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

/// The path of a file's module: `a/b.rs` and `a/b/mod.rs` are `a::b`.
fn module(root: &Path, file: &Path) -> Vec<String> {
    let inside = file.strip_prefix(root).unwrap_or(file).with_extension("");
    let mut parts: Vec<String> = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if parts.last().is_some_and(|last| ["lib", "main", "mod"].contains(&last.as_str())) {
        parts.pop();
    }
    parts
}

/// The paths inside the crate that a file names by `use`.
fn uses(file: &Source, name: &[String]) -> Vec<Vec<String>> {
    let text = file.code.join("\n");
    let mut found = Vec::new();
    for statement in text.split(";") {
        let Some((_, path)) = statement.rsplit_once("use ") else { continue };
        let flat: String = path.split_whitespace().collect::<Vec<_>>().join(" ");
        expand(&flat, &[], &mut found);
    }
    found.iter().filter_map(|path| absolute(path, name)).collect()
}

/// Writes out `a::{b, c::d}` as single paths.
fn expand(text: &str, before: &[String], found: &mut Vec<Vec<String>>) {
    let text = text.trim();
    let Some((head, rest)) = text.split_once('{') else {
        let path = text.split(" as ").next().unwrap_or_default();
        let parts = path.split("::").filter(|part| !part.is_empty()).map(|part| part.trim().to_owned());
        found.push(before.iter().cloned().chain(parts).collect());
        return;
    };
    let head = head.split("::").filter(|part| !part.trim().is_empty()).map(|part| part.trim().to_owned());
    let before: Vec<String> = before.iter().cloned().chain(head).collect();
    let inside = rest.strip_suffix('}').unwrap_or(rest);
    let (mut depth, mut start) = (0, 0);
    for (at, letter) in inside.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                expand(&inside[start..at], &before, found);
                start = at + 1;
            }
            _ => {}
        }
    }
    if !inside[start..].trim().is_empty() {
        expand(&inside[start..], &before, found);
    }
}

/// A path from the crate's root; `None` for a path into another crate.
fn absolute(path: &[String], name: &[String]) -> Option<Vec<String>> {
    let mut base = name.to_vec();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => {
            base.clear();
            rest = &path[1..];
        }
        "self" => rest = &path[1..],
        "super" => {
            while let Some(("super", more)) = rest.split_first().map(|(first, more)| (first.as_str(), more)) {
                base.pop();
                rest = more;
            }
        }
        _ => return None,
    }
    Some(base.into_iter().chain(rest.iter().cloned()).collect())
}

/// The file of the longest module path that `path` begins with.
fn deepest(modules: &BTreeMap<Vec<String>, usize>, path: &[String]) -> Option<usize> {
    (1..=path.len()).rev().find_map(|length| modules.get(&path[..length]).copied())
}

fn reachable(needs: &[BTreeSet<usize>], from: usize) -> BTreeSet<usize> {
    let mut seen = BTreeSet::new();
    let mut next = vec![from];
    while let Some(file) = next.pop() {
        for other in &needs[file] {
            if seen.insert(*other) {
                next.push(*other);
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_need_each_other_are_found() {
        let file = |path: &str, text: &str| Source::new(Path::new(path), text);
        let sources = [
            file("src/x/src/lib.rs", "mod a;\nmod b;\nmod c;\n"),
            file("src/x/src/a.rs", "use crate::b::{Deep, other as another};\n"),
            file("src/x/src/b.rs", "use super::c::Thing;\n"),
            file("src/x/src/c.rs", "use crate::{a::One, Two};\n"),
            file("plugins/y/src/lib.rs", "mod a;\nuse self::a::One;\n"),
            file("plugins/y/src/a.rs", "use super::Two;\nuse std::io;\n"),
        ];
        let found = cycles(&sources);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].len(), 3);
    }
}
