//! The plugin's side of the socket: asks the lease daemon, and starts one if none runs.

use std::io::{self, BufRead, BufReader, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cnimble_cni::{Code, Error};
use cnimble_netlink::NetNs;
use cnimble_plugin::{RESTRAINT, signal};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::daemon::{NO_SOCKET, READY, TAKEN, store};
use crate::ipc::{LONGEST_LINE, Reply, Request};

/// The time after which a failed attempt is the last one. It does not limit the wait for an answer: an attempt that
/// took longer than this is repeated up to three times.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most lease daemons that one verb starts.
const MOST: usize = 16;
/// The pause between two attempts, while one lease daemon exits and another starts.
const PAUSE: Duration = Duration::from_millis(5);
/// A directory that exists if systemd is PID 1 (sd_booted(3)).
pub(crate) const SYSTEMD: &str = "/run/systemd/system";
/// The time that an ADD waits for an address, with a daemon that this plugin has started. It is only the default: the
/// key `ipam.timeout` sets another time, which may be longer. The kubelet allows four minutes for a sandbox with all
/// its networks.
const ADD_LIMIT: &str = "60s";

/// Asks the lease daemon, and starts one if none runs. If the daemon exits before it answers, asks the next one, so a
/// question may be asked twice. Returns the daemon's error, or code 5 without a daemon.
pub(crate) fn ask_daemon(socket: &Path, ask: &Request) -> Result<Reply, Error> {
    ask_with(socket, ask, None)
}

/// Does what [`ask_daemon`] does, and sends a file descriptor of `netns` with the question, because the daemon may not
/// find the namespace by its path.
fn ask_with(socket: &Path, ask: &Request, netns: Option<&NetNs>) -> Result<Reply, Error> {
    let mut question = serde_json::to_vec(ask).map_err(|err| unreachable(socket, &err))?;
    question.push(b'\n');
    let end = Instant::now() + PATIENCE;
    let (mut failed, mut started) = (0, 0);
    loop {
        signal::check()?;
        let begun = Instant::now();
        let why = match UnixStream::connect(socket) {
            Ok(stream) => match exchange(stream, &question, netns) {
                Ok(Some(answer)) => return read(socket, &answer)?.checked(),
                Ok(None) => "it has exited before its answer".to_owned(),
                Err(err) => err.to_string(),
            },
            Err(err) if is_alone(&err) => match start(socket)? {
                true if started < MOST => {
                    started += 1;
                    continue;
                }
                true => {
                    return Err(unreachable(
                        socket,
                        &"each daemon that was started has exited at once; hint: see the system's log",
                    ));
                }
                false => "another daemon is starting".to_owned(),
            },
            Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
            Err(err) => err.to_string(),
        };
        // A daemon that was killed after some work counts like one that was exiting.
        failed += 1;
        if Instant::now() > end && (begun.elapsed() < PATIENCE || failed > 3) {
            return Err(unreachable(socket, &why));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Sends all questions before it waits for answers, so that the daemon works on them at the same time. Returns the
/// replies in the order of the questions, or the first error of [`ask_daemon`]. Later questions may have been carried
/// out then.
pub(crate) fn ask_all(socket: &Path, asks: &[Request], netns: &NetNs) -> Result<Vec<Reply>, Error> {
    // The questions below are sent only to a daemon that already runs, so this one starts it.
    if asks.len() > 1 {
        ask_daemon(socket, &Request::Status)?;
    }
    let begun: Vec<_> =
        asks.iter().map(|ask| if asks.len() > 1 { begin(socket, ask, netns) } else { None }).collect();
    let mut replies = Vec::with_capacity(asks.len());
    for (begun, ask) in begun.into_iter().zip(asks) {
        replies.push(match begun.map(wait_for_answer) {
            Some(Ok(Some(answer))) => read(socket, &answer)?.checked()?,
            // The daemon has exited, or a signal has arrived. The question is asked again.
            _ => ask_with(socket, ask, Some(netns))?,
        });
    }
    Ok(replies)
}

/// Sends a question by a connection of its own, without waiting for the answer. `None` if it could not be sent.
fn begin(socket: &Path, ask: &Request, netns: &NetNs) -> Option<UnixStream> {
    let mut question = serde_json::to_vec(ask).ok()?;
    question.push(b'\n');
    let mut stream = UnixStream::connect(socket).ok()?;
    send(&mut stream, &question, Some(netns)).ok()?;
    Some(stream)
}

/// Checks that a lease daemon answers, or could be started. Starts none. Returns the daemon's error, or code 5 with the
/// reason why none could be started.
pub(crate) fn status(socket: &Path) -> Result<(), Error> {
    // A connection to the socket of a systemd unit would start the daemon (systemd.socket(5)). A daemon that runs holds
    // the lock.
    let is_idle = Path::new(SYSTEMD).exists() && listens(socket) && matches!(store::holder(socket), Ok(None));
    if is_idle {
        return Ok(());
    }
    let question = b"\"status\"\n";
    match UnixStream::connect(socket).and_then(|stream| exchange(stream, question, None)) {
        Ok(Some(answer)) => read(socket, &answer)?.checked().map(drop),
        Ok(None) => startable(socket),
        Err(err) if is_alone(&err) => startable(socket),
        Err(err) => Err(unreachable(socket, &err)),
    }
}

/// Checks that a new daemon could create its files and bind its socket. Fails with code 5.
fn startable(socket: &Path) -> Result<(), Error> {
    store::prepare(socket).map_err(|err| Error::io("opening", &store::directory(socket), &err))?;
    match std::fs::symlink_metadata(socket) {
        Ok(meta) if !meta.file_type().is_socket() => Err(unreachable(socket, &NO_SOCKET)),
        _ => Ok(()),
    }
}

/// Returns true if a process of this network namespace listens at the path. systemd does so for a unit.
fn listens(socket: &Path) -> bool {
    let sockets = std::fs::read_to_string("/proc/self/net/unix").unwrap_or_default();
    let path = format!(" {}", socket.display());
    // The fields are number, references, protocol, flags (linux/net.h: __SO_ACCEPTCON), type, state, inode and path.
    sockets
        .lines()
        .filter_map(|line| line.strip_suffix(&path))
        .any(|line| matches!(line.split_whitespace().collect::<Vec<_>>()[..], [_, _, _, "00010000", _, _, _]))
}

/// Returns true if the error of a connection says that no process listens at the path.
fn is_alone(err: &io::Error) -> bool {
    matches!(err.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Returns the error for a daemon that cannot be asked, with code 5.
fn unreachable(socket: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::new(Code::IO, format!("asking the lease daemon of DHCP at {}: {why}", socket.display()))
}

/// Sends a question and waits for the answer. `None` if the lease daemon has exited.
fn exchange(mut stream: UnixStream, question: &[u8], netns: Option<&NetNs>) -> io::Result<Option<Vec<u8>>> {
    match send(&mut stream, question, netns) {
        Err(err) if is_end(&err) => return Ok(None),
        written => written?,
    }
    wait_for_answer(stream)
}

/// Writes a question, with a descriptor of `netns` if there is one. A daemon that reads without room for a descriptor
/// (829e098) never gets it, because the kernel closes it.
fn send(stream: &mut UnixStream, question: &[u8], netns: Option<&NetNs>) -> io::Result<()> {
    let Some(netns) = netns else { return stream.write_all(question) };
    let netns = [netns.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&netns));
    let sent = sendmsg(&*stream, &[IoSlice::new(question)], &mut control, SendFlags::NOSIGNAL)?;
    stream.write_all(question.get(sent..).unwrap_or_default())
}

/// Waits for the answer, which is one line. `None` if the lease daemon has exited before its end. A termination signal
/// ends the wait with an error.
fn wait_for_answer(stream: UnixStream) -> io::Result<Option<Vec<u8>>> {
    let mut answer = Vec::new();
    let mut reader = BufReader::new(stream.take(LONGEST_LINE as u64));
    loop {
        match reader.fill_buf() {
            Ok([]) => return Ok(answer.ends_with(b"\n").then_some(answer)),
            Ok(piece) => {
                let length = piece.len();
                answer.extend_from_slice(piece);
                reader.consume(length);
                // The Go daemon answers in HTTP, without a newline at the end, and keeps the connection open.
                if answer.ends_with(b"\n") || is_http(&answer) {
                    return Ok(Some(answer));
                }
            }
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {
                signal::check().map_err(io::Error::other)?;
            }
            Err(err) if is_end(&err) => return Ok(None),
            Err(err) => return Err(err),
        }
    }
}

/// Returns true if the answer is the Go daemon's.
fn is_http(answer: &[u8]) -> bool {
    answer.starts_with(b"HTTP/")
}

/// Returns true if the other end of the connection is closed.
fn is_end(err: &io::Error) -> bool {
    matches!(err.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// Parses an answer. Fails with code 7 for the Go daemon, and with code 5 for an invalid answer.
fn read(socket: &Path, answer: &[u8]) -> Result<Reply, Error> {
    if is_http(answer) {
        let err = Error::new(
            Code::INVALID_CONFIG,
            format!("the Go plugins' dhcp daemon listens at {}", socket.display()),
        );
        return Err(err.details(
            "this plugin has a lease daemon of its own; hint: leave ipam.daemonSocketPath out, or end that daemon",
        ));
    }
    serde_json::from_slice(answer)
        .map_err(|err| unreachable(socket, &format_args!("its answer is invalid: {err}")))
}

/// Starts a lease daemon in its own session, and waits until it serves. Returns false if another daemon holds the lock,
/// so that the caller asks that one. Fails with code 5 and the daemon's message.
fn start(socket: &Path) -> Result<bool, Error> {
    let child = Command::new("/proc/self/exe")
        .arg0("dhcp")
        .args(["daemon", "-once", "-resendtimeout", ADD_LIMIT, "-socketpath"])
        .arg(socket)
        .env_clear()
        .envs(
            [RESTRAINT, cnimble_os::dbus::ADDRESS]
                .iter()
                .filter_map(|name| Some((name, std::env::var_os(name)?))),
        )
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    // Nothing waits for the daemon, which outlives this process.
    let mut said = String::new();
    let Some(mut stdout) = child.map_err(|err| start_failed(socket, &err))?.stdout else { return Ok(false) };
    loop {
        match stdout.read_to_string(&mut said) {
            Ok(_) => break,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => signal::check()?,
            Err(err) => return Err(start_failed(socket, &err)),
        }
    }
    match said.trim() {
        READY => Ok(true),
        TAKEN => Ok(false),
        "" => Err(start_failed(socket, &"it has exited without a message; hint: see the system's log")),
        why => Err(start_failed(socket, &why)),
    }
}

/// Returns the error for a daemon that does not start, with code 5.
fn start_failed(socket: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::new(Code::IO, format!("starting the lease daemon of DHCP at {}: {why}", socket.display()))
}
