//! The sockets of DHCPv6 on an interface: a UDP socket, and an ICMPv6 socket during a probe.

use std::io;
use std::net::Ipv6Addr;

use cnimble_cni::hash;

use super::interface::Interface;
use super::speaker::{Packet, Purpose, Transport};
use crate::client::{Client, ClientAction};
use crate::ipc::LeaseOwner;
use crate::v6::client::{ClientIdentity, Dhcp6};
use crate::v6::message::{Question, ServerMessage};
use crate::v6::socket::{self, Socket};

/// The number of the IA. Each client has its own DUID, so one is enough.
const IAID: u32 = 1;
/// The type of a DUID that is a UUID (RFC 6355).
const DUID_UUID: [u8; 2] = [0, 4];

impl Transport for Dhcp6 {
    type Socket = Socket;
    type Sender = Ipv6Addr;

    /// Opens the socket on the interface's link-local address.
    fn open(interface: &Interface, purpose: Purpose) -> io::Result<Socket> {
        let own = interface
            .inside()
            .and_then(|(mut inside, link)| Ok(socket::link_local(&mut inside, link.index)?));
        let own = own.map_err(|err| io::Error::other(err.to_string()))?;
        let own = own.ok_or_else(|| io::Error::other("the interface has no link-local address"))?;
        interface.open(|| match purpose {
            Purpose::Dhcp => Socket::dhcp(own, interface.index),
            Purpose::Probes => Socket::neighbours(own, interface.index),
        })
    }

    fn send(socket: &Socket, message: &Question) -> io::Result<()> {
        socket.send(&message.encode())
    }

    fn probe(socket: &Socket, interface: &Interface, address: Ipv6Addr) -> io::Result<()> {
        socket.solicit(address, interface.mac)
    }

    fn receive<'b>(socket: &Socket, buffer: &'b mut [u8]) -> io::Result<Option<(Ipv6Addr, &'b [u8])>> {
        socket.receive(buffer)
    }

    fn handle(client: &mut Client<Self>, now: u64, packet: &Packet<Ipv6Addr>) -> Vec<ClientAction<Self>> {
        let (ClientIdentity { duid, iaid }, bytes) = (&client.protocol.identity, &packet.bytes);
        let actions = match packet.purpose {
            // The socket has a link-local address, which only servers and relays of the link reach. So their addresses
            // are link-local, too.
            Purpose::Dhcp => ServerMessage::parse(bytes, duid, *iaid)
                .filter(|_| packet.from.is_unicast_link_local())
                .map(|answer| client.answer(now, &answer)),
            Purpose::Probes => socket::advertised(bytes).map(|address| client.conflict(now, address)),
        };
        actions.unwrap_or_default()
    }
}

/// Makes the protocol for an attachment.
pub(super) fn protocol(owner: &LeaseOwner) -> Dhcp6 {
    Dhcp6::new(ClientIdentity { duid: duid(owner), iaid: IAID })
}

/// Returns the DUID of an attachment. It is the same on every node and at any time. A hardware address would not do: it
/// may change, and all ipvlans of a master have the same one.
fn duid(owner: &LeaseOwner) -> Vec<u8> {
    let mut uuid: Vec<u8> = hash::sha512(owner.words()).into_iter().take(16).collect();
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
        let owner = |container: &str, ifname: &str| LeaseOwner {
            network: "lan".into(),
            container: container.into(),
            ifname: ifname.into(),
        };
        let one = duid(&owner("c1", "eth0"));
        assert_eq!((one.len(), &one[..2], one[8] >> 4, one[10] >> 6), (18, &[0, 4][..], 8, 2));
        assert_eq!(one, duid(&owner("c1", "eth0")));
        assert_ne!(one, duid(&owner("c2", "eth0")));
        assert_ne!(one, duid(&owner("c1", "net1")));
    }
}
