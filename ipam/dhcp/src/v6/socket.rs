//! The sockets of a DHCPv6 client: UDP from the interface's link-local address, and neighbour solicitations.
//!
//! They are open only while the client waits for answers. Both are bound to the link-local address. They thus receive
//! only packets to that address from its link, because no router forwards such packets.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use cnimble_netlink::Netlink;
use cnimble_netlink::addr::Addr;
use cnimble_netlink::link::Mac;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, SockaddrIn6, bind, setsockopt, socket, sockopt,
};

/// RFC 8415, section 7.
const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
const SERVER_PORT: u16 = 547;
const CLIENT_PORT: u16 = 546;

/// RFC 4861, sections 4.3, 4.4 and 4.6.1.
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const SOURCE_LINK_LAYER: u8 = 1;
/// Hosts drop a solicitation with a lower hop limit, because a router may have forwarded it (RFC 4861, section 7.1.1).
const HOPS: libc::c_int = 255;

/// A socket of one interface.
#[derive(Debug)]
pub(crate) struct Socket {
    socket: UdpSocket,
    index: u32,
}

impl Socket {
    /// Opens a socket for DHCP messages, in the namespace of this thread. `own` is the link-local address of the
    /// interface with this index.
    /// Fails if the kernel refuses the request, such as with EADDRNOTAVAIL while the address is not usable yet.
    pub(crate) fn dhcp(own: Ipv6Addr, index: u32) -> io::Result<Socket> {
        let fd = open(SockType::Datagram, SockProtocol::Udp)?;
        // A client in the pod may use the port, too. Its answers have another transaction ID.
        setsockopt(&fd, sockopt::ReuseAddr, &true)?;
        bind(fd.as_raw_fd(), &SockaddrIn6::from(SocketAddrV6::new(own, CLIENT_PORT, 0, index)))?;
        Ok(Socket { socket: fd.into(), index })
    }

    /// Opens a socket for neighbour solicitations and their answers.
    pub(crate) fn neighbours(own: Ipv6Addr, index: u32) -> io::Result<Socket> {
        let fd = open(SockType::Raw, SockProtocol::IcmpV6)?;
        setsockopt(&fd, sockopt::Ipv6MulticastHops, &HOPS)?;
        bind(fd.as_raw_fd(), &SockaddrIn6::from(SocketAddrV6::new(own, 0, 0, index)))?;
        Ok(Socket { socket: fd.into(), index })
    }

    /// Sends to all servers and relays of the link.
    pub(crate) fn send(&self, message: &[u8]) -> io::Result<()> {
        self.socket.send_to(message, SocketAddrV6::new(SERVERS, SERVER_PORT, 0, self.index)).map(drop)
    }

    /// Sends a neighbour solicitation for `address`. Hosts answer to `mac`.
    pub(crate) fn solicit(&self, address: Ipv6Addr, mac: Mac) -> io::Result<()> {
        let group = SocketAddrV6::new(group_of(address), 0, 0, self.index);
        self.socket.send_to(&solicitation(address, mac), group).map(drop)
    }

    /// Returns a received message and its sender, or `None` if nothing has arrived.
    /// Fails if the kernel reports an error, such as for an interface that is down or no longer exists.
    pub(crate) fn receive<'b>(&self, buffer: &'b mut [u8]) -> io::Result<Option<(Ipv6Addr, &'b [u8])>> {
        match self.socket.recv_from(buffer) {
            Ok((length, SocketAddr::V6(from))) => {
                Ok(Some((*from.ip(), buffer.get(..length).unwrap_or_default())))
            }
            Err(err) if !matches!(err.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Err(err)
            }
            _ => Ok(None),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns the usable link-local address of an interface, if it has one.
pub(crate) fn link_local(inside: &mut Netlink, index: u32) -> cnimble_netlink::Result<Option<Ipv6Addr>> {
    let own = |addr: &Addr| match addr.net.ip() {
        IpAddr::V6(ip) if ip.is_unicast_link_local() && !addr.tentative => Some(ip),
        _ => None,
    };
    Ok(inside.addrs(index)?.iter().find_map(own))
}

fn open(kind: SockType, protocol: SockProtocol) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(AddressFamily::Inet6, kind, flags, protocol)?)
}

/// Returns the multicast group of a host with this address (RFC 4291, section 2.7.1).
fn group_of(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]))
}

/// Returns a neighbour solicitation for the address. The kernel writes the checksum.
fn solicitation(address: Ipv6Addr, mac: Mac) -> Vec<u8> {
    let mut message = vec![SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    message.extend_from_slice(&address.octets());
    message.extend_from_slice(&[SOURCE_LINK_LAYER, 1]);
    message.extend_from_slice(&mac.0);
    message
}

/// Returns the address in a neighbour advertisement, or `None` for any other message.
pub(crate) fn advertised(message: &[u8]) -> Option<Ipv6Addr> {
    let (head, rest) = message.split_first_chunk::<8>()?;
    let target = rest.first_chunk::<16>()?;
    head.starts_with(&[ADVERTISEMENT, 0]).then(|| Ipv6Addr::from(*target))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0x12, 0x3456);

    #[test]
    fn solicitations_and_advertisements_are_encoded_and_parsed() {
        assert_eq!(group_of(ADDRESS).to_string(), "ff02::1:ff12:3456");
        let asked = solicitation(ADDRESS, Mac([2, 0, 0, 0, 0, 9]));
        assert_eq!((asked.len(), &asked[24..]), (32, &[1, 1, 2, 0, 0, 0, 0, 9][..]));
        assert_eq!(advertised(&asked), None);
        let mut advertisement = asked;
        advertisement[0] = ADVERTISEMENT;
        assert_eq!(advertised(&advertisement), Some(ADDRESS));
        for length in 0..24 {
            assert_eq!(advertised(&advertisement[..length]), None);
        }
        advertisement[1] = 1;
        assert_eq!(advertised(&advertisement), None);
    }
}
