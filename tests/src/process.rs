//! Child processes with a time limit.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Where the tests find commands; the caller's environment has no say.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The time limit of a command, far above the need of any on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(300);

/// Writes a script to be executed, in place of an older one if there is one.
///
/// A child process does it. A file that is open for writing cannot be executed (ETXTBSY), and a child that another test
/// starts would inherit the descriptor for a moment.
///
/// # Panics
/// If it can't be written.
pub fn script(path: &Path, text: &str) {
    let line = r#"cat >"$1.new" && chmod 755 "$1.new" && mv "$1.new" "$1""#;
    let mut command = Command::new("sh");
    command.args(["-c", line, "-"]).arg(path);
    let output = run_limited(&mut command, text.as_bytes(), LIMIT);
    assert!(output.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&output.stderr));
}

/// Copies a program to be executed; by a process of its own, as [`script`].
///
/// # Panics
/// If it can't be copied.
pub fn copy(from: &Path, to: &Path) {
    let output = run_limited(Command::new("cp").arg(from).arg(to), b"", LIMIT);
    assert!(output.status.success(), "{}: {}", to.display(), String::from_utf8_lossy(&output.stderr));
}

/// Runs `command` with `stdin` and collects what it prints.
///
/// # Panics
/// If it can't be started, or takes longer than `limit` (it is killed then).
pub fn run_limited(command: &mut Command, stdin: &[u8], limit: Duration) -> Output {
    try_run(command, stdin, limit).unwrap_or_else(|slow| panic!("{slow}"))
}

/// As [`run_limited`], with an error if it takes too long.
pub(crate) fn try_run(command: &mut Command, stdin: &[u8], limit: Duration) -> Result<Output, String> {
    run_beside(command, stdin, limit, |_| ())
}

/// As [`run_limited`]; `meanwhile` gets the process ID while the command runs.
///
/// # Errors
/// If it takes too long (it is killed then).
///
/// # Panics
/// If it can't be started.
pub fn run_beside(
    command: &mut Command,
    stdin: &[u8],
    limit: Duration,
    meanwhile: impl FnOnce(u32),
) -> Result<Output, String> {
    let name = format!("{command:?}");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // What it starts can be killed with it.
    command.process_group(0);
    let mut child = command.spawn().unwrap_or_else(|err| panic!("starting {name}: {err}"));
    let pid = child.id();
    let mut pipe = child.stdin.take().unwrap();
    let bytes = stdin.to_vec();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        // A child that doesn't read its input may close it.
        let _ = pipe.write_all(&bytes);
        drop(pipe);
        let _ = sender.send(child.wait_with_output());
    });
    meanwhile(pid);
    match receiver.recv_timeout(limit) {
        Ok(output) => Ok(output.unwrap()),
        Err(_) => {
            kill_group(pid);
            Err(format!("{name} took longer than {limit:?}"))
        }
    }
}

fn kill_group(leader: u32) {
    let leader = nix::unistd::Pid::from_raw(i32::try_from(leader).unwrap());
    let _ = nix::sys::signal::killpg(leader, nix::sys::signal::Signal::SIGKILL);
}

/// A process that runs beside the test and ends with it.
pub struct Background(Child);

impl Background {
    /// Starts `command`; it is killed when this value or the starting thread goes.
    pub fn start(command: &mut Command) -> Self {
        die_with_parent(command);
        let name = format!("{command:?}");
        Background(command.spawn().unwrap_or_else(|err| panic!("starting {name}: {err}")))
    }

    /// The process ID.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Whether it still runs.
    pub fn running(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }

    /// Its output, after it has ended by itself within `limit`.
    ///
    /// # Panics
    /// If it doesn't end.
    pub fn finish(mut self, limit: Duration) -> Output {
        assert!(
            crate::wait_until(limit.as_secs_f32(), || !self.running()),
            "background process {} is still running after {limit:?}",
            self.pid()
        );
        let mut output = Output { status: self.0.wait().unwrap(), stdout: Vec::new(), stderr: Vec::new() };
        use std::io::Read;
        if let Some(mut pipe) = self.0.stdout.take() {
            pipe.read_to_end(&mut output.stdout).unwrap();
        }
        if let Some(mut pipe) = self.0.stderr.take() {
            pipe.read_to_end(&mut output.stderr).unwrap();
        }
        output
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The process is killed when the thread that starts it ends.
fn die_with_parent(command: &mut Command) {
    // SAFETY: prctl(2) is a plain system call, safe between fork and exec.
    unsafe {
        command.pre_exec(|| {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0 {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error())
            }
        });
    }
}
