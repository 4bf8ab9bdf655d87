//! One run of a plugin, with its time or its memory.

use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use cnimble_tests::Background;

use crate::Result;

/// The time of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    /// From before the spawn to after the wait.
    pub(crate) wall: Duration,
    /// The user and system time. It includes all descendants, even a child that outlives the plugin.
    pub(crate) cpu: Duration,
}

impl std::iter::Sum for Run {
    fn sum<I: Iterator<Item = Run>>(runs: I) -> Run {
        let none = Run { wall: Duration::ZERO, cpu: Duration::ZERO };
        runs.fold(none, |all, run| Run { wall: all.wall + run.wall, cpu: all.cpu + run.cpu })
    }
}

/// Makes this process inherit the orphans of its runs. Their time is then known, and no run continues when the next one
/// begins.
pub(crate) fn inherit() -> Result<()> {
    Ok(nix::sys::prctl::set_child_subreaper(true)?)
}

/// Children that serve a contender during its measurement.
static SERVERS: Mutex<Vec<libc::pid_t>> = Mutex::new(Vec::new());

/// A child that no run waits for, until this value is dropped.
pub(crate) struct Server {
    child: Background,
}

impl Server {
    pub(crate) fn new(child: Background) -> Result<Self> {
        let pid = libc::pid_t::try_from(child.pid())?;
        SERVERS.lock().map_err(|_| "a thread has panicked")?.push(pid);
        Ok(Server { child })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Without servers /proc is not read between two runs.
        if let Ok(mut servers) = SERVERS.lock() {
            servers.retain(|pid| u32::try_from(*pid) != Ok(self.child.pid()));
        }
    }
}

/// Waits for the orphans of a run, and returns their processor time.
fn outlived() -> Result<Duration> {
    let mut all = Duration::ZERO;
    while let Some(pid) = left_running()? {
        match wait_for(pid, 0) {
            Ok(end) => all += end.map(|end| end.cpu).unwrap_or_default(),
            Err(err) if err.raw_os_error() == Some(libc::ECHILD) => break,
            Err(err) => return Err(err.into()),
        }
    }
    Ok(all)
}

/// Returns an orphan of a run, or -1 if any child may be one (wait4(2)).
fn left_running() -> Result<Option<libc::pid_t>> {
    let servers = SERVERS.lock().map_err(|_| "a thread has panicked")?.clone();
    if servers.is_empty() {
        return Ok(Some(-1));
    }
    Ok(children()?.into_iter().find(|pid| !servers.contains(pid)))
}

/// Returns the children of this process, including zombies (proc_pid_stat(5), `ppid`).
fn children() -> Result<Vec<libc::pid_t>> {
    let own = std::process::id().to_string();
    let mut found = Vec::new();
    for pid in processes()? {
        // If the process is gone by now, it is no child.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1));
        if parent == Some(own.as_str()) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// Returns the processes of this PID namespace.
fn processes() -> Result<impl Iterator<Item = libc::pid_t>> {
    Ok(std::fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()))
}

/// The resources of a run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Footprint {
    /// Peak resident memory of the largest process, in KiB.
    pub(crate) peak_kib: u64,
    /// The number of programs started, including the plugin.
    pub(crate) programs: u64,
}

/// Runs `command` with `stdin` and returns its output, with its time.
pub(crate) fn timed(command: Command, stdin: &[u8]) -> Result<(Vec<u8>, Run)> {
    let (output, run) = timed_alone(command, stdin, Stdio::null())?;
    Ok((output, Run { cpu: run.cpu + outlived()?, ..run }))
}

/// The same for the command alone. Other children of this process continue.
pub(crate) fn timed_alone(
    command: Command,
    stdin: &[u8],
    errors: impl Into<Stdio>,
) -> Result<(Vec<u8>, Run)> {
    let mut plumbing = Plumbing::new(command, stdin)?;
    plumbing.command.stderr(errors);
    let start = Instant::now();
    let child = plumbing.command.spawn()?;
    let (status, cpu) = wait(child.id())?;
    let wall = start.elapsed();
    let output = plumbing.finish(status)?;
    Ok((output, Run { wall, cpu }))
}

