//! A load of connections and datagrams between two namespaces, bounded in count and time, and the servers that answer.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::socket;

use crate::Result;
use crate::sandbox::enter;

/// The number of threads on either side, more than one so that no processor waits for the other.
const THREADS: usize = 4;
/// The number of connections of a load. A client keeps each port for a minute, and has 28,000.
const CONNECTIONS: u64 = 1000;
const ROUND_TRIPS: u64 = 8000;
/// The length of a stream, in chunks.
const CHUNKS: usize = 4000;
static CHUNK: [u8; 131_072] = [STREAM; 131_072];
/// The time without an answer after which a connection or a datagram counts as failed.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time after which the rest of a load counts as failed.
const LIMIT: Duration = Duration::from_secs(20);
/// The first byte of a short connection, and of a stream.
const SHORT: u8 = b'c';
const STREAM: u8 = b's';

/// The outcome of a load.
pub(crate) struct Outcome {
    /// Successes per second. For a stream, Gbit/s.
    pub(crate) rate: f64,
    pub(crate) tried: u64,
    pub(crate) failed: u64,
}

/// The servers of TCP and UDP on one port of a namespace, which end with this value.
pub(crate) struct Servers {
    stop: Arc<AtomicBool>,
    tcp: TcpListener,
    threads: Vec<JoinHandle<()>>,
}

impl Servers {
    pub(crate) fn start(netns: &Path, port: u16) -> Result<Self> {
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        let (tcp, udp) = within(netns, || Ok((TcpListener::bind(any)?, UdpSocket::bind(any)?)))?;
        udp.set_read_timeout(Some(Duration::from_millis(50)))?;
        let mut servers = Servers { stop: Arc::default(), tcp, threads: Vec::new() };
        for _ in 0..THREADS {
            let (tcp, udp, stop) = (servers.tcp.try_clone()?, udp.try_clone()?, servers.stop.clone());
            servers.threads.push(std::thread::spawn(move || serve_tcp(&tcp)));
            servers.threads.push(std::thread::spawn(move || serve_udp(&udp, &stop)));
        }
        Ok(servers)
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // This ends every accept(2).
        let _ = socket::shutdown(self.tcp.as_raw_fd(), socket::Shutdown::Both);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn serve_tcp(listener: &TcpListener) {
    let mut buffer = vec![0; CHUNK.len()];
    while let Ok((stream, _)) = listener.accept() {
        // The client counts failures.
        let _ = answer(stream, &mut buffer);
    }
}

/// Answers the first byte of a short connection, and the end of a stream. The client closes first.
fn answer(mut stream: TcpStream, buffer: &mut [u8]) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut first = [0];
    stream.read_exact(&mut first)?;
    if first == [SHORT] {
        stream.write_all(&first)?;
    }
    while stream.read(buffer)? > 0 {}
    if first == [STREAM] {
        stream.write_all(&first)?;
    }
    Ok(())
}

fn serve_udp(socket: &UdpSocket, stop: &AtomicBool) {
    let mut buffer = [0; 64];
    while !stop.load(Ordering::Relaxed) {
        if let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(buffer.get(..length).unwrap_or_default(), from);
        }
    }
}

/// Opens connections from the namespace, with one byte there and back, and closes them.
pub(crate) fn connections(netns: &Path, to: SocketAddr) -> Result<Outcome> {
    let connect = |(): &(), _| {
        let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&[SHORT])?;
        stream.read_exact(&mut [0])
    };
    spread(netns, CONNECTIONS, || Ok(()), connect)
}

/// Sends datagrams from the namespace, each after the answer to the last one of its socket.
pub(crate) fn round_trips(netns: &Path, to: SocketAddr) -> Result<Outcome> {
    let open = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect(to)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(socket)
    };
    let ask = |socket: &UdpSocket, number: u64| {
        let (question, mut answer) = (number.to_le_bytes(), [0; 8]);
        socket.send(&question)?;
        // The answer to an earlier question may be late.
        while question != answer {
            socket.recv(&mut answer)?;
        }
        Ok(())
    };
    spread(netns, ROUND_TRIPS, open, ask)
}

/// Sends one stream from the namespace, and waits until the server has read it.
pub(crate) fn stream(netns: &Path, to: SocketAddr) -> Result<Outcome> {
    let send = || {
        let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let begun = Instant::now();
        for _ in 0..CHUNKS {
            stream.write_all(&CHUNK)?;
        }
        stream.shutdown(Shutdown::Write)?;
        stream.read_exact(&mut [0])?;
        Ok((CHUNKS * CHUNK.len()) as f64 * 8.0 / 1e9 / begun.elapsed().as_secs_f64())
    };
    let rate = within(netns, send);
    Ok(Outcome { failed: u64::from(rate.is_err()), tried: 1, rate: rate.unwrap_or(0.0) })
}

/// Returns the number of TCP segments that the namespace has sent again (proc_pid_net(5), snmp).
pub(crate) fn sent_again(netns: &Path) -> Result<u64> {
    let table = within(netns, || std::fs::read_to_string("/proc/thread-self/net/snmp"))?;
    let mut lines = table.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let mut columns = names.split(' ').zip(values.split(' '));
    let (_, value) = columns.find(|(name, _)| *name == "RetransSegs").ok_or("no RetransSegs")?;
    Ok(value.parse()?)
}

/// Does one thing `count` times on the threads of the clients, each with what it opens first.
fn spread<T>(
    netns: &Path,
    count: u64,
    open: impl Fn() -> io::Result<T> + Sync,
    one: impl Fn(&T, u64) -> io::Result<()> + Sync,
) -> Result<Outcome> {
    let share = count / THREADS as u64;
    let begun = Instant::now();
    let client = || {
        enter(netns)?;
        let own = open()?;
        let done = |number: &u64| begun.elapsed() < LIMIT && one(&own, *number).is_ok();
        Ok(share - (0..share).filter(done).count() as u64)
    };
    let failed: io::Result<u64> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..THREADS).map(|_| scope.spawn(client)).collect();
        clients.into_iter().map(join).sum()
    });
    let (failed, tried) = (failed?, share * THREADS as u64);
    Ok(Outcome { rate: (tried - failed) as f64 / begun.elapsed().as_secs_f64(), tried, failed })
}

/// Runs `inside` on a thread in the namespace.
fn within<T: Send>(netns: &Path, inside: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        join(scope.spawn(|| {
            enter(netns)?;
            inside()
        }))
    })
}

fn join<T>(thread: std::thread::ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread has panicked")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cnimble_tests::Ns;

    #[test]
    fn answers_are_counted_and_silence_too() {
        cnimble_tests::need!();
        let ns = Ns::new();
        let path = Path::new(ns.path());
        let to = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let servers = Servers::start(path, 80).unwrap();
        for outcome in [connections(path, to(80)), round_trips(path, to(80)), stream(path, to(80))] {
            let outcome = outcome.unwrap();
            assert_eq!(outcome.failed, 0);
            assert!(outcome.rate > 0.0);
        }
        let refused = connections(path, to(81)).unwrap();
        assert_eq!((refused.failed, refused.rate), (refused.tried, 0.0));
        drop(servers);
        let ended = connections(path, to(80)).unwrap();
        assert_eq!(ended.failed, ended.tried);
    }
}
