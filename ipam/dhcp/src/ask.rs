//! The verb's side: the keeper is asked, and started if there is none.

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

use crate::keeper::{NO_SOCKET, READY, TAKEN, store};
use crate::talk::{Ask, LONGEST_LINE, Reply};

/// How long a keeper may take to begin to listen, or to end so that another can begin.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many keepers a verb starts, of which none can be asked then.
const MOST: usize = 16;
/// Between two attempts, while one keeper goes and another comes.
const PAUSE: Duration = Duration::from_millis(5);
/// There if systemd is PID 1 (sd_booted(3)).
pub(crate) const SYSTEMD: &str = "/run/systemd/system";
/// How long an ADD waits for an address. A kubelet gives a sandbox four minutes, all of its networks included.
const ADD_LIMIT: &str = "60s";

/// Asks the keeper of this socket. A keeper that ends before it has answered is followed by another, which
/// is asked again: every question may be asked twice.
///
/// # Errors
/// The keeper's; code 5 if there is none and none can be started.
pub(crate) fn ask(socket: &Path, ask: &Ask) -> Result<Reply, Error> {
    ask_with(socket, ask, None)
}

/// As [`ask`], with a namespace that the daemon may not find by its path.
fn ask_with(socket: &Path, ask: &Ask, netns: Option<&NetNs>) -> Result<Reply, Error> {
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
                Ok(None) => "it has ended before it answered".to_owned(),
                Err(err) => err.to_string(),
            },
            Err(err) if is_alone(&err) => match start(socket)? {
                true if started < MOST => {
                    started += 1;
                    continue;
                }
                true => return Err(unreachable(socket, &"each one that is started ends at once")),
                false => "another one is about to begin".to_owned(),
            },
            Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
            Err(err) => err.to_string(),
        };
        // One that has worked for a while and was killed counts as little as one that was ending.
        failed += 1;
        if Instant::now() > end && (begun.elapsed() < PATIENCE || failed > 3) {
            return Err(unreachable(socket, &why));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Asks several things about a namespace at once: all of them are asked before the first answer is waited for. Answers
/// stand in the order of questions.
///
/// # Errors
/// As those of [`ask`], the first one; what is asked for behind it may have been done.
pub(crate) fn ask_all(socket: &Path, asks: &[Ask], netns: &NetNs) -> Result<Vec<Reply>, Error> {
    // One that is alone needs no company, and several need a keeper that is there.
    if asks.len() > 1 {
        ask(socket, &Ask::Status)?;
    }
    let begin = |ask: &Ask| {
        let mut question = serde_json::to_vec(ask).ok()?;
        question.push(b'\n');
        let mut stream = UnixStream::connect(socket).ok()?;
        send(&mut stream, &question, Some(netns)).ok()?;
        Some(stream)
    };
    let begun: Vec<_> = asks.iter().map(|ask| if asks.len() > 1 { begin(ask) } else { None }).collect();
    let end = |(begun, one): (Option<UnixStream>, &Ask)| match begun.map(hear) {
        Some(Ok(Some(answer))) => read(socket, &answer)?.checked(),
        // Its keeper has ended, or a signal has come.
        _ => ask_with(socket, one, Some(netns)),
    };
    begun.into_iter().zip(asks).map(end).collect()
}

/// Whether a lease daemon answers, or could be started. None is started.
///
/// # Errors
/// The daemon's; code 5 with what would keep one from starting.
pub(crate) fn status(socket: &Path) -> Result<(), Error> {
    // A connection would make systemd start the unit's daemon (systemd.socket(5)). One that runs holds the lock.
    let is_idle = Path::new(SYSTEMD).exists() && listens(socket) && matches!(store::holder(socket), Ok(None));
    if is_idle {
        return Ok(());
    }
    let question = b"\"status\"\n";
    match UnixStream::connect(socket).and_then(|stream| exchange(stream, question, None)) {
        Ok(Some(answer)) => read(socket, &answer)?.checked().map(drop),
        // It has just ended.
        Ok(None) => startable(socket),
        Err(err) if is_alone(&err) => startable(socket),
        Err(err) => Err(unreachable(socket, &err)),
    }
}

/// That a daemon could make its files.
fn startable(socket: &Path) -> Result<(), Error> {
    store::prepare(socket).map_err(|err| Error::io("opening", &store::directory(socket), &err))?;
    match std::fs::symlink_metadata(socket) {
        Ok(meta) if !meta.file_type().is_socket() => Err(unreachable(socket, &NO_SOCKET)),
        _ => Ok(()),
    }
}

/// Whether a process listens at this path.
fn listens(socket: &Path) -> bool {
    let sockets = std::fs::read_to_string("/proc/self/net/unix").unwrap_or_default();
    let path = format!(" {}", socket.display());
    // Number, references, protocol, flags (linux/net.h: __SO_ACCEPTCON), type, state, inode, path.
    sockets
        .lines()
        .filter_map(|line| line.strip_suffix(&path))
        .any(|line| matches!(line.split_whitespace().collect::<Vec<_>>()[..], [_, _, _, "00010000", _, _, _]))
}

/// Nothing listens there.
fn is_alone(err: &io::Error) -> bool {
    matches!(err.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

fn unreachable(socket: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::new(Code::IO, format!("asking the keeper of DHCP leases at {}: {why}", socket.display()))
}

/// The answer's line; `None` if the keeper has ended.
fn exchange(mut stream: UnixStream, question: &[u8], netns: Option<&NetNs>) -> io::Result<Option<Vec<u8>>> {
    match send(&mut stream, question, netns) {
        Err(err) if is_end(&err) => return Ok(None),
        written => written?,
    }
    hear(stream)
}

/// Writes a question. A daemon that reads without room for a descriptor (829e098) never gets one: the kernel closes it.
fn send(stream: &mut UnixStream, question: &[u8], netns: Option<&NetNs>) -> io::Result<()> {
    let Some(netns) = netns else { return stream.write_all(question) };
    let netns = [netns.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&netns));
    let sent = sendmsg(&*stream, &[IoSlice::new(question)], &mut control, SendFlags::NOSIGNAL)?;
    stream.write_all(question.get(sent..).unwrap_or_default())
}

fn hear(stream: UnixStream) -> io::Result<Option<Vec<u8>>> {
    let mut answer = Vec::new();
    let mut reader = BufReader::new(stream.take(LONGEST_LINE as u64));
    loop {
        match reader.fill_buf() {
            Ok([]) => return Ok(answer.ends_with(b"\n").then_some(answer)),
            Ok(piece) => {
                let length = piece.len();
                answer.extend_from_slice(piece);
                reader.consume(length);
                // A Go daemon keeps the connection open behind its answer, which needn't end a line.
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

fn is_http(answer: &[u8]) -> bool {
    answer.starts_with(b"HTTP/")
}

fn is_end(err: &io::Error) -> bool {
    matches!(err.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

fn read(socket: &Path, answer: &[u8]) -> Result<Reply, Error> {
    if is_http(answer) {
        let err = Error::new(
            Code::INVALID_CONFIG,
            format!("the Go plugins' dhcp daemon listens at {}", socket.display()),
        );
        return Err(err.details(
            "this plugin has a keeper of its own: leave ipam.daemonSocketPath out, or end that daemon",
        ));
    }
    serde_json::from_slice(answer).map_err(|err| unreachable(socket, &format_args!("its answer: {err}")))
}

/// Starts a keeper, in a session of its own; whether it is the one.
///
/// # Errors
/// Code 5 with what it says.
fn start(socket: &Path) -> Result<bool, Error> {
    let failed = |why: &dyn std::fmt::Display| {
        Error::new(Code::IO, format!("starting a keeper of DHCP leases: {why}"))
    };
    let child = Command::new("/proc/self/exe")
        .arg0("dhcp")
        .args(["daemon", "-once", "-resendtimeout", ADD_LIMIT, "-socketpath"])
        .arg(socket)
        .env_clear()
        .envs(
            [RESTRAINT, cnimble_dbus::ADDRESS]
                .iter()
                .filter_map(|name| Some((name, std::env::var_os(name)?))),
        )
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    // It is no child to wait for: it outlives us.
    let mut said = String::new();
    let Some(mut stdout) = child.map_err(|err| failed(&err))?.stdout else { return Ok(false) };
    loop {
        match stdout.read_to_string(&mut said) {
            Ok(_) => break,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => signal::check()?,
            Err(err) => return Err(failed(&err)),
        }
    }
    match said.trim() {
        READY => Ok(true),
        TAKEN => Ok(false),
        "" => Err(failed(&"it has ended without a word")),
        why => Err(failed(&why)),
    }
}
