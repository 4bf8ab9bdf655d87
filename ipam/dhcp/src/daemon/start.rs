//! The program `dhcp daemon`, from its arguments to its exit.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cnimble_plugin::{Caps, Restraint, signal};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{Mode, umask};

use super::flags::{Flags, USAGE};
use super::journal::Journal;
use super::store::LeaseDirectory;
use super::{Daemon, cgroup, store};

/// The word that a started lease daemon writes to stdout when it serves. Its plugin waits for that.
pub(crate) const READY: &str = "ready";
/// The word that it writes if another lease daemon holds the lock.
pub(crate) const TAKEN: &str = "taken";

/// The error for a path at which nothing can listen.
pub(crate) const NO_SOCKET: &str =
    "the file is no socket; hint: remove it, or set another ipam.daemonSocketPath";

/// The first descriptor that systemd passes (sd_listen_fds(3)), after the standard ones.
const FIRST: i32 = 3;

/// The time to wait for the end of a replaced lease daemon.
const PATIENCE: Duration = Duration::from_secs(10);
/// The pause between two attempts to get its lock.
const PAUSE: Duration = Duration::from_millis(5);

/// Runs the lease daemon if the first argument is `daemon`, until its end. Returns the exit status, or `None` for other
/// arguments. With `-once`, another daemon for the same socket is no failure.
pub(crate) fn program(args: &[OsString]) -> Option<i32> {
    let (first, rest) = args.split_first()?;
    if first != "daemon" {
        return None;
    }
    let flags = match Flags::read(rest) {
        Ok(flags) => flags,
        Err(why) => {
            eprint!("dhcp daemon: {why}\n{USAGE}");
            return Some(2);
        }
    };
    signal::install();
    let once = flags.once;
    match run(flags) {
        Ok(true) => Some(0),
        Ok(false) if once => Some(0),
        Ok(false) => {
            eprintln!(
                "dhcp daemon: another lease daemon runs for this socket; hint: end it, or set another -socketpath"
            );
            Some(1)
        }
        Err(why) => {
            // The plugin that has started the daemon reads stdout, and a person reads stderr.
            if once {
                announce(&why);
            }
            eprintln!("dhcp daemon: {why}");
            Some(1)
        }
    }
}

/// Runs the daemon. Returns false if another lease daemon holds the lock for this socket. Fails with the reason.
fn run(flags: Flags) -> Result<bool, String> {
    // Each pod needs a descriptor for its namespace, and the usual limit is that of select(2).
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
    // The files of leases and the socket are for root alone.
    umask(Mode::from_bits_truncate(0o077));
    let activated = inherited();
    if flags.once && activated.is_none() {
        leave_home();
    }
    // A systemd unit passes a socket and need not pass its path, so the socket's own path counts.
    let path = activated.as_ref().and_then(path_of);
    let path = path.unwrap_or_else(|| flags.on_host(&flags.socket.to_string_lossy()));
    let directory = store::directory(&path);
    let store = if activated.is_some() { replace(&path) } else { LeaseDirectory::open(&path) };
    let Some(store) = store.map_err(|err| failure("opening", &directory, &err))? else {
        announce(TAKEN);
        return Ok(false);
    };
    let own = activated.is_none();
    let listener = match activated {
        Some(listener) => listener,
        None => listen(&path).map_err(|err| failure("listening on", &path, &err))?,
    };
    let bound = inode(&path).filter(|_| own);
    listener.set_nonblocking(true).map_err(|err| failure("listening on", &path, &err))?;
    if let Some(pidfile) = &flags.pidfile {
        write_pid(pidfile).map_err(|err| failure("Error writing pidfile", pidfile, &err))?;
    }
    let pidfile = flags.pidfile.clone();
    let journal = if flags.once && own { leave_runtime() } else { Journal::stderr() };
    restrain();
    let daemon = Daemon::new(flags, journal, store, listener);
    let daemon = daemon.map_err(|err| failure("reading the leases in", &directory, &err))?;
    announce(READY);
    let store = daemon.run();
    // The file is removed before the lock is released, because the next daemon binds its own socket. A file that
    // systemd has bound meanwhile stays.
    if bound.is_some() && bound == inode(&path) {
        let _ = std::fs::remove_file(&path);
    }
    if let Some(pidfile) = pidfile {
        let _ = std::fs::remove_file(pidfile);
    }
    drop(store);
    Ok(true)
}

/// Returns the reason for which the daemon ends: the action, the file and the error.
fn failure(what: &str, path: &Path, err: &dyn std::fmt::Display) -> String {
    format!("{what} {}: {err}", path.display())
}

