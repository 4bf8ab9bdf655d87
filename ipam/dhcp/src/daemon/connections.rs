//! The connections of verbs to the lease daemon. They never block it.

use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use nix::sys::socket::{getsockopt, sockopt};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::ipc::{LONGEST_LINE, Reply, Request};

/// The most concurrent connections. A node has fewer concurrent verbs.
const MOST: usize = 1024;
/// The time that a verb has to send its request, and then to read the reply, in milliseconds.
const PATIENCE: u64 = 10_000;
/// The first bytes of a client of Go's net/rpc (`rpc.DialHTTP`).
const GO: &[u8] = b"CONNECT ";
/// The answer to such a client, whose error shows the status line.
const TO_GO: &[u8] =
    b"HTTP/1.0 501 cnimble's lease daemon listens here, and the Go plugin dhcp cannot use it; \
    hint: call cnimble's plugin dhcp, or let the Go daemon listen here\r\n\r\n";

/// A connection, with one request and one reply.
struct Connection {
    number: u64,
    stream: UnixStream,
    request: Vec<u8>,
    /// The descriptor that has arrived with the request.
    sent: Option<OwnedFd>,
    /// The part of the reply that is not sent yet.
    reply: Vec<u8>,
    /// Whether the daemon works on the request. Such a connection has no time limit.
    pending: bool,
    /// The time of the connection or of the reply, from which the limit counts.
    since: u64,
    /// Whether the connection is to be removed.
    closed: bool,
}

/// A complete request. Its `number` is for [`Connections::reply`].
pub(super) struct Incoming {
    pub(super) number: u64,
    /// The request, or why it cannot be parsed.
    pub(super) request: Result<Request, String>,
    pub(super) sent: Option<OwnedFd>,
}

/// All connections of verbs.
#[derive(Default)]
pub(super) struct Connections {
    all: Vec<Connection>,
    /// The number of the latest connection. No number is used twice.
    last: u64,
}

impl Connections {
    /// Accepts waiting connections while there is room. Closes those of other users than root and the daemon's.
    pub(super) fn accept(&mut self, listener: &UnixListener, now: u64) {
        while self.all.len() < MOST {
            let Ok((stream, _)) = listener.accept() else { return };
            // Only root and this daemon's user may ask, as the mode of the socket says.
            let allowed = getsockopt(&stream, sockopt::PeerCredentials)
                .is_ok_and(|peer| peer.uid() == 0 || peer.uid() == nix::unistd::geteuid().as_raw());
            if !allowed || stream.set_nonblocking(true).is_err() {
                continue;
            }
            self.last += 1;
            self.all.push(Connection {
                number: self.last,
                stream,
                request: Vec::new(),
                sent: None,
                reply: Vec::new(),
                pending: false,
                since: now,
                closed: false,
            });
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the time at which the first connection reaches its limit, or `u64::MAX`. Connections whose request the
    /// daemon works on do not count.
    pub(super) fn next(&self) -> u64 {
        let timed = self.all.iter().filter(|connection| !connection.pending);
        timed.map(|connection| connection.since + PATIENCE).min().unwrap_or(u64::MAX)
    }

    /// Returns the descriptors to wait for, each with whether there is something to write.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        self.all.iter().map(|connection| (connection.stream.as_fd(), !connection.reply.is_empty()))
    }

    /// Returns true if another connection may be accepted. Otherwise the listener must not be waited for.
    pub(super) fn has_room(&self) -> bool {
        self.all.len() < MOST
    }

    /// Reads and writes what is possible without blocking, and removes connections that have ended or reached their
    /// limit. Returns the complete requests, and the numbers of the removed connections.
    pub(super) fn serve(&mut self, now: u64) -> (Vec<Incoming>, Vec<u64>) {
        let mut incoming = Vec::new();
        for connection in &mut self.all {
            if let Some(request) = connection.read() {
                incoming.push(Incoming { number: connection.number, request, sent: connection.sent.take() });
            }
            connection.write();
            connection.closed |= !connection.pending && now >= connection.since + PATIENCE;
        }
        let closed = self.all.iter().filter(|connection| connection.closed);
        let closed = closed.map(|connection| connection.number).collect();
        self.all.retain(|connection| !connection.closed);
        (incoming, closed)
    }

    /// Sends the reply to a request. Does nothing if the connection is gone.
    pub(super) fn reply(&mut self, number: u64, now: u64, reply: &Reply) {
        let Some(connection) = self.all.iter_mut().find(|connection| connection.number == number) else {
            return;
        };
        connection.reply = serde_json::to_vec(reply).unwrap_or_default();
        connection.reply.push(b'\n');
        connection.pending = false;
        connection.since = now;
        connection.write();
        self.all.retain(|connection| !connection.closed);
    }
}

impl Connection {
    /// Reads what has arrived. Returns the request when it is complete, or the reason why it is invalid. `None` means
    /// to wait for more, or that the connection is closed.
    fn read(&mut self) -> Option<Result<Request, String>> {
        let mut piece = [0; 4096];
        loop {
            match self.receive(&mut piece) {
                Ok(0) => {
                    self.closed = true;
                    return None;
                }
                // Each connection has one request, so further bytes are dropped.
                Ok(_) if self.pending || !self.reply.is_empty() => {}
                Ok(length) => {
                    self.request.extend_from_slice(piece.get(..length).unwrap_or_default());
                    if self.request.len() > LONGEST_LINE {
                        self.closed = true;
                        return None;
                    }
                    if self.request.starts_with(GO) {
                        self.reply = TO_GO.to_vec();
                        return None;
                    }
                    if self.request.last() == Some(&b'\n') {
                        self.pending = true;
                        let request = std::mem::take(&mut self.request);
                        return Some(serde_json::from_slice(&request).map_err(|err| err.to_string()));
                    }
                }
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => {
                    self.closed |= err.kind() != io::ErrorKind::WouldBlock;
                    return None;
                }
            }
        }
    }

    /// Reads a piece of the request, and a descriptor that may arrive with it (unix(7), SCM_RIGHTS).
    fn receive(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let slices = &mut [IoSliceMut::new(piece)];
        let received = recvmsg(&self.stream, slices, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.sent = descriptors.last();
            }
        }
        Ok(received.bytes)
    }

    /// Writes what is left of the reply, as far as that does not block. Closes the connection after its end.
    fn write(&mut self) {
        while !self.reply.is_empty() && !self.closed {
            match self.stream.write(&self.reply) {
                Ok(length) => drop(self.reply.drain(..length)),
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.closed = true,
            }
            self.closed |= self.reply.is_empty();
        }
    }
}