/// Runs `command` without input, and drops its output, however long it is.
pub(crate) fn timed_quietly(mut command: Command) -> Result<Run> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let start = Instant::now();
    let (status, cpu) = wait(command.spawn()?.id())?;
    let wall = start.elapsed();
    let cpu = cpu + outlived()?;
    if status.success() { Ok(Run { wall, cpu }) } else { Err(format!("{command:?}: {status}").into()) }
}

/// One of many concurrent calls.
pub(crate) struct Call {
    /// The output or the failure.
    pub(crate) output: Result<Vec<u8>>,
    /// The time from its start to its end.
    pub(crate) wall: Duration,
}

/// Starts all `commands` concurrently, each with its stdin, and waits for the last. Returns the calls, with the time
/// from the first start to the last end.
pub(crate) fn burst(commands: Vec<(Command, Vec<u8>)>) -> Result<(Vec<Call>, Duration)> {
    let mut waiting = commands
        .into_iter()
        .map(|(command, stdin)| Plumbing::new(command, &stdin))
        .collect::<Result<Vec<_>>>()?;
    let start = Instant::now();
    let mut begun = Vec::with_capacity(waiting.len());
    let mut ends = HashMap::with_capacity(waiting.len());
    for plumbing in &mut waiting {
        let at = Instant::now();
        begun.push((libc::pid_t::try_from(plumbing.command.spawn()?.id())?, at));
        // The first may end before the last is started.
        while let Ok(Some(end)) = wait_for(-1, libc::WNOHANG) {
            ends.insert(end.pid, (end.status, Instant::now()));
        }
    }
    // An orphan of a call may end among them.
    while begun.iter().any(|(pid, _)| !ends.contains_key(pid)) {
        if let Some(end) = wait_for(-1, 0)? {
            ends.insert(end.pid, (end.status, Instant::now()));
        }
    }
    let wall = start.elapsed();
    outlived()?;
    let calls = waiting.into_iter().zip(begun).filter_map(|(plumbing, (pid, begun))| {
        let (status, ended) = ends.get(&pid)?;
        Some(Call { output: plumbing.finish(*status), wall: *ended - begun })
    });
    Ok((calls.collect(), wall))
}

/// Runs `work`, and returns its outcome with the most memory, in KiB, that all processes took at once which were started
/// meanwhile. It is the sum of their proportional shares, looked at again and again, which slows `work` down.
pub(crate) fn weighed<T>(work: impl FnOnce() -> T) -> Result<(T, u64)> {
    let before: HashSet<libc::pid_t> = processes()?.collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let scale = scope.spawn(|| {
            let mut most = 0;
            while !done.load(Ordering::Relaxed) {
                let new = processes().ok().into_iter().flatten().filter(|pid| !before.contains(pid));
                most = most.max(new.map(|pid| field(pid, "smaps_rollup", "Pss:")).sum());
            }
            most
        });
        let outcome = work();
        done.store(true, Ordering::Relaxed);
        Ok((outcome, scale.join().map_err(|_| "the scale has panicked")?))
    })
}

/// Runs `command` with `stdin` and returns its output, with its peak memory.
///
/// `ru_maxrss` can't be used, since exec(2) passes the caller's peak to the new program. A small plugin would be
/// charged with this program's size. `VmHWM` of proc(5) belongs to the program alone. ptrace(2) stops each process as
/// it exits, the last moment at which it can be read.
pub(crate) fn traced(command: Command, stdin: &[u8]) -> Result<(Vec<u8>, Footprint)> {
    let mut plumbing = Plumbing::new(command, stdin)?;
    // SAFETY: the child makes one system call between fork and exec, and allocates nothing.
    unsafe {
        plumbing.command.pre_exec(|| ptrace::traceme().map_err(std::io::Error::from));
    }
    let child = plumbing.command.spawn()?;
    let root = Pid::from_raw(i32::try_from(child.id())?);
    // The first stop is the exec, before the program's first instruction.
    waitpid(root, None)?;
    ptrace::setoptions(
        root,
        Options::PTRACE_O_TRACEEXIT
            | Options::PTRACE_O_TRACEEXEC
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_EXITKILL,
    )?;
    ptrace::cont(root, None)?;

    let mut footprint = Footprint { peak_kib: 0, programs: 1 };
    let mut exit = None;
    // When the plugin is gone, its orphans are children of this process.
    while exit.is_none() || left_running()?.is_some() {
        let (pid, deliver) = match waitpid(None, Some(WaitPidFlag::__WALL)) {
            Ok(WaitStatus::PtraceEvent(pid, _, event)) => {
                if event == libc::PTRACE_EVENT_EXIT {
                    footprint.peak_kib = footprint.peak_kib.max(field(pid.as_raw(), "status", "VmHWM:"));
                } else if event == libc::PTRACE_EVENT_EXEC {
                    footprint.programs += 1;
                }
                (pid, None)
            }
            // A new thread or process starts with a separate stop.
            Ok(WaitStatus::Stopped(pid, Signal::SIGSTOP)) => (pid, None),
            Ok(WaitStatus::Stopped(pid, signal)) => (pid, Some(signal)),
            Ok(WaitStatus::Exited(pid, code)) if pid == root => {
                exit = Some(ExitStatus::from_raw(code << 8));
                continue;
            }
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == root => {
                exit = Some(ExitStatus::from_raw(signal as i32));
                continue;
            }
            Ok(_) | Err(Errno::EINTR) => continue,
            Err(Errno::ECHILD) => break,
            Err(err) => return Err(err.into()),
        };
        match ptrace::cont(pid, deliver) {
            // The exec or exit of another thread ended it.
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(err) => return Err(err.into()),
        }
    }
    let output = plumbing.finish(exit.ok_or("a traced plugin vanished")?)?;
    Ok((output, footprint))
}

