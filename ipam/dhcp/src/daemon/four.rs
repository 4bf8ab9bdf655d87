//! The sockets of DHCPv4 on an interface: a packet socket, and an ARP socket during a probe.

use std::io;
use std::net::Ipv4Addr;

use cnimble_netlink::arp;
use cnimble_netlink::link::Mac;
use cnimble_netlink::packet::{Socket, SocketPurpose};

use super::flags::Flags;
use super::interface::Interface;
use super::speaker::{Packet, Purpose, Transport};
use crate::client::{Client, ClientAction};
use crate::closing;
use crate::ipc::{LeaseOwner, LeaseRequest};
use crate::v4::client::{ClientIdentity, Dhcp4};
use crate::v4::frame;
use crate::v4::message::{Question, ServerMessage, To, code};

/// The longest client ID in bytes, without the type byte before it.
const LONGEST_ID: usize = 254;

impl Transport for Dhcp4 {
    type Socket = Socket;
    type Sender = Mac;

    fn follow(client: &mut Client<Self>, mac: Mac) {
        client.protocol.identity.mac = mac;
    }

    fn open(interface: &Interface, purpose: Purpose) -> io::Result<Socket> {
        let kind = match purpose {
            Purpose::Dhcp => SocketPurpose::Dhcp,
            Purpose::Probes => SocketPurpose::Arp,
        };
        interface.open(|| Socket::open(kind, interface.index))
    }

    /// Closes the socket without blocking.
    fn close(socket: Socket) {
        closing::close(socket.into());
    }

    fn send(socket: &Socket, message: &Question) -> io::Result<()> {
        let (ip, mac) = match message.to {
            To::Everybody => (Ipv4Addr::BROADCAST, Mac([0xff; 6])),
            To::Server(ip, mac) => (ip, mac),
        };
        socket.send(mac, &frame::wrap(message.address, ip, &message.encode()))
    }

    fn probe(socket: &Socket, interface: &Interface, address: Ipv4Addr) -> io::Result<()> {
        socket.send(Mac([0xff; 6]), &arp::probe(interface.mac, address))
    }

    fn receive<'b>(socket: &Socket, buffer: &'b mut [u8]) -> io::Result<Option<(Mac, &'b [u8])>> {
        socket.receive(buffer)
    }

    fn handle(client: &mut Client<Self>, now: u64, packet: &Packet<Mac>) -> Vec<ClientAction<Self>> {
        let (mac, bytes) = (client.protocol.identity.mac, &packet.bytes);
        let actions = match packet.purpose {
            Purpose::Dhcp => frame::unwrap(bytes)
                .and_then(|message| ServerMessage::parse(message, mac))
                .map(|answer| client.answer(now, packet.from, &answer)),
            Purpose::Probes => client
                .probed()
                .and_then(|address| arp::holder(bytes, address))
                .map(|holder| client.conflict(now, holder)),
        };
        actions.unwrap_or_default()
    }
}

/// Makes the protocol for a pod. Without a configured client ID it has the Go daemon's ([`client_id`]).
pub(super) fn protocol(flags: &Flags, wanted: &LeaseRequest, interface: &Interface) -> Dhcp4 {
    let mut own = wanted.provide.clone();
    if !own.iter().any(|(code, _)| *code == code::CLIENT_ID) {
        own.insert(0, (code::CLIENT_ID, client_id(&wanted.owner)));
    }
    // An ipvlan receives only packets to its own addresses and broadcasts. It has no address yet.
    let broadcast = flags.broadcast || interface.kind == "ipvlan";
    Dhcp4::new(ClientIdentity { mac: interface.mac, broadcast, own, request: wanted.request.clone() })
}

/// Returns the client ID that the Go daemon sends, so that a server gives both daemons the same address.
fn client_id(owner: &LeaseOwner) -> Vec<u8> {
    let mut id = vec![0];
    id.extend(owner.words().bytes().take(LONGEST_ID));
    id
}
