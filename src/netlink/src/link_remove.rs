//! Links are removed: one, without waiting for longer than it is there; many at once.

use std::time::{Duration, Instant};

use super::linger::{self, Event, Waiter};
use super::link::{self, Link};
use super::socket::{Protocol, timed_out};
use super::uapi::netlink::NLMSG_ERROR;
use super::uapi::rtnetlink::{RTM_DELLINK, RTNLGRP_LINK};
use super::wire::{self, Ack, Message, Messages, u8_at, u32_ne};
use super::{Netlink, Request, Result};

/// How long the kernel may take to remove a link. It waits for others that change the network's
/// configuration.
const PATIENCE: Duration = Duration::from_secs(10);

/// AF_UNSPEC: a bridge announces that it has lost a port with a family of its own, and the port is there still.
const LINKS: u8 = 0;

/// What came by the socket.
enum Said {
    Gone,
    Answer(Result<()>),
    Nothing,
}

impl Netlink {
    /// Removes a link. When this returns it is gone, with its name and addresses, and for a veth its other end;
    /// the kernel may be freeing it still, for which a child waits (see [`linger`]).
    ///
    /// # Errors
    /// The kernel's; ENODEV if there is none.
    pub fn remove_link(&mut self, index: u32, name: &str) -> Result<()> {
        let request = link::del(index, name);
        if !linger::is_allowed() || self.member(RTNLGRP_LINK, true).is_err() {
            return self.execute(request);
        }
        let outcome = self.remove_by_a_child(index, &request);
        // Discards the others that have come, too.
        let left = self.member(RTNLGRP_LINK, false);
        match outcome {
            Some(outcome) => outcome.and(left),
            // Unknown here: the kernel is asked.
            None => left.and_then(|()| self.execute(request)),
        }
    }

    /// `None` if there can be no child, or it has ended early, or its word was lost.
    fn remove_by_a_child(&mut self, index: u32, request: &Request) -> Option<Result<()>> {
        let mut bytes = request.bytes.clone().ok()?;
        let seq = self.socket.take_numbers(1);
        wire::number(&mut bytes, seq);
        let child = linger::start(Some((self.socket.as_fd(), &bytes)))?;
        self.await_removal(index, &request.what, seq, &child)
    }

    fn await_removal(&mut self, index: u32, what: &str, seq: u32, child: &Waiter) -> Option<Result<()>> {
        let end = Instant::now() + PATIENCE;
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
                match heard(&message.ok()?, index, what, port, seq) {
                    Said::Gone => return Some(Ok(())),
                    Said::Answer(answer) => return Some(answer),
                    Said::Nothing => {}
                }
            }
        }
    }

    /// Removes links, all that are there still, with one set of the kernel's grace periods: they become a group
    /// of their own, and the group is removed.
    ///
    /// # Errors
    /// The kernel's. Then some may be there still.
    pub fn remove_links(&mut self, links: &[Link]) -> Result<()> {
        match links {
            [] => Ok(()),
            [link] => present(self.remove_link(link.index, &link.name)),
            _ => self.remove_group(links),
        }
    }

    fn remove_group(&mut self, links: &[Link]) -> Result<()> {
        let group = self.free_group()?;
        for link in links {
            present(self.execute(link::set_group(link.index, &link.name, group)))?;
        }
        present(self.execute(link::del_group(group, links.len())))
    }

    /// A number that no link has for its group.
    fn free_group(&mut self) -> Result<u32> {
        let taken = self.groups()?;
        loop {
            let [a, b, c, d, ..] = link::Mac::random().0;
            // Below, there are those that people give.
            let group = u32::from_ne_bytes([a, b, c, d]) | 1 << 31;
            if !taken.contains(&group) {
                return Ok(group);
            }
        }
    }
}

/// What is gone is as wanted.
fn present(outcome: Result<()>) -> Result<()> {
    match outcome {
        Err(err) if err.is_missing() => Ok(()),
        outcome => outcome,
    }
}

fn heard(message: &Message<'_>, index: u32, what: &str, port: u32, seq: u32) -> Said {
    if message.kind == RTM_DELLINK
        && u8_at(message.body, 0) == Some(LINKS)
        && u32_ne(message.body, 4) == Some(index)
    {
        return Said::Gone;
    }
    if message.kind == NLMSG_ERROR && message.port == port && message.seq == seq {
        return match Ack::read(message) {
            Ok(ack) => Said::Answer(Protocol::Route.refusal(what, ack).map_or(Ok(()), Err)),
            Err(_) => Said::Nothing,
        };
    }
    Said::Nothing
}
