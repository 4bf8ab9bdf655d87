//! Servers and clients, to see where packets really go.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{Ns, PATIENCE, silence};

/// Answers on one port of a namespace, IPv4 and IPv6, with its name and the client's address.
pub struct Server {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Serves both TCP and UDP.
    pub fn start(ns: &Ns, port: u16, name: &'static str) -> Self {
        let any = any(port);
        let (tcp, udp) = ns.within(|| (TcpListener::bind(any).unwrap(), UdpSocket::bind(any).unwrap()));
        Self::on(tcp, udp, name)
    }

    /// Serves only UDP, for a port with another TCP server.
    pub fn udp(ns: &Ns, port: u16, name: &'static str) -> Self {
        let socket = ns.within(|| UdpSocket::bind(any(port)).unwrap());
        let stop = Arc::new(AtomicBool::new(false));
        Server { threads: vec![serve_udp(socket, name, stop.clone())], stop }
    }

    /// On sockets that are bound already.
    pub fn on(tcp: TcpListener, udp: UdpSocket, name: &'static str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        Server { threads: vec![serve_tcp(tcp, name, stop.clone()), serve_udp(udp, name, stop.clone())], stop }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn any(port: u16) -> SocketAddr {
    SocketAddr::new("::".parse().unwrap(), port)
}

fn answer(name: &str, from: SocketAddr) -> String {
    format!("{name} {}", from.ip().to_canonical())
}

fn serve_tcp(socket: TcpListener, name: &'static str, stop: Arc<AtomicBool>) -> JoinHandle<()> {
    socket.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            match socket.accept() {
                Ok((mut stream, from)) => drop(stream.write_all(answer(name, from).as_bytes())),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    })
}

fn serve_udp(socket: UdpSocket, name: &'static str, stop: Arc<AtomicBool>) -> JoinHandle<()> {
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while !stop.load(Ordering::Relaxed) {
            if let Ok((length, from)) = socket.recv_from(&mut buffer) {
                // With the question, so that a late answer isn't taken for one to another.
                let question = String::from_utf8_lossy(&buffer[..length]);
                let _ = socket.send_to(format!("{question} {}", answer(name, from)).as_bytes(), from);
            }
        }
    })
}

/// The time without an answer after which a port counts as silent, where silence is expected.
const SILENCE: Duration = Duration::from_secs(2);

/// The answer of a [`Server`] over TCP.
///
/// # Errors
/// Fails if it is refused, or without an answer for a long time.
pub fn tcp(from: &Ns, to: &str) -> io::Result<String> {
    let limit = Duration::from_secs_f32(PATIENCE);
    let mut answer = tcp_within(limit, from, to);
    // A neighbour that is slow to answer is unreachable after three seconds.
    let unreachable = |answer: &io::Result<String>| {
        answer.as_ref().is_err_and(|err| err.kind() == io::ErrorKind::HostUnreachable)
    };
    crate::wait_until(PATIENCE, || {
        if unreachable(&answer) {
            answer = tcp_within(limit, from, to);
        }
        !unreachable(&answer)
    });
    answer
}

/// Whether TCP is refused or stays without an answer.
pub fn tcp_is_shut(from: &Ns, to: &str) -> bool {
    tcp_within(silence(SILENCE), from, to).is_err()
}

/// The answer of a server, or the error of one that does not answer in time.
pub fn tcp_within(limit: Duration, from: &Ns, to: &str) -> io::Result<String> {
    let to: SocketAddr = to.parse().unwrap();
    from.within(|| {
        let mut stream = TcpStream::connect_timeout(&to, limit)?;
        stream.set_read_timeout(Some(limit))?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    })
}

/// The socket of a client.
pub fn udp_socket(from: &Ns, to: SocketAddr) -> UdpSocket {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    from.within(|| UdpSocket::bind(any).unwrap())
}

/// The answer to a datagram, which is sent again until one is answered.
pub fn ask(socket: &UdpSocket, to: SocketAddr) -> Option<String> {
    ask_within(Duration::from_secs_f32(PATIENCE), socket, to)
}

fn ask_within(limit: Duration, socket: &UdpSocket, to: SocketAddr) -> Option<String> {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let end = Instant::now() + limit;
    let mut buffer = [0; 128];
    socket.set_read_timeout(Some(SILENCE / 4)).unwrap();
    while Instant::now() < end {
        let question = NEXT.fetch_add(1, Ordering::Relaxed).to_string();
        // A refusal of an earlier one may be told here.
        let _ = socket.send_to(question.as_bytes(), to);
        while let Ok((length, _)) = socket.recv_from(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..length]);
            if let Some((_, answer)) = text.split_once(' ').filter(|(asked, _)| *asked == question) {
                return Some(answer.to_owned());
            }
        }
    }
    None
}

/// The answer of a [`Server`] over UDP, or `None`.
pub fn udp(from: &Ns, to: &str) -> Option<String> {
    let to: SocketAddr = to.parse().unwrap();
    ask(&udp_socket(from, to), to)
}

/// Whether UDP stays without an answer.
pub fn udp_is_shut(from: &Ns, to: &str) -> bool {
    let to: SocketAddr = to.parse().unwrap();
    ask_within(silence(SILENCE), &udp_socket(from, to), to).is_none()
}
