//! DHCPv4 on an interface: the client, a packet socket, and an ARP socket while an address is probed.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};

use cnimble_netlink::arp;
use cnimble_netlink::link::{Link, Mac};
use cnimble_netlink::packet::{Kind, Socket};

use super::flags::Flags;
use super::place::{Event, LARGEST_PACKET, Place, Speaker, drain, told};
use crate::client::{Action, Client, Identity, To};
use crate::held::Held;
use crate::lease::Lease;
use crate::message::{Answer, Question, code};
use crate::talk::{Wanted, Whose};
use crate::{closing, frame};

/// The longest client ID, without the type byte before it.
const LONGEST_ID: usize = 254;

/// A DHCPv4 client with its sockets.
pub(super) struct Four {
    client: Client,
    dhcp: Option<Socket>,
    arp: Option<Socket>,
}

impl Drop for Four {
    fn drop(&mut self) {
        [self.dhcp.take(), self.arp.take()].into_iter().flatten().for_each(close);
    }
}

/// Closes a socket without blocking.
fn close(socket: Socket) {
    closing::close(socket.into());
}

/// A packet that a socket has received.
enum Heard {
    Answer(Mac, Answer),
    Holder(Mac),
}

impl Four {
    /// Returns a client without a lease, or with a lease from a file.
    pub(super) fn new(
        flags: &Flags,
        wanted: &Wanted,
        link: &Link,
        mac: Mac,
        now: u64,
        lease: Option<Lease>,
    ) -> Four {
        let pause = flags.timeout.min(flags.resend_max);
        let identity = identity(flags, wanted, link, mac);
        let client = match lease {
            Some(lease) => Client::with(identity, pause, now, lease),
            None => Client::new(identity, pause, now),
        };
        Four { client, dhcp: None, arp: None }
    }

    /// Opens the sockets that the client's state needs, and closes the others.
    fn listen(&mut self, place: &Place) -> io::Result<()> {
        let open = |wanted: bool, kind: Kind, now: Option<Socket>| match (wanted, now) {
            (false, now) => {
                now.into_iter().for_each(close);
                Ok(None)
            }
            (true, Some(socket)) => Ok(Some(socket)),
            (true, None) => place.open(|| Socket::open(kind, place.index)).map(Some),
        };
        let (dhcp, arp) = (self.dhcp.take(), self.arp.take());
        let dhcp = open(self.client.listens(), Kind::Dhcp, dhcp);
        let arp = open(self.client.probes(), Kind::Arp, arp);
        (self.dhcp, self.arp) = (dhcp?, arp?);
        Ok(())
    }

    fn send(&self, place: &Place, question: &Question, from: Ipv4Addr, to: To) -> io::Result<()> {
        let (ip, mac) = match to {
            To::Everybody => (Ipv4Addr::BROADCAST, Mac([0xff; 6])),
            To::Server(ip, mac) => (ip, mac),
        };
        let packet = frame::wrap(from, ip, &question.encode());
        match &self.dhcp {
            Some(socket) => socket.send(mac, &packet),
            // A client that waits for no answer has no socket, but may send a RELEASE.
            None => {
                let socket = place.open(|| Socket::open(Kind::Dhcp, place.index))?;
                let sent = socket.send(mac, &packet);
                close(socket);
                sent
            }
        }
    }

    /// Sends an ARP probe for the address.
    fn probe(&self, place: &Place, address: Ipv4Addr) -> io::Result<()> {
        let packet = arp::probe(place.mac, address);
        self.arp.as_ref().map_or(Ok(()), |arp| arp.send(Mac([0xff; 6]), &packet))
    }

    /// Reads the received packets.
    fn heard(&mut self, place: &Place) -> Vec<Heard> {
        let mut heard = Vec::new();
        let mut buffer = [0; LARGEST_PACKET];
        drain(&mut self.dhcp, |socket| {
            let Some((from, packet)) = socket.receive(&mut buffer)? else { return Ok(false) };
            let answer = frame::unwrap(packet).and_then(|message| Answer::parse(message, place.mac));
            heard.extend(answer.map(|answer| Heard::Answer(from, answer)));
            Ok(true)
        });
        if let Some(address) = self.client.probed() {
            drain(&mut self.arp, |socket| {
                let Some((_, packet)) = socket.receive(&mut buffer)? else { return Ok(false) };
                heard.extend(arp::holder(packet, address).map(Heard::Holder));
                Ok(true)
            });
        }
        heard
    }

    fn act(&mut self, place: &Place, actions: Vec<Action>) -> Vec<Event> {
        let mut events = Vec::new();
        for action in actions {
            events.extend(match action {
                Action::Tell(line) => Some(Event::Tell(line)),
                Action::Bound(lease) => Some(Event::Bound(Held::Four(*lease))),
                Action::Lost(lease, why) => Some(Event::Lost(Held::Four(*lease), why)),
                Action::Send { question, from, to } => {
                    let sent = self.listen(place).and_then(|()| self.send(place, &question, from, to));
                    told(&format!("sending {}", question.kind.word()), sent)
                }
                Action::Probe(address) => {
                    let sent = self.listen(place).and_then(|()| self.probe(place, address));
                    told(&format!("asking who has {address}"), sent)
                }
            });
        }
        events.extend(told("opening a socket", self.listen(place)));
        events
    }
}

impl Speaker for Four {
    fn next(&self) -> u64 {
        self.client.next()
    }

    fn lease(&self) -> Option<Held> {
        self.client.lease().cloned().map(Held::Four)
    }

    fn tried(&self) -> String {
        self.client.tally().words("DISCOVER")
    }

    fn sockets(&self) -> Vec<BorrowedFd<'_>> {
        self.dhcp.iter().chain(&self.arp).map(AsFd::as_fd).collect()
    }

    fn hear(&mut self, place: &Place, now: u64) -> Vec<Event> {
        let mut events = Vec::new();
        for heard in self.heard(place) {
            let actions = match heard {
                Heard::Answer(from, answer) => self.client.answer(now, from, &answer),
                Heard::Holder(mac) => self.client.conflict(now, mac),
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
            Action::Send { question, from, to } => {
                Some((question.address.to_string(), self.send(place, &question, from, to)))
            }
            _ => None,
        }
    }
}

fn identity(flags: &Flags, wanted: &Wanted, link: &Link, mac: Mac) -> Identity {
    let mut own = wanted.provide.clone();
    if !own.iter().any(|(code, _)| *code == code::CLIENT_ID) {
        own.insert(0, (code::CLIENT_ID, client_id(&wanted.whose)));
    }
    // An ipvlan receives only packets for its addresses, and it has none yet.
    let broadcast = flags.broadcast || link.kind == "ipvlan";
    Identity { mac, broadcast, own, request: wanted.request.clone() }
}

/// Returns the same client ID as the Go daemon, so that a server gives the same address to either.
fn client_id(whose: &Whose) -> Vec<u8> {
    let mut id = vec![0];
    id.extend(whose.words().bytes().take(LONGEST_ID));
    id
}