/// Drops the privileges that the daemon does not need. It runs for long, and any host on its pods' links can reach it.
fn restrain() {
    let keep = [Caps::NET_ADMIN, Caps::NET_BIND_SERVICE, Caps::NET_RAW, Caps::SYS_ADMIN]
        .into_iter()
        // Namespaces may belong to processes of other users, and files to other users.
        .fold(Caps::SYS_PTRACE.and(Caps::DAC_OVERRIDE), Caps::and);
    Restraint { keep, starts_programs: false }.apply();
}

/// Returns the socket that systemd has opened for this process (sd_listen_fds(3)). `None` unless it is exactly one.
fn inherited() -> Option<UnixListener> {
    if read_number("LISTEN_PID")? != std::process::id() || read_number("LISTEN_FDS")? != 1 {
        return None;
    }
    // SAFETY: systemd has opened this descriptor for this process, and nothing else uses it.
    Some(unsafe { OwnedFd::from_raw_fd(FIRST) }.into())
}

/// Returns the number in an environment variable, or `None` if it is not set or no number.
fn read_number(variable: &str) -> Option<u32> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Returns the path of the socket, or `None` if it has none.
fn path_of(listener: &UnixListener) -> Option<PathBuf> {
    Some(listener.local_addr().ok()?.as_pathname()?.to_owned())
}

/// Returns the device and the inode of a file, or `None` if it is missing. A link is not followed.
fn inode(path: &Path) -> Option<(u64, u64)> {
    let meta = std::fs::symlink_metadata(path).ok()?;
    Some((meta.dev(), meta.ino()))
}

/// Opens the store for an inherited socket, and ends the lease daemon that holds it. systemd unlinks that daemon's
/// socket before it binds its own (systemd.socket(5)), so verbs no longer reach the daemon.
///
/// Its leases are in the store. SIGKILL keeps it from removing the file of the new socket. Returns `None` if the lock
/// is not free after [`PATIENCE`]. Fails also on a signal.
fn replace(path: &Path) -> io::Result<Option<LeaseDirectory>> {
    let end = Instant::now() + PATIENCE;
    loop {
        let store = LeaseDirectory::open(path)?;
        if store.is_some() || Instant::now() > end {
            return Ok(store);
        }
        if let Some(daemon) = store::holder(path)? {
            let _ = kill(daemon, Signal::SIGKILL);
        }
        signal::check().map_err(io::Error::other)?;
        std::thread::sleep(PAUSE);
    }
}

/// Leaves the session and the directory of the plugin and its runtime, and closes all descriptors but the standard
/// ones. So it must run before the daemon opens anything.
fn leave_home() {
    // This cannot fail if a plugin has started the daemon. Started from a shell, the daemon may lead its process group,
    // and then it stays in its session.
    let _ = nix::unistd::setsid();
    let _ = nix::unistd::chdir("/");
    // SAFETY: this process uses only the standard descriptors, and close_range(2) takes numbers.
    unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, 0) };
}

/// Makes a started daemon outlive its plugin and the runtime: it leaves their control group and logs to the system's
/// log. A failure to leave is only logged.
fn leave_runtime() -> Journal {
    let journal = Journal::system();
    if let Err(why) = cgroup::leave() {
        let what = "the lease daemon stays in the runtime's control group, and may be killed with it";
        journal.log(&format!("{what}: {why}"));
    }
    journal
}

/// Binds the socket. A file that a killed lease daemon has left is removed. Fails if another program listens there, or
/// if the file is no socket.
fn listen(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(err) if err.kind() == io::ErrorKind::AddrInUse => {}
        bound => return bound,
    }
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(io::Error::other(NO_SOCKET));
    }
    if UnixStream::connect(path).is_ok() {
        return Err(io::Error::other(
            "another program listens there, such as the Go plugins' dhcp daemon; hint: end it, or set another \
             ipam.daemonSocketPath",
        ));
    }
    std::fs::remove_file(path)?;
    UnixListener::bind(path)
}

/// Writes the process ID into the file. Links are not followed.
fn write_pid(path: &Path) -> io::Result<()> {
    let mut file = std::fs::File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o644)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)?;
    write!(file, "{}", std::process::id())
}

/// Tells the plugin that has started the daemon a word on stdout. Then closes stdout, because the plugin reads until
/// the end.
fn announce(word: &str) {
    let _ = writeln!(io::stdout(), "{word}");
    let _ = io::stdout().flush();
    if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
        let _ = nix::unistd::dup2_stdout(&null);
    }
}
