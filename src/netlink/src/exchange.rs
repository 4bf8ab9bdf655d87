//! Requests out, acknowledgements and dumps in.

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_ECHO, NLM_F_REQUEST};
use netlink_packet_route::RouteNetlinkMessage;
use nix::errno::Errno;

use super::request::encode;
use super::socket::{Next, broken};
use super::wire::{self, Malformed, Message};
use super::{Error, Netlink, Request, Result};

/// How often a dump is repeated that changed underneath.
const DUMP_ATTEMPTS: usize = 20;

/// Requests in one send; their answers must fit into the socket's receive buffer.
const BATCH: usize = 64;

impl Netlink {
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
}

/// The error that an acknowledgement carries.
fn check(what: &str, message: &Message<'_>) -> Result<()> {
    let verdict = wire::verdict(message).map_err(|Malformed(why)| broken(what, why))?;
    match verdict.errno {
        0 => Ok(()),
        errno => Err(Error::new(what, Errno::from_raw(errno)).reason(verdict.text)),
    }
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
