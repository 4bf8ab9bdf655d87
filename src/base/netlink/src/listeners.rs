//! Sockets of the current namespace that wait for packets: `ss -ltu`.

use std::net::IpAddr;

use nix::errno::Errno;
use nix::libc;

use super::socket::{Protocol, Socket};
use super::uapi::inet_diag::{INET_DIAG_MSG, INET_DIAG_REQ_V2, INET_DIAG_SKV6ONLY, SOCK_DIAG_BY_FAMILY};
use super::wire::{self, Attributes, Message, ip, u8_at, u32_ne};
use super::{IfPresent as _, Result};

const AF_INET: u8 = libc::AF_INET as u8;
const AF_INET6: u8 = libc::AF_INET6 as u8;

/// The states LISTEN, and CLOSE of an unconnected socket without connections (net/tcp_states.h).
const LISTEN: u32 = 1 << 10;
const CLOSE: u32 = 1 << 7;

/// A socket that waits for packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listener {
    /// The local address. An address in `::ffff:0:0/96` is given as IPv4.
    pub ip: IpAddr,
    /// The local port.
    pub port: u16,
    /// Whether a socket on `::` leaves IPv4 to others.
    pub v6_only: bool,
    /// The number in `/proc/PID/fd`.
    pub inode: u32,
}

/// Lists the listeners of an IP protocol (tcp is 6). `port` lets the kernel choose those of one port. A kernel without
/// sock_diag for the protocol lists none.
pub fn listeners(protocol: u8, port: Option<u16>) -> Result<Vec<Listener>> {
    let mut found = Vec::new();
    let socket = Socket::open(Protocol::Sockets).map(Some);
    let Some(mut socket) = socket.default_for(&[Errno::EPROTONOSUPPORT])? else { return Ok(found) };
    let states = if i32::from(protocol) == libc::IPPROTO_UDP { CLOSE } else { LISTEN };
    for family in [AF_INET, AF_INET6] {
        let mut header = vec![family, protocol, 0, 0];
        header.extend(states.to_ne_bytes());
        header.extend(port.unwrap_or_default().to_be_bytes());
        header.resize(INET_DIAG_REQ_V2, 0);
        let listed = socket.list("list listeners", &wire::list(SOCK_DIAG_BY_FAMILY, &header), |message| {
            Ok(read(message).filter(|of| port.is_none_or(|port| port == of.port)))
        });
        // The protocol's module may not be there.
        found.extend(listed.default_for(&[Errno::ENOENT])?.unwrap_or_default());
    }
    Ok(found)
}

/// `struct inet_diag_msg`
pub(super) fn read(message: &Message<'_>) -> Option<Listener> {
    let body = message.body;
    let length = if u8_at(body, 0)? == AF_INET { 4 } else { 16 };
    let attributes = Attributes::behind(body, INET_DIAG_MSG);
    Some(Listener {
        ip: ip(body.get(8..8 + length)?)?.to_canonical(),
        port: u16::from_be_bytes(*body.get(4..)?.first_chunk()?),
        v6_only: attributes.get(INET_DIAG_SKV6ONLY).is_some_and(|only| only.first() == Some(&1)),
        inode: u32_ne(body, 68)?,
    })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsRawFd;

    use nix::sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, SockaddrIn6, bind, listen, setsockopt, socket, sockopt,
    };

    use super::listeners;
    use crate::Netlink;
    use crate::link::{Change, set};
    use crate::testing::in_netns;

    fn shown(protocol: i32, port: Option<u16>) -> Vec<String> {
        let found = listeners(u8::try_from(protocol).unwrap(), port).unwrap();
        let mut shown: Vec<_> =
            found.iter().map(|of| format!("{} {} {}", of.ip, of.port, of.v6_only)).collect();
        shown.sort();
        shown
    }

    #[test]
    fn sockets_that_wait_are_listed() {
        in_netns("sockets_that_wait_are_listed", || {
            let up = Change { up: Some(true), ..Change::default() };
            Netlink::open().unwrap().execute(set(1, "lo", &up)).unwrap();
            assert_eq!(shown(libc::IPPROTO_TCP, None), [] as [&str; 0]);
            let v4 = TcpListener::bind("127.0.0.1:80").unwrap();
            let _both = TcpListener::bind("[::]:81").unwrap();
            let only = socket(AddressFamily::Inet6, SockType::Stream, SockFlag::empty(), None).unwrap();
            setsockopt(&only, sockopt::Ipv6V6Only, &true).unwrap();
            bind(only.as_raw_fd(), &SockaddrIn6::from("[::]:82".parse::<std::net::SocketAddrV6>().unwrap()))
                .unwrap();
            listen(&only, Backlog::new(1).unwrap()).unwrap();
            // A connection isn't a listener.
            let _client = TcpStream::connect("127.0.0.1:80").unwrap();
            let _accepted = v4.accept().unwrap();
            assert_eq!(shown(libc::IPPROTO_TCP, None), ["127.0.0.1 80 false", ":: 81 false", ":: 82 true"]);
            assert_eq!(shown(libc::IPPROTO_TCP, Some(82)), [":: 82 true"]);
            assert_eq!(shown(libc::IPPROTO_TCP, Some(83)), [] as [&str; 0]);

            let waiting = UdpSocket::bind("127.0.0.1:53").unwrap();
            let connected = UdpSocket::bind("127.0.0.1:54").unwrap();
            connected.connect("127.0.0.1:53").unwrap();
            assert_eq!(shown(libc::IPPROTO_UDP, None), ["127.0.0.1 53 false"]);
            assert_eq!(shown(libc::IPPROTO_UDP, Some(53)), ["127.0.0.1 53 false"]);
            let inode = listeners(17, None).unwrap().first().unwrap().inode;
            let link = std::fs::read_link(format!("/proc/self/fd/{}", waiting.as_raw_fd())).unwrap();
            assert_eq!(link.to_str(), Some(format!("socket:[{inode}]").as_str()));
        });
    }
}
