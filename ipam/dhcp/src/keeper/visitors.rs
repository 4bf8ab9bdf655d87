//! The connections of verbs to the lease daemon. The daemon never blocks on one of them.

use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use nix::sys::socket::{getsockopt, sockopt};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::talk::{Ask, LONGEST_LINE, Reply};

/// The limit of concurrent connections. A node has fewer concurrent verbs.
const MOST: usize = 1024;
/// How many milliseconds a verb may take to send its question and to read its answer.
const PATIENCE: u64 = 10_000;
/// The first bytes of a client of Go's net/rpc (`rpc.DialHTTP`).
const GO: &[u8] = b"CONNECT ";
/// The answer to such a client, which shows the status line in its error.
const TO_GO: &[u8] =
    b"HTTP/1.0 501 cnimble's lease daemon listens here, and the Go plugin dhcp cannot use it; \
    hint: call cnimble's plugin dhcp, or let the Go daemon listen here\r\n\r\n";

struct Visitor {
    number: u64,
    stream: UnixStream,
    question: Vec<u8>,
    /// The last descriptor that came with the question.
    sent: Option<OwnedFd>,
    answer: Vec<u8>,
    /// Whether its answer takes time.
    waits: bool,
    since: u64,
    gone: bool,
}

/// A question from a connection.
pub(super) struct Asked {
    pub(super) number: u64,
    /// The question, or the reason why it cannot be read.
    pub(super) ask: Result<Ask, String>,
    /// The descriptor that arrived with the question.
    pub(super) sent: Option<OwnedFd>,
}

/// All connections.
#[derive(Default)]
pub(super) struct Visitors {
    all: Vec<Visitor>,
    last: u64,
}

impl Visitors {
    /// Accepts new connections.
    pub(super) fn welcome(&mut self, listener: &UnixListener, now: u64) {
        while self.all.len() < MOST {
            let Ok((stream, _)) = listener.accept() else { return };
            // The peer must be root or this daemon's user. The socket's mode enforces the same.
            let allowed = getsockopt(&stream, sockopt::PeerCredentials)
                .is_ok_and(|peer| peer.uid() == 0 || peer.uid() == nix::unistd::geteuid().as_raw());
            if !allowed || stream.set_nonblocking(true).is_err() {
                continue;
            }
            self.last += 1;
            let (question, answer) = (Vec::new(), Vec::new());
            let number = self.last;
            self.all.push(Visitor {
                number,
                stream,
                question,
                sent: None,
                answer,
                waits: false,
                since: now,
                gone: false,
            });
        }
    }

    /// Whether there are no connections.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// When the next connection times out.
    pub(super) fn next(&self) -> u64 {
        let hasty = self.all.iter().filter(|visitor| !visitor.waits);
        hasty.map(|visitor| visitor.since + PATIENCE).min().unwrap_or(u64::MAX)
    }

    /// The descriptors to poll, each with whether there is something to write.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        self.all.iter().map(|visitor| (visitor.stream.as_fd(), !visitor.answer.is_empty()))
    }

    /// Whether there is room for another connection.
    pub(super) fn has_room(&self) -> bool {
        self.all.len() < MOST
    }

    /// Reads and writes without blocking. Returns the complete questions, and the numbers of closed connections.
    pub(super) fn serve(&mut self, now: u64) -> (Vec<Asked>, Vec<u64>) {
        let mut asked = Vec::new();
        for visitor in &mut self.all {
            if let Some(ask) = visitor.listen() {
                asked.push(Asked { number: visitor.number, ask, sent: visitor.sent.take() });
            }
            visitor.speak();
            visitor.gone |= !visitor.waits && now >= visitor.since + PATIENCE;
        }
        let gone = self.all.iter().filter(|visitor| visitor.gone).map(|visitor| visitor.number).collect();
        self.all.retain(|visitor| !visitor.gone);
        (asked, gone)
    }

    /// Sends an answer.
    pub(super) fn answer(&mut self, number: u64, now: u64, reply: &Reply) {
        let Some(visitor) = self.all.iter_mut().find(|visitor| visitor.number == number) else { return };
        visitor.answer = serde_json::to_vec(reply).unwrap_or_default();
        visitor.answer.push(b'\n');
        visitor.waits = false;
        visitor.since = now;
        visitor.speak();
        self.all.retain(|visitor| !visitor.gone);
    }
}

impl Visitor {
    /// Reads from the connection. Returns the question once it is complete.
    fn listen(&mut self) -> Option<Result<Ask, String>> {
        let mut piece = [0; 4096];
        loop {
            match self.receive(&mut piece) {
                Ok(0) => {
                    self.gone = true;
                    return None;
                }
                // Each connection may ask one question.
                Ok(_) if self.waits || !self.answer.is_empty() => {}
                Ok(length) => {
                    self.question.extend_from_slice(piece.get(..length).unwrap_or_default());
                    if self.question.len() > LONGEST_LINE {
                        self.gone = true;
                        return None;
                    }
                    if self.question.starts_with(GO) {
                        self.answer = TO_GO.to_vec();
                        return None;
                    }
                    if self.question.last() == Some(&b'\n') {
                        self.waits = true;
                        let question = std::mem::take(&mut self.question);
                        return Some(serde_json::from_slice(&question).map_err(|err| err.to_string()));
                    }
                }
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => {
                    self.gone |= err.kind() != io::ErrorKind::WouldBlock;
                    return None;
                }
            }
        }
    }

    /// Reads from the socket, and takes a descriptor that arrives with the bytes (unix(7), SCM_RIGHTS).
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

    fn speak(&mut self) {
        while !self.answer.is_empty() && !self.gone {
            match self.stream.write(&self.answer) {
                Ok(length) => drop(self.answer.drain(..length)),
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.gone = true,
            }
            // The answer is complete.
            self.gone |= self.answer.is_empty();
        }
    }
}
