//! The socket: datagrams out, replies in, in step.

use std::io;
use std::time::Duration;

use netlink_sys::protocols::NETLINK_NETFILTER;
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

use super::Traffic;
use super::attr::{self, Message, NLMSG_HEADER};
use crate::{Error, Result};

/// The kernel answers before send(2) returns; this is for the case that it doesn't.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A dump comes in datagrams of up to 32 KiB (`netlink_dump` in the kernel).
const BUFFER: usize = 64 * 1024;

/// What fits into the send buffer of a system that nobody has tuned (208 KiB), with plenty of
/// room.
const USUAL_BATCH: usize = 64 * 1024;
/// No batch of a plugin comes near this; it is the kernel's memory.
const LARGEST_BATCH: usize = 1 << 20;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLMSGERR_ATTR_MSG: u16 = 1;

/// Why a listing has to be begun again.
pub(super) const INTERRUPTED: &str = "it changed while it was listed";

/// What a message of a reply means for the request.
#[derive(Debug)]
pub(crate) enum Answer<'a> {
    /// An object.
    Object(Message<'a>),
    /// `NLMSG_ERROR` with 0, or the end of a dump.
    Done,
    /// `NLMSG_ERROR` or a dump that ended with one.
    Refused(Errno, String),
    /// Something changed since the dump began; its end is still to come.
    Interrupted,
}

#[derive(Debug)]
pub(crate) struct Socket {
    inner: netlink_sys::Socket,
    buffer: Vec<u8>,
    pub(crate) traffic: Traffic,
}

impl Socket {
    pub(crate) fn open() -> Result<Self> {
        let failed = |err: &io::Error| Error::new("open an nf_tables socket", errno(err));
        let mut inner = netlink_sys::Socket::new(NETLINK_NETFILTER).map_err(|err| failed(&err))?;
        inner.bind_auto().map_err(|err| failed(&err))?;
        inner.set_ext_ack(true).map_err(|err| failed(&err))?;
        // Errors without a copy of the request: a batch may be long.
        inner.set_cap_ack(true).map_err(|err| failed(&err))?;
        let limit = TimeVal::milliseconds(i64::try_from(TIMEOUT.as_millis()).unwrap_or(i64::MAX));
        setsockopt(&inner, sockopt::ReceiveTimeout, &limit)
            .map_err(|err| Error::new("open an nf_tables socket", err))?;
        Ok(Socket { inner, buffer: Vec::with_capacity(BUFFER), traffic: Traffic::default() })
    }

    pub(crate) fn send(&mut self, bytes: &[u8], what: &str) -> Result<()> {
        if bytes.len() > USUAL_BATCH {
            self.make_room(bytes.len());
        }
        loop {
            match self.inner.send(bytes, 0) {
                Ok(_) => break,
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => {
                    let reason = match errno(&err) {
                        Errno::EMSGSIZE | Errno::ENOBUFS => {
                            format!("{} bytes don't fit into the socket's buffer", bytes.len())
                        }
                        _ => String::new(),
                    };
                    return Err(Error::new(what, errno(&err)).reason(reason));
                }
            }
        }
        self.traffic.requests += 1;
        self.traffic.bytes_out += bytes.len();
        Ok(())
    }

    /// Lets a datagram of this length be sent. The kernel doubles the number, for its own needs.
    fn make_room(&self, length: usize) {
        let wanted = length.min(LARGEST_BATCH);
        // Beyond the system's limit only with CAP_NET_ADMIN in the first user namespace; send(2)
        // tells whether it was enough.
        if setsockopt(&self.inner, sockopt::SndBufForce, &wanted).is_err() {
            let _ = setsockopt(&self.inner, sockopt::SndBuf, &wanted);
        }
    }

    /// Receives one datagram and hands its messages over, until `each` says that it has seen
    /// enough. Without `wait` only what is there already.
    pub(crate) fn receive(
        &mut self,
        what: &str,
        wait: bool,
        mut each: impl FnMut(u32, Answer<'_>) -> bool,
    ) -> Result<bool> {
        self.buffer.clear();
        let flags = libc::MSG_TRUNC | if wait { 0 } else { libc::MSG_DONTWAIT };
        let mut retries = RECEIVE_RETRIES;
        let length = loop {
            match self.inner.recv(&mut self.buffer, flags) {
                Ok(length) => break length,
                // The change has been made by now, or refused: its answer is in the queue.
                // Only a full queue loses answers (ENOBUFS).
                Err(err) if retries > 0 && !matches!(errno(&err), Errno::EAGAIN | Errno::ENOBUFS) => {
                    retries -= 1;
                }
                Err(err) => {
                    return Err(match errno(&err) {
                        Errno::EAGAIN => Error::new(what, Errno::ETIMEDOUT)
                            .reason(format!("no answer within {} s", TIMEOUT.as_secs())),
                        other => Error::new(what, other),
                    });
                }
            }
        };
        if length > self.buffer.len() {
            return Err(Error::new(what, Errno::EMSGSIZE).reason(format!("an answer of {length} bytes")));
        }
        self.traffic.bytes_in += length;
        let mut finished = false;
        for message in attr::messages(&self.buffer) {
            if !finished {
                finished = each(message.sequence, answer(message));
            }
        }
        Ok(finished)
    }
}

/// How often a receive that failed (a signal, memory) is tried again.
const RECEIVE_RETRIES: u32 = 3;

fn errno(err: &io::Error) -> Errno {
    Errno::from_raw(err.raw_os_error().unwrap_or(libc::EIO))
}

pub(super) fn answer(message: Message<'_>) -> Answer<'_> {
    match message.kind {
        NLMSG_ERROR => match attr::i32_ne(message.payload, 0) {
            Some(0) => Answer::Done,
            Some(code) => Answer::Refused(Errno::from_raw(code.wrapping_neg()), reason(&message)),
            None => Answer::Refused(Errno::EPROTO, "an error message without a code".to_owned()),
        },
        // The end of a dump may be what carries the flag, so each needs its own answer.
        NLMSG_DONE if message.flags & NLM_F_DUMP_INTR != 0 => {
            Answer::Refused(Errno::EAGAIN, INTERRUPTED.to_owned())
        }
        _ if message.flags & NLM_F_DUMP_INTR != 0 => Answer::Interrupted,
        NLMSG_DONE => match attr::i32_ne(message.payload, 0) {
            Some(code) if code < 0 => Answer::Refused(Errno::from_raw(code.wrapping_neg()), String::new()),
            _ => Answer::Done,
        },
        _ => Answer::Object(message),
    }
}

/// The kernel's own words (extended acknowledgement), which stand behind the header of the
/// request, or behind all of it.
fn reason(message: &Message<'_>) -> String {
    if message.flags & NLM_F_ACK_TLVS == 0 {
        return String::new();
    }
    let echoed = if message.flags & NLM_F_CAPPED != 0 {
        NLMSG_HEADER
    } else {
        let length = attr::i32_ne(message.payload, 4).and_then(|length| usize::try_from(length).ok());
        length.unwrap_or(NLMSG_HEADER).next_multiple_of(4)
    };
    let attrs = message.payload.get(4 + echoed..).unwrap_or_default();
    attr::find_text(attrs, NLMSGERR_ATTR_MSG).unwrap_or_default()
}
