//! Runs jobs side by side, the longest first, and failed tests again alone.

use std::io::Read;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::Options;
use crate::job::Job;
use crate::report::{self, Ended, Report, Verdict};
use crate::sandbox::die_with_parent;

/// A job that takes longer hangs: its processes are killed, and it has failed.
const LIMIT: Duration = Duration::from_secs(1800);

/// Between two looks at a job.
const POLL: Duration = Duration::from_millis(5);

/// How often a failed test runs again.
const RETRIES: usize = 2;

/// Programs with long tests, for a run without recorded durations.
const LONG: [&str; 5] = ["faults", "model", "endurance", "runtimes", "compat"];

/// Runs all jobs, then each failed test alone.
pub(crate) fn run(mut jobs: Vec<Job<'_>>, options: &Options, report: &mut Report) {
    let known = report::durations(&options.durations);
    let weight = |job: &Job<'_>| {
        let guess = if LONG.contains(&job.program.name.as_str()) { 20.0 } else { 1.0 };
        known.get(&job.name()).copied().unwrap_or(guess)
    };
    // The last of the list runs first.
    jobs.sort_by(|one, other| weight(one).total_cmp(&weight(other)));
    report.planned(jobs.iter().map(|job| job.tests.len()).sum());
    let mut failed = Vec::new();
    let mut running = 0;
    let (done, finished) = channel();
    std::thread::scope(|scope| {
        loop {
            while running < options.jobs
                && let Some(job) = jobs.pop()
            {
                running += 1;
                let done = done.clone();
                scope.spawn(move || {
                    let ended = execute(&job, &options.filter);
                    let _ = done.send((job, ended));
                });
            }
            if running == 0 {
                break;
            }
            let (job, ended) = finished.recv().expect("a job that runs");
            running -= 1;
            report.took(&job.name(), &ended);
            for test in &job.tests {
                match ended.verdict(test, job.is_one()) {
                    Verdict::Failed(output) => failed.push((job.program, test.clone(), output)),
                    verdict => report.add(&job.program.name, test, verdict),
                }
            }
        }
    });
    for (program, test, first) in failed {
        report.say(&format!("{} {test} failed; it runs again alone", program.name));
        let job = Job::one(program, &test);
        let passes = |_| !matches!(execute(&job, "").verdict(&test, true), Verdict::Failed(_));
        let verdict = if (0..RETRIES).any(passes) { Verdict::Flaky(first) } else { Verdict::Failed(first) };
        report.add(&program.name, &test, verdict);
    }
    report.write_durations(&options.durations, known);
}

/// Runs a job to its end.
fn execute(job: &Job<'_>, filter: &str) -> Ended {
    let started = Instant::now();
    let mut command = job.program.command(&job.args(filter));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    die_with_parent(&mut command);
    let mut child = command.spawn().unwrap_or_else(|err| panic!("{}: {err}", job.name()));
    let mut streams = (child.stdout.take().expect("a pipe"), child.stderr.take().expect("a pipe"));
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let status = std::thread::scope(|scope| {
        // A read ends when the last process with the pipe ends.
        scope.spawn(|| streams.0.read_to_end(&mut stdout));
        scope.spawn(|| streams.1.read_to_end(&mut stderr));
        wait(&mut child)
    });
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ended { status, took: started.elapsed(), stdout: text(&stdout), stderr: text(&stderr) }
}

/// Waits for the end of a job, and kills it after [`LIMIT`].
fn wait(child: &mut Child) -> Option<ExitStatus> {
    let end = Instant::now() + LIMIT;
    while Instant::now() < end {
        if let Some(status) = child.try_wait().expect("a child of this process") {
            return Some(status);
        }
        std::thread::sleep(POLL);
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}
