//! DHCPv6 on an interface: the client, a UDP socket, and an ICMPv6 socket while an address is probed.

use std::io;
use std::net::Ipv6Addr;
use std::os::fd::{AsFd, BorrowedFd};

use cnimble_cni::hash;

use super::flags::Flags;
use super::place::{Event, LARGEST_PACKET, Place, Speaker, drain, told};
use crate::held::Held;
use crate::talk::Whose;
use crate::v6::client::{Action, Client, Identity};
use crate::v6::lease::Lease;
use crate::v6::message::{Answer, Question};
use crate::v6::socket::{self, Socket};

/// The number of the single IA of each DUID.
const IAID: u32 = 1;
/// The type of a DUID that is a UUID (RFC 6355).
const DUID_UUID: [u8; 2] = [0, 4];

/// A DHCPv6 client with its sockets.
pub(super) struct Six {
    client: Client,
    dhcp: Option<Socket>,
    neighbours: Option<Socket>,
}

/// A message that a socket has received.
enum Heard {
    Answer(Answer),
    Holder(Ipv6Addr),
}

impl Six {
    /// Returns a client without a lease, or with a lease from a file.
    pub(super) fn new(flags: &Flags, whose: &Whose, now: u64, lease: Option<Lease>) -> Six {
        let pause = flags.timeout.min(flags.resend_max);
        let identity = Identity { duid: duid(whose), iaid: IAID };
        let client = match lease {
            Some(lease) => Client::with(identity, pause, now, lease),
            None => Client::new(identity, pause, now),
        };
        Six { client, dhcp: None, neighbours: None }
    }

    /// Opens the sockets that the client's state needs, and closes the others.
    fn listen(&mut self, place: &Place) -> io::Result<()> {
        if !self.client.listens() {
            self.dhcp = None;
        }
        if self.client.probed().is_none() {
            self.neighbours = None;
        }
        if self.client.listens() && self.dhcp.is_none() {
            self.dhcp = Some(open(place, Socket::dhcp)?);
        }
        if self.client.probed().is_some() && self.neighbours.is_none() {
            self.neighbours = Some(open(place, Socket::neighbours)?);
        }
        Ok(())
    }

    fn send(&self, place: &Place, question: &Question) -> io::Result<()> {
        let message = question.encode();
        match &self.dhcp {
            Some(socket) => socket.send(&message),
            // A client that waits for no answer has no socket, but may send a Release.
            None => open(place, Socket::dhcp)?.send(&message),
        }
    }

    /// Reads the received messages.
    fn heard(&mut self) -> Vec<Heard> {
        let mut heard = Vec::new();
        let mut buffer = [0; LARGEST_PACKET];
        let Identity { duid, iaid } = self.client.identity();
        drain(&mut self.dhcp, |socket| {
            let Some((from, message)) = socket.receive(&mut buffer)? else { return Ok(false) };
            // Only servers and relays of the link can reach the client.
            let answer = Answer::parse(message, duid, *iaid).filter(|_| from.is_unicast_link_local());
            heard.extend(answer.map(Heard::Answer));
            Ok(true)
        });
        drain(&mut self.neighbours, |socket| {
            let Some((_, message)) = socket.receive(&mut buffer)? else { return Ok(false) };
            heard.extend(socket::advertised(message).map(Heard::Holder));
            Ok(true)
        });
        heard
    }

    fn act(&mut self, place: &Place, actions: Vec<Action>) -> Vec<Event> {
        let mut events = Vec::new();
        for action in actions {
            events.extend(match action {
                Action::Tell(line) => Some(Event::Tell(line)),
                Action::Bound(lease) => Some(Event::Bound(Held::Six(*lease))),
                Action::Lost(lease, why) => Some(Event::Lost(Held::Six(*lease), why)),
                Action::Send(question) => {
                    let sent = self.listen(place).and_then(|()| self.send(place, &question));
                    told(&format!("sending {}", question.kind.word()), sent)
                }
                Action::Probe(address) => {
                    let sent = self.listen(place).and_then(|()| match &self.neighbours {
                        Some(socket) => socket.solicit(address, place.mac),
                        None => Ok(()),
                    });
                    told(&format!("asking who has {address}"), sent)
                }
            });
        }
        events.extend(told("opening a socket", self.listen(place)));
        events
    }
}

impl Speaker for Six {
    fn next(&self) -> u64 {
        self.client.next()
    }

    fn lease(&self) -> Option<Held> {
        self.client.lease().cloned().map(Held::Six)
    }

    fn tried(&self) -> String {
        self.client.tally().words("Solicit")
    }

    fn sockets(&self) -> Vec<BorrowedFd<'_>> {
        self.dhcp.iter().chain(&self.neighbours).map(AsFd::as_fd).collect()
    }

    fn hear(&mut self, place: &Place, now: u64) -> Vec<Event> {
        let mut events = Vec::new();
        for heard in self.heard() {
            let actions = match heard {
                Heard::Answer(answer) => self.client.answer(now, &answer),
                Heard::Holder(address) => self.client.conflict(now, address),
            };
            events.extend(self.act(place, actions));
        }
        events
    }

    fn tick(&mut self, place: &Place, now: u64) -> Vec<Event> {
        let actions = self.client.tick(now);
        self.act(place, actions)
    }

    fn release(&mut self, place: &Place, now: u64) -> Option<(String, io::Result<()>)> {
        match self.client.release(now)? {
            Action::Send(question) => {
                let address = question.address.map_or_else(String::new, |address| address.to_string());
                Some((address, self.send(place, &question)))
            }
            _ => None,
        }
    }
}

/// Opens a socket on the interface's link-local address.
fn open(place: &Place, kind: fn(Ipv6Addr, u32) -> io::Result<Socket>) -> io::Result<Socket> {
    let (mut inside, _) = place.inside().map_err(|err| io::Error::other(err.to_string()))?;
    let own =
        socket::link_local(&mut inside, place.index).map_err(|err| io::Error::other(err.to_string()))?;
    let own = own.ok_or_else(|| io::Error::other("the interface has no link-local address"))?;
    place.open(|| kind(own, place.index))
}

/// Returns the same DUID for an attachment on every node and at any time, and another one for every other attachment.
/// A hardware address would not do: it may change, and ipvlans share one.
fn duid(whose: &Whose) -> Vec<u8> {
    let mut uuid: Vec<u8> = hash::sha512(whose.words()).into_iter().take(16).collect();
    // RFC 9562, section 5.8: version 8, and the variant of that RFC.
    for (at, keep, set) in [(6, 0x0f, 0x80), (8, 0x3f, 0x80)] {
        if let Some(byte) = uuid.get_mut(at) {
            *byte = *byte & keep | set;
        }
    }
    DUID_UUID.into_iter().chain(uuid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duid_is_a_uuid_of_the_attachment() {
        let whose = |container: &str, ifname: &str| Whose {
            network: "lan".into(),
            container: container.into(),
            ifname: ifname.into(),
        };
        let one = duid(&whose("c1", "eth0"));
        assert_eq!((one.len(), &one[..2], one[8] >> 4, one[10] >> 6), (18, &[0, 4][..], 8, 2));
        assert_eq!(one, duid(&whose("c1", "eth0")));
        assert_ne!(one, duid(&whose("c2", "eth0")));
        assert_ne!(one, duid(&whose("c1", "net1")));
    }
}
