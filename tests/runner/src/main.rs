//! Runs test programs, each test in a process and in namespaces of its own.
//!
//! The programs come from `cargo test --no-run --message-format json` on stdin. A test that fails
//! runs again alone, at most twice. A test that then passes is FLAKY.
// Test code: it stops at the first surprise.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod job;
mod program;
mod report;
mod sandbox;
mod schedule;

use std::path::PathBuf;
use std::process::ExitCode;

use program::Program;
use report::Report;

/// The options of one run.
struct Options {
    /// Only tests with this text in their names.
    filter: String,
    /// Only the tests of a quick run.
    quick: bool,
    /// Print the output of tests that pass.
    verbose: bool,
    /// Tests that run at the same time.
    jobs: usize,
    /// The file with the duration of each test in the last run.
    durations: PathBuf,
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).peekable();
    match args.peek().map(String::as_str) {
        Some("enter") => return sandbox::enter(&args.skip(1).collect::<Vec<_>>()),
        Some("init") => return sandbox::init(&args.skip(1).collect::<Vec<_>>()),
        _ => {}
    }
    let options = options(args);
    let programs = Program::read(std::io::stdin().lock());
    let jobs = job::plan(&programs, &options);
    let mut report = Report::new(options.verbose);
    schedule::run(jobs, &options, &mut report);
    report.finish()
}

fn options(mut args: impl Iterator<Item = String>) -> Options {
    let mut options = Options {
        filter: String::new(),
        quick: false,
        verbose: false,
        jobs: 4 * std::thread::available_parallelism().map_or(2, usize::from),
        durations: PathBuf::from("/dev/null"),
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().unwrap_or_else(|| panic!("{arg} needs a value"));
        match arg.as_str() {
            "--quick" => options.quick = true,
            "--verbose" => options.verbose = true,
            "--jobs" => options.jobs = value().parse().expect("--jobs: a number"),
            "--durations" => options.durations = value().into(),
            "--filter" => options.filter = value(),
            _ => panic!("unknown argument {arg}"),
        }
    }
    options
}
