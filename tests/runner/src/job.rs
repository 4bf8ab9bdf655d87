//! Jobs, each of which runs in one process.

use std::collections::BTreeMap;

use crate::Options;
use crate::program::Program;

/// One process: a test, or tests that share a process.
pub(crate) struct Job<'p> {
    pub(crate) program: &'p Program,
    pub(crate) kind: Kind,
    pub(crate) tests: Vec<String>,
}

pub(crate) enum Kind {
    /// A single test of a program.
    One,
    /// All tests of a module, which share one virtual machine.
    Module(String),
    /// All unit tests of a package.
    All,
}

impl<'p> Job<'p> {
    /// A job with one of the tests of this program.
    pub(crate) fn one(program: &'p Program, test: &str) -> Self {
        Job { program, kind: Kind::One, tests: vec![test.to_owned()] }
    }

    /// Whether it is a single test.
    pub(crate) fn is_one(&self) -> bool {
        matches!(self.kind, Kind::One)
    }

    /// Returns the key for the job's recorded duration.
    pub(crate) fn name(&self) -> String {
        match &self.kind {
            Kind::One => format!("{} {}", self.program.name, self.tests[0]),
            Kind::Module(module) => format!("{} {module}", self.program.name),
            Kind::All => format!("{} (unit tests)", self.program.name),
        }
    }

    /// The arguments of the test program.
    pub(crate) fn args(&self, filter: &str) -> Vec<String> {
        // With one thread libtest runs a test on the main thread, which has not the test's name.
        let mut args = vec!["--test-threads=4".to_owned(), "--color=never".to_owned()];
        match &self.kind {
            Kind::One => args.extend(["--exact".to_owned(), self.tests[0].clone()]),
            Kind::Module(module) => args.push(format!("{module}::")),
            Kind::All if filter.is_empty() => {}
            Kind::All => args.push(filter.to_owned()),
        }
        args
    }
}

/// The jobs of a run.
///
/// Each test is a job, with two exceptions. Tests in a module `…in_vm` share a virtual machine.
/// Unit tests of a package share their namespaces, because a process for each would cost more than they do.
pub(crate) fn plan<'p>(programs: &'p [Program], options: &Options) -> Vec<Job<'p>> {
    let mut jobs = Vec::new();
    for program in programs {
        let mut tests = program.tests();
        tests.retain(|test| test.contains(&options.filter));
        if options.quick && !program.unit {
            tests.retain(|test| is_quick(&program.name, test));
        }
        if tests.is_empty() {
            continue;
        }
        if program.unit {
            jobs.push(Job { program, kind: Kind::All, tests });
            continue;
        }
        let mut modules: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for test in tests {
            match test.rsplit_once("::") {
                Some((module, _)) if module.ends_with("in_vm") && options.filter.is_empty() => {
                    modules.entry(module.to_owned()).or_default().push(test);
                }
                _ => jobs.push(Job::one(program, &test)),
            }
        }
        for (module, tests) in modules {
            jobs.push(Job { program, kind: Kind::Module(module), tests });
        }
    }
    jobs
}

/// Whether a test of the kernel belongs to a quick run: one test of each verb of each plugin.
fn is_quick(program: &str, test: &str) -> bool {
    match program {
        "each" => test.contains("every_verb_of"),
        "policy" | "schema" => true,
        _ => false,
    }
}
