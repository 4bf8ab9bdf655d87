//! Sends requests, and reads answers, lists and acknowledgements.

use nix::errno::Errno;
use nix::libc;

use super::Result;
use super::error::Error;
use super::socket::{Next, Protocol, Socket, broken};
use super::uapi::netlink::{NLM_F_ACK, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, NLMSGHDR};
use super::wire::{self, Ack, Malformed, Message, Parsed};

/// The result of a list.
#[derive(Debug)]
pub(crate) enum Listed<T> {
    Whole(Vec<T>),
    /// The list changed meanwhile (NLM_F_DUMP_INTR), so objects may be missing or doubled.
    Changed,
    /// The list has more objects than the caller reads. The kernel has not written its end.
    TooLong,
}

impl Socket {
    /// Hands every answer to `each` until the acknowledgement, or the first answer if the message asks for none.
    pub(crate) fn ask(
        &mut self,
        what: &str,
        mut message: Vec<u8>,
        each: &mut dyn FnMut(&Message<'_>) -> Parsed<()>,
    ) -> Result<()> {
        let acknowledged = wire::flags(&message, 0) & NLM_F_ACK != 0;
        let protocol = self.protocol;
        let seq = self.take_numbers(1);
        wire::number(&mut message, seq);
        self.send(what, &message)?;
        self.receive(what, &mut |message| {
            if message.seq != seq {
                return Ok(Next::More);
            }
            if is_end(message) {
                return protocol.check(what, message).map(|()| Next::Done);
            }
            each(message).map_err(|Malformed(why)| broken(what, why))?;
            Ok(if acknowledged { Next::More } else { Next::Done })
        })
    }

    /// Lists objects (NLM_F_DUMP). Returns `None` if the list changed meanwhile (NLM_F_DUMP_INTR), because entries may
    /// then be missing or doubled.
    pub(crate) fn list<T, I: IntoIterator<Item = T>>(
        &mut self,
        what: &str,
        message: &[u8],
        read: impl FnMut(&Message<'_>) -> Parsed<I>,
    ) -> Result<Option<Vec<T>>> {
        match self.list_up_to(usize::MAX, what, message, read)? {
            Listed::Whole(found) => Ok(Some(found)),
            Listed::Changed | Listed::TooLong => Ok(None),
        }
    }

    /// Does what [`list`](Self::list) does, and stops reading behind `longest` objects.
    pub(crate) fn list_up_to<T, I: IntoIterator<Item = T>>(
        &mut self,
        longest: usize,
        what: &str,
        message: &[u8],
        mut read: impl FnMut(&Message<'_>) -> Parsed<I>,
    ) -> Result<Listed<T>> {
        let (mut found, mut objects) = (Vec::new(), 0_usize);
        let whole = self.each_listed(what, message, &mut |message| {
            objects += 1;
            if objects > longest {
                return Ok(Next::Done);
            }
            found.extend(read(message)?);
            Ok(Next::More)
        })?;
        Ok(match whole {
            _ if objects > longest => Listed::TooLong,
            true => Listed::Whole(found),
            false => Listed::Changed,
        })
    }

    /// Hands every object of a list to `each`. Returns false if the list changed meanwhile. If `each` ends the list
    /// early, a dump stays under way, and the socket takes no other.
    pub(crate) fn each_listed(
        &mut self,
        what: &str,
        message: &[u8],
        each: &mut dyn FnMut(&Message<'_>) -> Parsed<Next>,
    ) -> Result<bool> {
        let protocol = self.protocol;
        let mut message = message.to_vec();
        let seq = self.take_numbers(1);
        wire::number(&mut message, seq);
        self.send(what, &message)?;
        let mut interrupted = false;
        // After an error the rest is read, too, because a socket can have only one dump.
        let mut outcome = Ok(());
        self.receive(what, &mut |message| {
            if message.seq != seq {
                return Ok(Next::More);
            }
            interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
            if is_end(message) {
                outcome = std::mem::replace(&mut outcome, Ok(())).and(protocol.check(what, message));
                return Ok(Next::Done);
            }
            match each(message) {
                Ok(next) => return Ok(next),
                Err(Malformed(why)) => outcome = Err(broken(what, why)),
            }
            Ok(Next::More)
        })?;
        // An error may be due to the change, too.
        if interrupted {
            return Ok(false);
        }
        outcome.map(|()| true)
    }

    /// Hands the acknowledgements of messages that have been sent, numbered from `first`, to `each` with their places.
    pub(crate) fn acknowledgements(
        &mut self,
        what: &str,
        first: u32,
        each: &mut dyn FnMut(u32, Ack) -> Next,
    ) -> Result<()> {
        self.receive(what, &mut |message| {
            if message.kind != NLMSG_ERROR {
                return Ok(Next::More);
            }
            let ack = Ack::read(message).map_err(|Malformed(why)| broken(what, why))?;
            Ok(each(message.seq.wrapping_sub(first), ack))
        })
    }
}

/// Whether a message ends the answer.
fn is_end(message: &Message<'_>) -> bool {
    message.kind == NLMSG_ERROR || message.kind == NLMSG_DONE
}

impl Protocol {
    /// The error that an acknowledgement carries.
    fn check(self, what: &str, message: &Message<'_>) -> Result<()> {
        let ack = Ack::read(message).map_err(|Malformed(why)| broken(what, why))?;
        self.refusal(what, ack).map_or(Ok(()), Err)
    }

    /// Returns the error of an acknowledgement, or `None` for success.
    pub(crate) fn refusal(self, what: &str, ack: Ack) -> Option<Error> {
        let refused = Error::new(what, ack.errno()?).pointed(ack.offset);
        Some(match (self, ack.offset) {
            (Protocol::Route, Some(offset)) if ack.text.is_empty() => {
                refused.reason(format!("the kernel points at byte {offset} of the request"))
            }
            _ => refused.reason(ack.text),
        })
    }
}

/// Explains EOPNOTSUPP for a change of IPv6, by which the kernel says that it lacks the family. Other errors stay as
/// they are.
pub(crate) fn lacking(err: Error, message: &[u8]) -> Error {
    let family = message.get(NLMSGHDR).copied().map(i32::from);
    if err.is(Errno::EOPNOTSUPP) && err.is_bare() && family == Some(libc::AF_INET6) {
        return err.explained("the kernel has no IPv6: built without it, or started with ipv6.disable=1");
    }
    err
}

#[cfg(test)]
mod tests;
