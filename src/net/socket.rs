//! The netlink socket: requests out, acknowledgements and dumps in.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_ECHO, NLM_F_REQUEST};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt::ReceiveTimeout};
use nix::sys::time::{TimeVal, TimeValLike};

use super::request::encode;
use super::wire::{self, Malformed, Message, Messages};
use super::{Error, NetNs, Request, Result};

/// How long the kernel may take for one answer. It answers while it reads the request, so
/// this is for a machine in trouble.
const PATIENCE: Duration = Duration::from_secs(10);

/// The kernel's datagrams have at most 32 KiB (netlink_dump() in af_netlink.c).
const BUFFER: usize = 32 * 1024;

/// How often a dump is repeated that changed underneath.
const DUMP_ATTEMPTS: usize = 5;

/// Requests in one send; their answers must fit into the socket's receive buffer.
const BATCH: usize = 64;

/// A NETLINK_ROUTE socket in one namespace.
///
/// The kernel carries requests out while they are sent, one after the other, so nothing
/// here is asynchronous: what comes back is waiting to be read.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    /// Our address, which the kernel puts into answers.
    port: u32,
    seq: u32,
    buffer: Vec<u8>,
}

impl Netlink {
    /// A socket in the current namespace.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open() -> Result<Self> {
        let failed = |err: std::io::Error| Error::io("open a netlink socket", &err);
        let mut socket = Socket::new(NETLINK_ROUTE).map_err(failed)?;
        let address = socket.bind_auto().map_err(failed)?;
        // Texts in errors, without a copy of the request; the first is since Linux 4.12.
        socket.set_ext_ack(true).map_err(failed)?;
        socket.set_cap_ack(true).map_err(failed)?;
        // Filters in dumps, since Linux 4.20. Without it, dumps bring all there is, and the
        // readers filter.
        let _ = socket.set_netlink_get_strict_chk(true);
        let netlink = Netlink { port: address.port_number(), socket, seq: 0, buffer: vec![0; BUFFER] };
        netlink.patience(PATIENCE)?;
        Ok(netlink)
    }

    /// A socket in `ns`, entered only for this moment.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open_in(ns: &NetNs) -> Result<Self> {
        ns.enter(Netlink::open)?
    }

    /// Makes one change.
    ///
    /// # Errors
    /// The kernel's, with the request's words and the kernel's.
    pub fn execute(&mut self, request: Request) -> Result<()> {
        self.execute_all(vec![request])
    }

    /// Makes several changes in one message to the kernel; they are carried out in order.
    /// The first error is returned after all answers are in; requests behind the one that
    /// failed have been tried all the same.
    ///
    /// # Errors
    /// The first refusal. If a request can't be sent at all (a name that is too long), none
    /// is.
    pub fn execute_all(&mut self, requests: Vec<Request>) -> Result<()> {
        let mut whats = Vec::with_capacity(requests.len());
        let mut messages = Vec::with_capacity(requests.len());
        for request in requests {
            whats.push(request.what);
            messages.push(request.bytes?);
        }
        let mut first = Ok(());
        for (whats, messages) in whats.chunks(BATCH).zip(messages.chunks_mut(BATCH)) {
            let outcome = self.send_batch(whats, messages);
            first = first.and(outcome);
        }
        first
    }

    /// Nobody looks at echoes, and only the last one asks for an acknowledgement: the kernel reports errors of the others
    /// all the same, and before it, which saves a system call for each.
    fn send_batch(&mut self, whats: &[String], messages: &mut [Vec<u8>]) -> Result<()> {
        let start = self.seq;
        let last_index = messages.len().saturating_sub(1);
        let mut datagram = Vec::new();
        for (index, message) in messages.iter_mut().enumerate() {
            self.seq = self.seq.wrapping_add(1);
            set_seq(message, self.seq);
            let unwanted = if index < last_index { NLM_F_ACK | NLM_F_ECHO } else { NLM_F_ECHO };
            clear_flags(message, unwanted);
            datagram.append(message);
        }
        let Some(last) = whats.last() else {
            return Ok(());
        };
        let last_seq = self.seq;
        self.send(last, &datagram)?;
        let mut first = None;
        self.receive(last, |message| {
            let nth = usize::try_from(message.seq.wrapping_sub(start)).unwrap_or(usize::MAX);
            let Some(what) = nth.checked_sub(1).and_then(|index| whats.get(index)) else {
                return Ok(Next::More);
            };
            if message.kind == wire::ERROR {
                let refused = check(what, message).err();
                first = first.take().or(refused);
                if message.seq == last_seq {
                    return Ok(Next::Done);
                }
            }
            Ok(Next::More)
        })?;
        first.map_or(Ok(()), Err)
    }

    /// Sends one message and hands every answer to `each` until the acknowledgement.
    pub(super) fn ask(
        &mut self,
        what: &str,
        mut message: Vec<u8>,
        mut each: impl FnMut(&Message<'_>) -> std::result::Result<(), Malformed>,
    ) -> Result<()> {
        let acknowledged = wire::u16_at(&message, 6).unwrap_or(0) & NLM_F_ACK != 0;
        self.seq = self.seq.wrapping_add(1);
        let seq = self.seq;
        set_seq(&mut message, seq);
        self.send(what, &message)?;
        self.receive(what, |message| {
            if message.seq != seq {
                return Ok(Next::More);
            }
            if message.kind == wire::ERROR || message.kind == wire::DONE {
                return check(what, message).map(|()| Next::Done);
            }
            each(message).map_err(|Malformed(why)| broken(what, why))?;
            Ok(if acknowledged { Next::More } else { Next::Done })
        })
    }

    /// Lists. A list that changed while the kernel wrote it (NLM_F_DUMP_INTR) may lack
    /// something or have it twice: it is asked for again.
    pub(super) fn dump<T>(
        &mut self,
        what: &str,
        message: RouteNetlinkMessage,
        read: impl FnMut(&Message<'_>) -> std::result::Result<Option<T>, Malformed>,
    ) -> Result<Vec<T>> {
        self.dump_raw(what, &encode(message, NLM_F_REQUEST | NLM_F_DUMP), read)
    }

    /// [`dump`](Self::dump), for an encoded message.
    pub(super) fn dump_raw<T>(
        &mut self,
        what: &str,
        message: &[u8],
        mut read: impl FnMut(&Message<'_>) -> std::result::Result<Option<T>, Malformed>,
    ) -> Result<Vec<T>> {
        for _ in 0..DUMP_ATTEMPTS {
            let mut found = Vec::new();
            let mut message = message.to_vec();
            self.seq = self.seq.wrapping_add(1);
            let seq = self.seq;
            set_seq(&mut message, seq);
            self.send(what, &message)?;
            let mut interrupted = false;
            // The rest is read after an error, too: the kernel has one dump a socket.
            let mut outcome = Ok(());
            self.receive(what, |message| {
                if message.seq != seq {
                    return Ok(Next::More);
                }
                interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
                if message.kind == wire::ERROR || message.kind == wire::DONE {
                    return check(what, message).map(|()| Next::Done);
                }
                match read(message) {
                    Ok(read) => found.extend(read),
                    Err(Malformed(why)) => outcome = Err(broken(what, why)),
                }
                Ok(Next::More)
            })?;
            outcome?;
            if !interrupted {
                return Ok(found);
            }
        }
        Err(Error::new(what, Errno::EINTR)
            .reason(format!("the list changed while it was read, {DUMP_ATTEMPTS} times in a row")))
    }

    /// Joins or leaves a multicast group (`enum rtnetlink_groups`). Notifications that are
    /// still waiting after leaving are thrown away, and so is the word that some were lost.
    pub(super) fn member(&mut self, group: u32, join: bool) -> Result<()> {
        let changed =
            if join { self.socket.add_membership(group) } else { self.socket.drop_membership(group) };
        changed.map_err(|err| Error::io("subscribe to notifications", &err))?;
        if !join {
            let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
            loop {
                let mut room = self.buffer.as_mut_slice();
                match self.socket.recv(&mut room, flags) {
                    Ok(_) => {}
                    Err(err) if err.raw_os_error() == Some(libc::ENOBUFS) => {}
                    Err(_) => break,
                }
            }
        }
        Ok(())
    }

    /// How long a single receive may take.
    pub(super) fn patience(&self, time: Duration) -> Result<()> {
        // 0 would mean for ever.
        let micros = i64::try_from(time.as_micros()).unwrap_or(i64::MAX).max(1);
        let time = TimeVal::microseconds(micros.min(PATIENCE.as_micros() as i64));
        // The descriptor is not kept by setsockopt.
        setsockopt(&self.socket.as_fd(), ReceiveTimeout, &time)
            .map_err(|errno| Error::new("set the time limit of a netlink socket", errno))
    }

    /// Sets the usual time limit again.
    pub(super) fn usual_patience(&self) -> Result<()> {
        self.patience(PATIENCE)
    }

    /// So that few notifications are too many.
    #[cfg(test)]
    pub(super) fn shrink_receive_buffer(&self) {
        self.socket.set_rx_buf_sz(1).unwrap();
    }

    fn send(&self, what: &str, datagram: &[u8]) -> Result<()> {
        let kernel = SocketAddr::new(0, 0);
        match self.socket.send_to(datagram, &kernel, 0) {
            Ok(_) => Ok(()),
            Err(err) => Err(Error::io(what, &err)),
        }
    }

    /// Receives until `each` is done. Messages that aren't answers to us (notifications, an
    /// answer that came after its request had been given up) are skipped.
    fn receive(&mut self, what: &str, mut each: impl FnMut(&Message<'_>) -> Result<Next>) -> Result<()> {
        let port = self.port;
        let end = Instant::now() + PATIENCE;
        let mut done = false;
        while !done {
            let datagram = self.datagram(what)?;
            for message in Messages::new(datagram) {
                let message = message.map_err(|Malformed(why)| broken(what, why))?;
                if message.kind == wire::OVERRUN {
                    return Err(Error::new(what, Errno::ENOBUFS).reason("answers were lost"));
                }
                if message.port == port && !done {
                    done = each(&message)? == Next::Done;
                }
            }
            if !done && Instant::now() > end {
                return Err(timed_out(what));
            }
        }
        Ok(())
    }

    /// One datagram from the kernel.
    pub(super) fn datagram(&mut self, what: &str) -> Result<&[u8]> {
        let length = loop {
            let mut room = self.buffer.as_mut_slice();
            // With MSG_TRUNC the length is the datagram's, even if it is cut off.
            match self.socket.recv_from(&mut room, libc::MSG_TRUNC) {
                // Anyone with CAP_NET_ADMIN can write to our address.
                Ok((_, sender)) if sender.port_number() != 0 => {}
                Ok((length, _)) => break length,
                Err(err) => {
                    return Err(match Error::io(what, &err) {
                        err if err.is(Errno::EAGAIN) => timed_out(what),
                        err => err,
                    });
                }
            }
        };
        self.buffer.get(..length).ok_or_else(|| {
            Error::new(what, Errno::EMSGSIZE).reason(format!("an answer of {length} bytes has been cut off"))
        })
    }
}

/// Whether a receiver has seen enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    More,
    Done,
}

/// The error that an acknowledgement carries.
fn check(what: &str, message: &Message<'_>) -> Result<()> {
    let verdict = wire::verdict(message).map_err(|Malformed(why)| broken(what, why))?;
    match verdict.errno {
        0 => Ok(()),
        errno => Err(Error::new(what, Errno::from_raw(errno)).reason(verdict.text)),
    }
}

pub(super) fn broken(what: &str, why: &str) -> Error {
    Error::new(what, Errno::EBADMSG).reason(format!("the kernel's answer makes no sense: {why}"))
}

pub(super) fn timed_out(what: &str) -> Error {
    Error::new(what, Errno::ETIMEDOUT).reason("no answer from the kernel in time")
}

fn set_seq(message: &mut [u8], seq: u32) {
    if let Some(field) = message.get_mut(8..12) {
        field.copy_from_slice(&seq.to_ne_bytes());
    }
}

fn clear_flags(message: &mut [u8], unwanted: u16) {
    let flags = wire::u16_at(message, 6).unwrap_or(0) & !unwanted;
    if let Some(field) = message.get_mut(6..8) {
        field.copy_from_slice(&flags.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests;
