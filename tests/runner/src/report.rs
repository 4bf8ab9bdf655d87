//! The output of a run: tests that are skipped, flaky or failed, the slowest ones, and the counts.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

/// More flaky tests than this fail a run.
const FLAKY_LIMIT: usize = 3;

/// The slowest tests that a run lists.
const SLOWEST: usize = 10;

/// A line of progress comes after so many tests.
const STEP: usize = 100;

/// The line of a test that looks for an event which must not come; see `silence` of the harness.
const SILENCE: &str = "SILENCE ";

/// How a test ended.
pub(crate) enum Verdict {
    Passed,
    /// It was skipped, with the reason.
    Skipped(String),
    /// It failed, and passed when it ran again. With the output of the failure.
    Flaky(String),
    /// With the output of the first failure.
    Failed(String),
}

/// The end of a job.
pub(crate) struct Ended {
    /// `None` if it took too long.
    pub(crate) status: Option<ExitStatus>,
    pub(crate) took: Duration,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// How a test of the job ended. `alone` tells that the job is this test only.
    pub(crate) fn verdict(&self, test: &str, alone: bool) -> Verdict {
        let reason = format!("SKIP {test}: ");
        if let Some(why) = self.stderr.lines().find_map(|line| line.strip_prefix(&reason)) {
            return Verdict::Skipped(why.to_owned());
        }
        let result = format!("test {test} ... ");
        let result = self.stdout.lines().find_map(|line| line.strip_prefix(&result));
        let ended = self.status.is_some_and(|status| status.success() || !alone);
        match result {
            Some("ok") if ended => Verdict::Passed,
            Some(ignored) if ignored.starts_with("ignored") => Verdict::Skipped(ignored.to_owned()),
            _ => Verdict::Failed(self.output(test)),
        }
    }

    /// Whether a test of the job looked for an event that must not come.
    pub(crate) fn was_silent(&self) -> bool {
        self.stderr.lines().any(|line| line.starts_with(SILENCE))
    }

    /// The captured output of a test, or all output if the job died before it ended.
    fn output(&self, test: &str) -> String {
        let start = format!("---- {test} stdout ----");
        let lines = self.stdout.lines().skip_while(|line| *line != start).skip(1);
        let lines: Vec<&str> =
            lines.take_while(|line| !line.starts_with("---- ") && *line != "failures:").collect();
        if !lines.is_empty() {
            return lines.join("\n").trim().to_owned();
        }
        let end = match self.status {
            Some(status) => status.to_string(),
            None => "it took too long".to_owned(),
        };
        format!("{end}\n{}\n{}", self.stdout, self.stderr)
    }
}

/// The durations of the last run in seconds, by the name of the job.
pub(crate) fn durations(file: &Path) -> BTreeMap<String, f64> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.filter_map(|(seconds, name)| Some((name.to_owned(), seconds.parse().ok()?))).collect()
}

/// The tests of a run.
#[derive(Default)]
pub(crate) struct Report {
    verbose: bool,
    planned: usize,
    passed: usize,
    /// Jobs that looked for an event which must not come.
    silent: usize,
    skipped: Vec<String>,
    flaky: Vec<String>,
    failed: Vec<String>,
    durations: BTreeMap<String, f64>,
}

impl Report {
    pub(crate) fn new(verbose: bool) -> Self {
        Report { verbose, ..Self::default() }
    }

    /// Prints a line of the report.
    pub(crate) fn say(&self, line: &str) {
        println!("{line}");
    }

    /// Sets the number of tests of the run.
    pub(crate) fn planned(&mut self, tests: usize) {
        self.planned = tests;
        self.say(&format!("{tests} tests"));
    }

    /// Records the duration of a job.
    pub(crate) fn took(&mut self, job: &str, ended: &Ended) {
        let took = ended.took;
        self.silent += usize::from(ended.was_silent());
        self.durations.insert(job.to_owned(), took.as_secs_f64());
        if self.verbose {
            self.say(&format!("{:8.2} s  {job}", took.as_secs_f64()));
        }
    }

    /// Counts a test, and prints what a reader must see of it.
    pub(crate) fn add(&mut self, program: &str, test: &str, verdict: Verdict) {
        let name = format!("{program} {test}");
        match verdict {
            Verdict::Passed => self.passed += 1,
            Verdict::Skipped(why) => {
                self.say(&format!("SKIP {name}: {why}"));
                self.skipped.push(format!("{name}: {why}"));
            }
            Verdict::Flaky(output) => {
                self.say(&format!("FLAKY {name}: it failed first with\n{output}\n"));
                self.passed += 1;
                self.flaky.push(name);
            }
            Verdict::Failed(output) => {
                self.say(&format!("FAILED {name}\n{output}\n"));
                self.failed.push(name);
            }
        }
        let ended = self.passed + self.skipped.len() + self.failed.len();
        if ended.is_multiple_of(STEP) {
            self.say(&format!("{ended} of {} tests have ended", self.planned));
        }
    }

    /// Keeps the durations for the order of the next run, with those of jobs that did not run now.
    pub(crate) fn write_durations(&self, file: &Path, mut known: BTreeMap<String, f64>) {
        known.extend(self.durations.clone());
        let mut text = String::new();
        for (name, seconds) in known {
            let _ = writeln!(text, "{seconds:.3} {name}");
        }
        // The order of the next run is all that depends on it.
        let _ = std::fs::write(file, text);
    }

    /// Prints the summary. Its last line has the counts.
    pub(crate) fn finish(&self) -> ExitCode {
        let mut slowest: Vec<(&String, &f64)> = self.durations.iter().collect();
        slowest.sort_by(|one, other| other.1.total_cmp(one.1));
        let slowest: Vec<String> =
            slowest.iter().take(SLOWEST).map(|(name, seconds)| format!("{seconds:7.1} s  {name}")).collect();
        for (title, lines) in [
            ("Slowest", &slowest),
            ("Skipped", &self.skipped),
            ("Flaky", &self.flaky),
            ("Failed", &self.failed),
        ] {
            if !lines.is_empty() {
                self.say(&format!("{title}:\n  {}", lines.join("\n  ")));
            }
        }
        let too_flaky = self.flaky.len() > FLAKY_LIMIT;
        if too_flaky {
            self.say(&format!("{} tests are flaky, at most {FLAKY_LIMIT} may be", self.flaky.len()));
        }
        let failed = self.failed.len() + usize::from(too_flaky);
        self.say(&format!(
            "{} flaky, {} looked for an event that must not come",
            self.flaky.len(),
            self.silent
        ));
        self.say(&format!("{} passed, {failed} failed, {} skipped", self.passed, self.skipped.len()));
        if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
