//! A client with its sockets: one for messages of DHCP, and one for probes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use cnimble_netlink::link::Mac;

use super::interface::Interface;
use crate::client::{Address, Client, ClientAction, Event, Lease, Protocol};
use crate::held::AnyLease;

/// The largest packet that is read: a jumbo frame of Ethernet, in bytes.
const LARGEST_PACKET: usize = 9216;
/// The most packets that are read from a socket before others get their turn.
const BURST: usize = 32;

/// The purpose of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Messages of DHCP.
    Dhcp,
    /// Probes for other hosts with the address, by ARP or by neighbour solicitations.
    Probes,
}

/// A packet that has arrived, with its sender.
pub(super) struct Packet<S> {
    pub(super) purpose: Purpose,
    pub(super) from: S,
    pub(super) bytes: Vec<u8>,
}

/// The sockets of a [`Protocol`].
pub(super) trait Transport: Protocol {
    type Socket: AsFd;
    type Sender;

    /// Tells the client that the interface may have another hardware address by now. DHCPv6 does not use it.
    fn follow(_client: &mut Client<Self>, _mac: Mac) {}

    /// Opens a non-blocking socket in the namespace of the interface.
    fn open(interface: &Interface, purpose: Purpose) -> io::Result<Self::Socket>;

    /// Closes a socket. A packet socket must not block the daemon here.
    fn close(socket: Self::Socket) {
        drop(socket);
    }

    /// Sends a message to where it is addressed.
    fn send(socket: &Self::Socket, message: &Self::Message) -> io::Result<()>;

    /// Asks the link which host has the address.
    fn probe(socket: &Self::Socket, interface: &Interface, address: Address<Self>) -> io::Result<()>;

    /// Returns a packet with its sender, or `None` if none is waiting.
    fn receive<'b>(
        socket: &Self::Socket,
        buffer: &'b mut [u8],
    ) -> io::Result<Option<(Self::Sender, &'b [u8])>>;

    /// Passes a packet to the client, and returns what it wants to do. Other packets are ignored.
    fn handle(client: &mut Client<Self>, now: u64, packet: &Packet<Self::Sender>) -> Vec<ClientAction<Self>>;
}

/// A client of either family with its sockets.
pub(super) trait Speaker {
    /// Returns the time at which [`Speaker::tick`] has something to do.
    fn next(&self) -> u64;
    /// Returns the lease, if the client has one.
    fn lease(&self) -> Option<AnyLease>;
    /// Returns what the client has tried since it last had a lease, for the error text.
    fn tried(&self) -> String;
    /// Returns the open sockets, to wait for packets.
    fn sockets(&self) -> Vec<BorrowedFd<'_>>;
    /// Reads packets that have arrived, and returns what the daemon has to know.
    fn read_packets(&mut self, interface: &Interface, now: u64) -> Vec<Event>;
    /// Does what is due at `now`, and returns what the daemon has to know.
    fn tick(&mut self, interface: &Interface, now: u64) -> Vec<Event>;
    /// Releases the lease. Returns its address, and whether the server could be told. `None` if the client has no
    /// lease.
    fn release(&mut self, interface: &Interface, now: u64) -> Option<(String, io::Result<()>)>;
}

/// A socket that is open only while the client needs it.
struct Slot<T: Transport> {
    purpose: Purpose,
    socket: Option<T::Socket>,
}

impl<T: Transport> Slot<T> {
    /// Opens the socket if it is closed.
    fn open(&mut self, interface: &Interface) -> io::Result<()> {
        if self.socket.is_none() {
            self.socket = Some(T::open(interface, self.purpose)?);
        }
        Ok(())
    }

    /// Closes the socket if it is open.
    fn close(&mut self) {
        self.socket.take().into_iter().for_each(T::close);
    }

    /// Returns the packets that have arrived. A socket that fails is closed, and the next message opens it again.
    fn receive(&mut self) -> Vec<Packet<T::Sender>> {
        let mut packets = Vec::new();
        let mut buffer = [0; LARGEST_PACKET];
        for _ in 0..BURST {
            let Some(socket) = &self.socket else { break };
            match T::receive(socket, &mut buffer) {
                Ok(Some((from, bytes))) => {
                    packets.push(Packet { purpose: self.purpose, from, bytes: bytes.to_vec() });
                }
                Ok(None) => break,
                // ENETDOWN means that the interface was down for a moment. The socket still works.
                Err(err) if err.raw_os_error() == Some(libc::ENETDOWN) => break,
                Err(_) => self.close(),
            }
        }
        packets
    }
}

