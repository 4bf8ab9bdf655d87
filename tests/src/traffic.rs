//! Servers and clients, to see where packets really go.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::Ns;

/// Answers on one port of a namespace, IPv4 and IPv6, with its name and whom it sees.
pub struct Server {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// TCP and UDP.
    pub fn start(ns: &Ns, port: u16, name: &'static str) -> Self {
        let any = any(port);
        let (tcp, udp) = ns.within(|| (TcpListener::bind(any).unwrap(), UdpSocket::bind(any).unwrap()));
        Self::on(tcp, udp, name)
    }

    /// Only UDP, for a port where somebody else serves TCP.
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
            if let Ok((_, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(answer(name, from).as_bytes(), from);
            }
        }
    })
}

/// What a [`Server`] answers over TCP.
///
/// # Errors
/// When nobody does within three seconds.
pub fn tcp(from: &Ns, to: &str) -> io::Result<String> {
    let to: SocketAddr = to.parse().unwrap();
    from.within(|| {
        let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(3))?;
        stream.set_read_timeout(Some(Duration::from_secs(3)))?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    })
}

/// A client's socket, which waits a second for an answer.
pub fn udp_socket(from: &Ns, to: SocketAddr) -> UdpSocket {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = from.within(|| UdpSocket::bind(any).unwrap());
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    socket
}

/// What is answered to a datagram, if one of so many is answered.
pub fn ask(socket: &UdpSocket, to: SocketAddr, times: usize) -> Option<String> {
    let mut buffer = [0; 64];
    // Late answers to earlier questions.
    socket.set_nonblocking(true).unwrap();
    while socket.recv_from(&mut buffer).is_ok() {}
    socket.set_nonblocking(false).unwrap();
    (0..times).find_map(|_| {
        socket.send_to(b"who?", to).ok()?;
        let (length, _) = socket.recv_from(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
    })
}

/// What a [`Server`] answers over UDP, if one datagram of three is answered.
pub fn udp(from: &Ns, to: &str) -> Option<String> {
    let to: SocketAddr = to.parse().unwrap();
    ask(&udp_socket(from, to), to, 3)
}
