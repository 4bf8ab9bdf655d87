//! The sockets of a DHCPv6 client, for UDP and for neighbour solicitations. They are open only while the client waits.
//! They are bound to the link-local address. No router forwards packets to it, so whatever arrives comes from the link.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use cnimble_netlink::Netlink;
use cnimble_netlink::link::Mac;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, SockaddrIn6, bind, setsockopt, socket, sockopt,
};

/// The multicast group of all servers and relays of a link (RFC 8415, section 7).
const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
const SERVER_PORT: u16 = 547;
const CLIENT_PORT: u16 = 546;

/// The ICMPv6 type of a neighbour solicitation (RFC 4861, section 4.3).
const SOLICITATION: u8 = 135;
/// The ICMPv6 type of a neighbour advertisement (RFC 4861, section 4.4).
const ADVERTISEMENT: u8 = 136;
/// The option with the hardware address of the sender (RFC 4861, section 4.6.1).
const SOURCE_LINK_LAYER: u8 = 1;
/// The hop limit of solicitations. Hosts drop a lower one, because a router may have forwarded the packet (RFC 4861,
/// section 7.1.1).
const HOPS: libc::c_int = 255;

/// A non-blocking socket on the interface `index`.
#[derive(Debug)]
pub(crate) struct Socket {
    socket: UdpSocket,
    index: u32,
}

impl Socket {
    /// Opens the socket for DHCP in this thread's namespace. `own` is the link-local address of the interface `index`.
    /// Fails with EADDRNOTAVAIL while the address is not usable yet.
    pub(crate) fn dhcp(own: Ipv6Addr, index: u32) -> io::Result<Socket> {
        let fd = open(SockType::Datagram, SockProtocol::Udp)?;
        // Another client in the pod may have the same port. It has other transaction IDs.
        setsockopt(&fd, sockopt::ReuseAddr, &true)?;
        bind(fd.as_raw_fd(), &SockaddrIn6::from(SocketAddrV6::new(own, CLIENT_PORT, 0, index)))?;
        Ok(Socket { socket: fd.into(), index })
    }

    /// Opens the socket for probes, as [`Socket::dhcp`] does.
    pub(crate) fn neighbours(own: Ipv6Addr, index: u32) -> io::Result<Socket> {
        let fd = open(SockType::Raw, SockProtocol::IcmpV6)?;
        setsockopt(&fd, sockopt::Ipv6MulticastHops, &HOPS)?;
        bind(fd.as_raw_fd(), &SockaddrIn6::from(SocketAddrV6::new(own, 0, 0, index)))?;
        Ok(Socket { socket: fd.into(), index })
    }

    /// Sends a message to all servers and relays of the link.
    pub(crate) fn send(&self, message: &[u8]) -> io::Result<()> {
        self.socket.send_to(message, SocketAddrV6::new(SERVERS, SERVER_PORT, 0, self.index)).map(drop)
    }

    /// Asks which host has the address. Hosts answer to `mac`.
    pub(crate) fn solicit(&self, address: Ipv6Addr, mac: Mac) -> io::Result<()> {
        let group = SocketAddrV6::new(group_of(address), 0, 0, self.index);
        self.socket.send_to(&solicitation(address, mac), group).map(drop)
    }

    /// Returns a message and its sender, or `None` if none is waiting. Fails for an interface that is down or gone.
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

/// Returns the interface's link-local address. `None` if it has none that is usable (a tentative one is not).
pub(crate) fn link_local(inside: &mut Netlink, index: u32) -> cnimble_netlink::Result<Option<Ipv6Addr>> {
    for addr in inside.addrs(index)? {
        if let IpAddr::V6(ip) = addr.net.ip()
            && ip.is_unicast_link_local()
            && !addr.tentative
        {
            return Ok(Some(ip));
        }
    }
    Ok(None)
}

/// Opens a non-blocking socket of IPv6.
fn open(kind: SockType, protocol: SockProtocol) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(AddressFamily::Inet6, kind, flags, protocol)?)
}

/// Returns the solicited-node multicast group of an address (RFC 4291, section 2.7.1).
fn group_of(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]))
}

/// Returns the bytes of a neighbour solicitation. The kernel writes the checksum.
fn solicitation(address: Ipv6Addr, mac: Mac) -> Vec<u8> {
    let mut message = vec![SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
    message.extend_from_slice(&address.octets());
    message.extend_from_slice(&[SOURCE_LINK_LAYER, 1]);
    message.extend_from_slice(&mac.0);
    message
}

/// Returns the address that a neighbour advertisement is about. `None` for any other message.
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
