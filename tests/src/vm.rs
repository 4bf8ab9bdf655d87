//! Tests that need more than this kernel has: they run in the machine of `scripts/vm`.
//!
//! Such tests stand in a module of their own and begin with [`in_vm!`](crate::in_vm). The
//! first of them to run outside boots the machine, once, and has it run the whole module;
//! each then takes over what its own run inside ended with. So every test is counted and
//! filtered by its own name, and one boot serves them all.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::{Host, Sample, announce, plugin_dir};

/// Tells a test binary that it is inside.
const INSIDE: &str = "CNIMBLE_TEST_INSIDE_VM";

/// Tells it which plugins the kernel outside can't serve.
const LACKING: &str = "CNIMBLE_TEST_LACKING";

/// Seconds that all tests of a module may take inside, and that fetching the kernel may.
const RUN_LIMIT: &str = "2700";
const SETUP_LIMIT: &str = "600";

/// Goes on inside; outside, the test ends here as its run inside did.
#[macro_export]
macro_rules! in_vm {
    () => {
        if !$crate::vm::inside() {
            fn here() {}
            return $crate::vm::take_over(::std::any::type_name_of_val(&here));
        }
    };
}

/// Goes on here if this kernel has the kind of interface, else as [`in_vm!`](crate::in_vm).
#[macro_export]
macro_rules! with_kind {
    ($kind:literal) => {
        if !$crate::vm::inside() && $crate::vm::lacks($kind) {
            fn here() {}
            return $crate::vm::take_over(::std::any::type_name_of_val(&here));
        }
    };
}

/// Whether this kernel has no interfaces of this kind, or this process may not make any.
pub fn lacks(kind: &str) -> bool {
    let host = Host::new();
    host.ip("link add parent type veth peer name other");
    let (front, back) = match kind {
        "ipvlan" | "macvlan" => ("link parent ", ""),
        "vlan" => ("link parent ", " id 7"),
        "vrf" => ("", " table 7"),
        "tap" => return host.run("ip tuntap add mode tap name probetap").status != 0,
        _ => ("", ""),
    };
    host.run(&format!("ip link add {front}name probe{kind} type {kind}{back}")).status != 0
}

/// The plugins with a sample that this kernel cannot serve.
fn lacking() -> String {
    let lacking = Sample::all().iter().filter(|sample| sample.missing().is_some());
    lacking.map(|sample| sample.plugin.as_str()).collect::<Vec<_>>().join(",")
}

/// Whether the kernel outside of the machine can't serve this plugin's sample.
pub(crate) fn outside_lacks(plugin: &str) -> bool {
    let lacking = if inside() { std::env::var(LACKING).unwrap_or_default() } else { lacking() };
    lacking.split(',').any(|name| name == plugin)
}

/// Whether this process runs in the machine.
pub fn inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// A call of `scripts/vm`.
pub fn script() -> Command {
    Command::new(script_path())
}

fn script_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/vm")
}

/// Makes sure that the machine's kernel is there.
///
/// # Errors
/// Why it can't be had: no network, another processor, a container that forbids it.
pub fn set_up() -> Result<(), String> {
    let output = Command::new("timeout").arg(SETUP_LIMIT).arg(script_path()).arg("setup").output();
    let output = output.map_err(|err| format!("scripts/vm setup: {err}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let why = said.lines().last().unwrap_or("scripts/vm setup took too long");
    Err(format!("no User-mode Linux: {}", why.trim_start_matches("error: ")))
}

/// Ends the test as its run inside did. `here` is the path of an item in the test.
///
/// # Panics
/// If it failed there, or didn't run.
pub fn take_over(here: &str) {
    let path: Vec<&str> = here.split("::").collect();
    let [_crate, module @ .., test, _here] = path.as_slice() else { panic!("{here} is not in a test") };
    assert!(!module.is_empty(), "{test}: tests of the machine stand in a module of their own");
    let module = module.join("::");
    match ended(&module, &format!("{module}::{test}")) {
        Verdict::Passed => {}
        Verdict::Skipped(why) => announce("SKIP", &why),
        Verdict::Failed(report) => panic!("in the machine: {report}"),
    }
}

enum Verdict {
    Passed,
    Skipped(String),
    Failed(String),
}

/// How a test of `module` ended inside.
fn ended(module: &str, test: &str) -> Verdict {
    static RUNS: Mutex<BTreeMap<String, Result<Run, String>>> = Mutex::new(BTreeMap::new());
    // Whoever comes while the machine runs waits here.
    let mut runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
    match runs.entry(module.to_owned()).or_insert_with(|| Run::of(module)) {
        Ok(run) => run.verdict(test),
        Err(why) => Verdict::Skipped(why.clone()),
    }
}

/// The arguments that choose the tests inside: those that choose a single test outside, or the module.
fn wanted(module: &str) -> Vec<String> {
    let mut args = std::env::args().skip_while(|arg| arg != "--exact");
    match (args.next(), args.next()) {
        (Some(exact), Some(test)) => vec![exact, test],
        _ => vec![format!("{module}::")],
    }
}

/// The output of the test program inside.
struct Run {
    stdout: String,
    stderr: String,
}

impl Run {
    fn of(module: &str) -> Result<Self, String> {
        set_up()?;
        let output = script()
            .args(["run", "-t", RUN_LIMIT, "--"])
            .arg(std::env::current_exe().unwrap())
            // More than one, or libtest runs them on the main thread, which has not their name.
            .args(["--test-threads", "2", "--color", "never"])
            .args(wanted(module))
            .env(INSIDE, "1")
            .env(LACKING, lacking())
            .env("CNIMBLE_PLUGIN_DIR", plugin_dir())
            .output()
            .map_err(|err| format!("scripts/vm run: {err}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Run { stdout: text(&output.stdout), stderr: text(&output.stderr) })
    }

    fn verdict(&self, test: &str) -> Verdict {
        let after = |text: &str, start: &str| {
            text.lines().find_map(|line| line.strip_prefix(start).map(str::to_owned))
        };
        if let Some(why) = after(&self.stderr, &format!("SKIP {test}: ")) {
            return Verdict::Skipped(why);
        }
        match after(&self.stdout, &format!("test {test} ... ")).as_deref() {
            Some("ok") => Verdict::Passed,
            Some("FAILED") => Verdict::Failed(self.report(test)),
            // Not reached: the machine died or ran out of time.
            _ => Verdict::Failed(format!("no verdict on {test}\n{}\n{}", self.stdout, self.stderr)),
        }
    }

    /// The captured output of a failed test.
    fn report(&self, test: &str) -> String {
        let start = format!("---- {test} stdout ----");
        let lines = self.stdout.lines().skip_while(|line| *line != start).skip(1);
        let lines: Vec<&str> =
            lines.take_while(|line| !line.starts_with("---- ") && *line != "failures:").collect();
        lines.join("\n").trim().to_owned()
    }
}
