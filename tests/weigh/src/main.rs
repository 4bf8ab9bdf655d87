//! Prints the size and the structure of the product's code. Takes the root of the checkout, and `--list` for the places.
// A tool of the project: it stops at the first surprise.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod cycles;
mod duplicates;
mod form;
mod functions;
mod source;

use std::path::{Path, PathBuf};

use source::Source;

/// Functions with so many parameters count.
const MANY_PARAMETERS: usize = 6;

/// Functions with more lines count.
const LONG_FUNCTION: usize = 60;

fn main() {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let list = args.iter().position(|arg| arg == "--list").map(|at| args.remove(at)).is_some();
    let root = args.pop().unwrap_or_else(|| ".".to_owned());
    std::env::set_current_dir(&root).unwrap_or_else(|err| panic!("{root}: {err}"));
    let crates = crates();
    let sources: Vec<Source> = crates.iter().flat_map(|path| sources(path)).collect();
    print(&crates, &sources, list);
}

fn print(crates: &[PathBuf], sources: &[Source], list: bool) {
    let mut many = Vec::new();
    let mut long = Vec::new();
    let mut booleans = Vec::new();
    for source in sources {
        for function in functions::functions(source) {
            let place = format!("{} {}", source.path.display(), function.name);
            if function.parameters >= MANY_PARAMETERS {
                many.push(format!("{place}: {}", function.parameters));
            }
            if function.lines > LONG_FUNCTION {
                long.push(format!("{place}: {}", function.lines));
            }
            booleans.extend((0..function.booleans).map(|_| place.clone()));
        }
    }
    let join = |files: &Vec<PathBuf>| {
        files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(" ")
    };
    let cycles: Vec<String> = cycles::cycles(sources).iter().map(join).collect();
    let lines: usize = sources.iter().map(Source::lines).sum();
    let comments: usize = sources.iter().map(|source| source.comments).sum();
    println!("{lines:6} lines of product code");
    println!("{comments:6} lines of comments");
    println!("{:6} crates", crates.len());
    let docs: usize = sources.iter().map(|source| source.docs.len()).sum();
    println!("{docs:6} doc comments of items");
    for (what, places) in [
        ("functions with six or more parameters", &many),
        ("boolean parameters", &booleans),
        ("functions over 60 lines", &long),
        ("circles of files", &cycles),
        ("runs of six or more equal lines", &duplicates::duplicates(sources)),
        ("named closures", &sources.iter().flat_map(form::closures).collect()),
        ("matches over a boolean", &sources.iter().flat_map(form::matches_over_booleans).collect()),
        ("doc comments that begin like a fragment", &sources.iter().flat_map(form::fragments).collect()),
    ] {
        println!("{:6} {what}", places.len());
        if list {
            places.iter().for_each(|place| println!("         {place}"));
        }
    }
}

/// The directories of the product's crates: below these three, up to two levels down.
fn crates() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for top in ["src", "plugins", "ipam"] {
        for one in directories(Path::new(top)) {
            found.extend(directories(&one).into_iter().filter(|two| two.join("Cargo.toml").exists()));
            found.extend(Some(one).filter(|one| one.join("Cargo.toml").exists()));
        }
    }
    found.sort();
    found
}

fn directories(path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path).into_iter().flatten();
    entries.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_dir()).collect()
}

/// The source files of a crate, without those of tests.
fn sources(path: &Path) -> Vec<Source> {
    let mut files = vec![path.join("build.rs")];
    collect(&path.join("src"), &mut files);
    files.sort();
    let read = |file: &PathBuf| std::fs::read_to_string(file).ok().map(|text| Source::new(file, &text));
    files.iter().filter_map(read).collect()
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten() {
        let path = entry.expect("an entry").path();
        let is_test = path.file_stem().is_some_and(|stem| stem == "tests");
        if path.is_dir() && !is_test {
            collect(&path, files);
        } else if path.extension().is_some_and(|ext| ext == "rs") && !is_test {
            files.push(path);
        }
    }
}