/// Returns a field in KiB of a process's file in /proc, or 0 if the process is gone.
fn field(pid: libc::pid_t, file: &str, name: &str) -> u64 {
    std::fs::read_to_string(format!("/proc/{pid}/{file}"))
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            line.split_whitespace().nth(1)?.parse().ok()
        })
        .unwrap_or(0)
}

/// The pipes of a run. Configuration and result fit into a pipe's buffer, so nothing has to be read or written during
/// the measurement.
struct Plumbing {
    command: Command,
    stdout: std::io::PipeReader,
}

impl Plumbing {
    fn new(mut command: Command, stdin: &[u8]) -> Result<Self> {
        const PIPE: usize = 65536;
        if stdin.len() > PIPE {
            return Err("the configuration doesn't fit into a pipe".into());
        }
        let (stdin_reader, mut stdin_writer) = std::io::pipe()?;
        stdin_writer.write_all(stdin)?;
        let (stdout, stdout_writer) = std::io::pipe()?;
        command.stdin(stdin_reader).stdout(stdout_writer).stderr(Stdio::null());
        Ok(Plumbing { command, stdout })
    }

    /// Returns the output, or an error if the run failed.
    fn finish(self, status: ExitStatus) -> Result<Vec<u8>> {
        let Plumbing { command, mut stdout } = self;
        let what = command.get_program().to_string_lossy().into_owned();
        // It holds our copy of the writing end.
        drop(command);
        let mut output = Vec::new();
        stdout.read_to_end(&mut output)?;
        if status.success() {
            return Ok(output);
        }
        Err(format!("{what}: {status}: {}", String::from_utf8_lossy(&output).trim()).into())
    }
}

/// The end of a child.
struct End {
    pid: libc::pid_t,
    status: ExitStatus,
    /// The processor time.
    cpu: Duration,
}

/// Waits for a child, and returns its status and processor time.
fn wait(pid: u32) -> Result<(ExitStatus, Duration)> {
    let end = wait_for(libc::pid_t::try_from(pid)?, 0)?.ok_or("no child has ended")?;
    Ok((end.status, end.cpu))
}