impl<T: Transport> Drop for Slot<T> {
    fn drop(&mut self) {
        self.close();
    }
}

/// The [`Speaker`] of a protocol: it carries out what the client wants to do.
pub(super) struct Driver<T: Transport> {
    client: Client<T>,
    dhcp: Slot<T>,
    probes: Slot<T>,
}

impl<T: Transport> Driver<T> {
    pub(super) fn new(client: Client<T>) -> Self {
        let dhcp = Slot { purpose: Purpose::Dhcp, socket: None };
        let probes = Slot { purpose: Purpose::Probes, socket: None };
        Driver { client, dhcp, probes }
    }

    /// Opens the sockets that the state of the client needs, and closes the others.
    fn listen(&mut self, interface: &Interface) -> io::Result<()> {
        let (listens, probes) = (self.client.listens(), self.client.probed().is_some());
        for (slot, needed) in [(&mut self.dhcp, listens), (&mut self.probes, probes)] {
            if needed { slot.open(interface)? } else { slot.close() }
        }
        Ok(())
    }

    /// Sends a message by the open socket, or by one for this message alone.
    fn send(&self, interface: &Interface, message: &T::Message) -> io::Result<()> {
        if let Some(socket) = &self.dhcp.socket {
            return T::send(socket, message);
        }
        // A bound client has no socket, because it waits for no answer, but may release its lease.
        let mut once = Slot::<T> { purpose: Purpose::Dhcp, socket: None };
        once.open(interface)?;
        once.socket.as_ref().map_or(Ok(()), |socket| T::send(socket, message))
    }

    /// Sends a probe. Does nothing if the socket for probes is closed.
    fn probe(&self, interface: &Interface, address: Address<T>) -> io::Result<()> {
        self.probes.socket.as_ref().map_or(Ok(()), |socket| T::probe(socket, interface, address))
    }

    /// Carries out the actions of the client. Returns its reports, and each failure as a line for the log.
    fn act(&mut self, interface: &Interface, actions: Vec<ClientAction<T>>) -> Vec<Event> {
        let mut events = Vec::new();
        for action in actions {
            events.extend(match action {
                ClientAction::Report(event) => Some(event),
                ClientAction::Send(message) => {
                    let sent = self.listen(interface).and_then(|()| self.send(interface, &message));
                    self.client.tally.sent(&sent);
                    failure(sent, || format!("sending {}", T::name(&message)))
                }
                ClientAction::Probe(address) => {
                    let sent = self.listen(interface).and_then(|()| self.probe(interface, address));
                    failure(sent, || format!("asking which host has {address}"))
                }
            });
        }
        events.extend(failure(self.listen(interface), || "opening a socket".to_owned()));
        events
    }
}

/// Returns the line for the log if something has failed.
fn failure(outcome: io::Result<()>, what: impl FnOnce() -> String) -> Option<Event> {
    outcome.err().map(|err| Event::Log(format!("{} failed: {err}", what())))
}

impl<T: Transport> Speaker for Driver<T> {
    fn next(&self) -> u64 {
        self.client.next()
    }

    fn lease(&self) -> Option<AnyLease> {
        self.client.lease.clone().map(Lease::held)
    }

    fn tried(&self) -> String {
        self.client.tally.words(T::SEARCH)
    }

    fn sockets(&self) -> Vec<BorrowedFd<'_>> {
        self.dhcp.socket.iter().chain(&self.probes.socket).map(AsFd::as_fd).collect()
    }

    fn read_packets(&mut self, interface: &Interface, now: u64) -> Vec<Event> {
        let mut events = Vec::new();
        let mut packets = self.dhcp.receive();
        packets.extend(self.probes.receive());
        for packet in packets {
            let actions = T::handle(&mut self.client, now, &packet);
            events.extend(self.act(interface, actions));
        }
        events
    }

    fn tick(&mut self, interface: &Interface, now: u64) -> Vec<Event> {
        T::follow(&mut self.client, interface.mac);
        let actions = self.client.tick(now);
        self.act(interface, actions)
    }

    fn release(&mut self, interface: &Interface, now: u64) -> Option<(String, io::Result<()>)> {
        let (address, message) = self.client.release(now)?;
        Some((address.to_string(), self.send(interface, &message)))
    }
}
