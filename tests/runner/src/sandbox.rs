//! Namespaces of a test: processes, mounts, network, System V IPC and host name.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, ExitStatus};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::wait::{WaitStatus, wait};

/// Directories that keep the host's files for a test, and discard what the test writes.
const DISCARDED: [&str; 2] = ["/etc", "/var/lib"];

/// Directories that are empty for a test.
const EMPTY: [&str; 6] =
    ["/etc/cni", "/var/lib/cni", "/var/lib/cnimble", "/var/lib/containerd", "/var/lib/kubelet", "/run"];

/// The status of a process that a signal ended, as a shell has it: 128 and the signal.
const SIGNALLED: i32 = 128;

/// Makes the namespaces and runs `command` below an init process of its own.
pub(crate) fn enter(command: &[String]) -> ExitCode {
    let spaces = CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS;
    unshare(spaces).expect("unshare(2): new namespaces take root");
    let mut init = Command::new(std::env::current_exe().expect("the runner's own path"));
    init.arg("init").args(command);
    die_with_parent(&mut init);
    let status = init.status().expect("the init process of the namespaces");
    exit_code(status)
}

/// The first process of a PID namespace: prepares mounts and network, runs `command`, reaps
/// orphans, and ends with the command. The kernel then kills what the command left running.
#[allow(clippy::zombie_processes)] // wait(2) reaps the child with all others
pub(crate) fn init(command: &[String]) -> ExitCode {
    prepare();
    let (program, args) = command.split_first().expect("a command");
    let child = Command::new(program).args(args).spawn().expect("the test program");
    let child = i32::try_from(child.id()).expect("a process ID");
    loop {
        match wait() {
            Ok(WaitStatus::Exited(pid, status)) if pid.as_raw() == child => return code(status),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid.as_raw() == child => {
                return code(SIGNALLED + signal as i32);
            }
            Ok(_) => {}
            Err(err) => panic!("wait(2): {err}"),
        }
    }
}

fn prepare() {
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("private mounts");
    mount(Some("proc"), "/proc", Some("proc"), MsFlags::empty(), none).expect("a new /proc");
    // The layers of the overlays stay when /run is covered once more.
    empty("/run");
    for (number, directory) in DISCARDED.iter().enumerate() {
        let (upper, work) = (format!("/run/upper{number}"), format!("/run/work{number}"));
        std::fs::create_dir(&upper).expect("a directory in /run");
        std::fs::create_dir(&work).expect("a directory in /run");
        let layers = format!("lowerdir={directory},upperdir={upper},workdir={work}");
        mount(Some("overlay"), *directory, Some("overlay"), MsFlags::empty(), Some(layers.as_str()))
            .unwrap_or_else(|err| panic!("overlay on {directory}: {err}"));
    }
    EMPTY.iter().for_each(|directory| empty(directory));
    // /var/lock leads here.
    std::fs::create_dir("/run/lock").expect("/run/lock");
    let lo = Command::new("ip").args(["link", "set", "lo", "up"]).status();
    assert!(lo.is_ok_and(|status| status.success()), "ip link set lo up");
}

/// Covers a directory with a new tmpfs.
fn empty(directory: &str) {
    std::fs::create_dir_all(directory).unwrap_or_else(|err| panic!("{directory}: {err}"));
    mount(Some("tmpfs"), directory, Some("tmpfs"), MsFlags::empty(), Some("mode=755"))
        .unwrap_or_else(|err| panic!("tmpfs on {directory}: {err}"));
}

/// The process is killed when its parent ends.
pub(crate) fn die_with_parent(command: &mut Command) {
    // SAFETY: prctl(2) is a plain system call, safe between fork and exec.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
}

fn exit_code(status: ExitStatus) -> ExitCode {
    code(status.code().or_else(|| status.signal().map(|signal| SIGNALLED + signal)).unwrap_or(1))
}

fn code(status: i32) -> ExitCode {
    ExitCode::from(u8::try_from(status).unwrap_or(1))
}
