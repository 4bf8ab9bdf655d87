//! Removes links, and returns as soon as they are gone; the kernel may be freeing them still.

use std::time::{Duration, Instant};

use crate::deferred_close::{self, Event, Waiter};
use crate::link;
use crate::socket::{Protocol, timed_out};
use crate::uapi::netlink::NLMSG_ERROR;
use crate::uapi::rtnetlink::{RTM_DELLINK, RTNLGRP_LINK};
use crate::wire::{self, Ack, Message, Messages, u8_at, u32_ne};
use crate::{Netlink, Request, Result};

/// The longest time for a removal. The kernel first waits for others that change the network's configuration.
const PATIENCE: Duration = Duration::from_secs(10);
/// The further time for each link. The kernel closes all before it announces the first.
const EACH: Duration = Duration::from_millis(100);

/// The family of announcements about links, AF_UNSPEC. A bridge announces that it has lost a port with a family of its
/// own, and the port is there still.
const LINKS: u8 = 0;

/// What a message says about a removal.
enum Said {
    /// The link with this index is gone.
    Gone(u32),
    /// The kernel has carried out or refused the request.
    Answer(Result<()>),
    Nothing,
}

impl Netlink {
    /// Removes a link with its addresses, and the other end of a veth. The name is free when this returns. The kernel
    /// may still be freeing the link, and a child waits for that (see [`deferred_close`]). `name` is for messages.
    ///
    /// # Errors
    /// Fails if the kernel refuses the request, and with ENODEV without such a link.
    pub fn remove_link(&mut self, index: u32, name: &str) -> Result<()> {
        self.carry_out_removal(link::del(index, name), &[index])
    }

    /// Carries out a request that removes `links`, which are sorted, and returns when these are gone.
    ///
    /// Sends the request here if no child is possible or an announcement was lost. For several links, also when the
    /// first is announced: the kernel holds its lock until all are removed, so the second request finds none. That
    /// saves reading several announcements for each.
    pub(crate) fn carry_out_removal(&mut self, request: Request, links: &[u32]) -> Result<()> {
        if !deferred_close::is_allowed() || self.socket.join(RTNLGRP_LINK).is_err() {
            return self.execute(request);
        }
        if links.len() > 1 {
            // The kernel closes all before it announces one, and tells of that, too.
            self.socket.expect_many();
        }
        let outcome = self.remove_by_a_child(links, &request);
        // This discards the other announcements that have come, too.
        let left = self.socket.leave(RTNLGRP_LINK);
        match outcome {
            Some(outcome) => outcome.and(left),
            // The outcome is unknown, so the kernel is asked.
            None => left.and_then(|()| self.execute(request)),
        }
    }

    /// `None` if there can be no child, it has ended early, its word was lost, or one of several links is gone.
    fn remove_by_a_child(&mut self, links: &[u32], request: &Request) -> Option<Result<()>> {
        let mut bytes = request.bytes.clone().ok()?;
        let seq = self.socket.take_numbers(1);
        wire::number(&mut bytes, seq);
        let child = deferred_close::start(Some((self.socket.as_fd(), &bytes)))?;
        self.await_removal(links, &request.what, seq, &child)
    }

    /// Waits for the announcement or the answer. `None` as in [`remove_by_a_child`](Self::remove_by_a_child).
    fn await_removal(&mut self, links: &[u32], what: &str, seq: u32, child: &Waiter) -> Option<Result<()>> {
        let count = u32::try_from(links.len()).unwrap_or(u32::MAX);
        let end = Instant::now() + PATIENCE + EACH.saturating_mul(count);
        loop {
            match child.wait(self.socket.as_fd(), end).ok()? {
                Event::Readable => {}
                Event::Ended => return None,
                Event::Late => return Some(Err(timed_out(what))),
            }
            let port = self.socket.port;
            // Some may have been lost (ENOBUFS).
            let datagram = self.socket.datagram(what, 0).ok()?;
            for message in Messages::new(datagram) {
                match heard(&message.ok()?, what, port, seq) {
                    Said::Gone(index) if links.binary_search(&index).is_ok() => {
                        return (links.len() == 1).then_some(Ok(()));
                    }
                    Said::Gone(_) => {}
                    Said::Answer(answer) => return Some(answer),
                    Said::Nothing => {}
                }
            }
        }
    }
}

/// Reads what a message says about the removal whose request has the number `seq`.
fn heard(message: &Message<'_>, what: &str, port: u32, seq: u32) -> Said {
    if message.kind == RTM_DELLINK
        && u8_at(message.body, 0) == Some(LINKS)
        && let Some(index) = u32_ne(message.body, 4)
    {
        return Said::Gone(index);
    }
    if message.kind == NLMSG_ERROR && message.port == port && message.seq == seq {
        return match Ack::read(message) {
            Ok(ack) => Said::Answer(Protocol::Route.refusal(what, ack).map_or(Ok(()), Err)),
            Err(_) => Said::Nothing,
        };
    }
    Said::Nothing
}