/// The same for any child, if `pid` is -1. Returns `None` with WNOHANG if none has ended (wait4(2)).
fn wait_for(pid: libc::pid_t, options: libc::c_int) -> std::io::Result<Option<End>> {
    let mut status = 0;
    // SAFETY: rusage is plain old data, for which zeroes are a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live, writable variables of the right type.
    let mut wait = || unsafe { libc::wait4(pid, &raw mut status, options, &raw mut usage) };
    let mut found = wait();
    while found < 0 {
        let err = std::io::Error::last_os_error();
        if err.kind() != std::io::ErrorKind::Interrupted {
            return Err(err);
        }
        found = wait();
    }
    if found == 0 {
        return Ok(None);
    }
    let time =
        |t: libc::timeval| Duration::from_secs(t.tv_sec as u64) + Duration::from_micros(t.tv_usec as u64);
    let cpu = time(usage.ru_utime) + time(usage.ru_stime);
    Ok(Some(End { pid: found, status: ExitStatus::from_raw(status), cpu }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    /// Runs a test in a separate process, which waits for all of its children, and not for those of other tests.
    /// Returns true if and only if this is that process.
    fn alone(test: &str) -> bool {
        if std::env::var_os("CNIMBLE_BENCH_ALONE").is_some() {
            return true;
        }
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &format!("process::tests::{test}")]).env("CNIMBLE_BENCH_ALONE", "1");
        assert!(command.stdout(Stdio::null()).status().unwrap().success());
        false
    }

    #[test]
    fn times_the_whole_run() {
        if !alone("times_the_whole_run") {
            return;
        }
        let (output, run) = timed(shell("cat; sleep 0.05"), b"hello").unwrap();
        assert_eq!(output, b"hello");
        assert!(run.wall >= Duration::from_millis(50), "{run:?}");
    }

    #[test]
    fn the_time_of_a_child_that_outlives_the_run_is_counted() {
        if !alone("the_time_of_a_child_that_outlives_the_run_is_counted") {
            return;
        }
        inherit().unwrap();
        let file = std::env::temp_dir().join(format!("cnimble-bench-{}", std::process::id()));
        let script =
            r#"(i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo done >"$FILE") >/dev/null &"#;
        let mut command = shell(script);
        command.env("FILE", &file);
        let (_, run) = timed(command, b"").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "done\n");
        std::fs::remove_file(&file).unwrap();
        assert!(run.cpu >= Duration::from_millis(10), "{run:?}");
    }

    #[test]
    fn no_run_waits_for_a_server() {
        if !alone("no_run_waits_for_a_server") {
            return;
        }
        inherit().unwrap();
        let mut server = Server::new(Background::start(&mut shell("exec sleep 300"))).unwrap();
        let file = std::env::temp_dir().join(format!("cnimble-bench-server-{}", std::process::id()));
        let mut command = shell(r#"(sleep 0.05; echo done >"$FILE") >/dev/null &"#);
        command.env("FILE", &file);
        timed(command, b"").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "done\n");
        std::fs::remove_file(&file).unwrap();
        assert!(server.child.running());
        drop(server);
        assert!(SERVERS.lock().unwrap().is_empty());
    }

    #[test]
    fn each_of_many_calls_has_its_own_time() {
        if !alone("each_of_many_calls_has_its_own_time") {
            return;
        }
        let calls = ["cat; sleep 0.3", "exit 3", "cat"].map(|script| (shell(script), b"hello".to_vec()));
        let (calls, wall) = burst(calls.into()).unwrap();
        let [slow, failed, fast] = calls.as_slice() else { panic!("{}", calls.len()) };
        assert_eq!(slow.output.as_ref().unwrap(), b"hello");
        assert!(failed.output.is_err());
        assert!(slow.wall >= Duration::from_millis(300) && slow.wall <= wall);
        assert_ne!(slow.wall, fast.wall);
    }

    #[test]
    fn processes_are_weighed_together() {
        if !alone("processes_are_weighed_together") {
            return;
        }
        // tail keeps what it reads.
        let script = "head -c 30000000 /dev/zero | tail -c 20000000 | (sleep 0.3; wc -c)";
        let (run, kib) = weighed(|| timed(shell(script), b"").unwrap()).unwrap();
        assert_eq!(run.0, b"20000000\n");
        assert!((15_000..60_000).contains(&kib), "{kib}");
    }

    #[test]
    fn a_failure_is_told_with_what_was_printed() {
        if !alone("a_failure_is_told_with_what_was_printed") {
            return;
        }
        let err = timed(shell("echo why; exit 3"), b"").unwrap_err().to_string();
        assert!(err.contains("why") && err.contains('3'), "{err}");
    }

    #[test]
    fn sees_the_largest_process_and_counts_programs() {
        if !alone("sees_the_largest_process_and_counts_programs") {
            return;
        }
        let (output, footprint) =
            traced(shell("head -c 30000000 /dev/zero | tail -c 20000000 | wc -c"), b"").unwrap();
        assert_eq!(output, b"20000000\n");
        assert_eq!(footprint.programs, 4, "{footprint:?}");
        assert!((15_000..40_000).contains(&footprint.peak_kib), "{footprint:?}");
    }
}
