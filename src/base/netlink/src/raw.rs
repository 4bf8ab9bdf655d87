//! Raw sockets (raw(7)): a program writes a transport header itself, and the kernel routes the packet as any other of
//! its namespace.

use std::net::{IpAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6, sendto, setsockopt,
    socket, sockopt,
};
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};

use super::{Error, Result};

/// A protocol that probes are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Transport {
    Icmp,
    Tcp,
    Udp,
}

impl Transport {
    /// The number in the IP header (`IPPROTO_…`).
    pub fn number(self, v4: bool) -> u8 {
        let number = match (self, v4) {
            (Transport::Icmp, true) => libc::IPPROTO_ICMP,
            (Transport::Icmp, false) => libc::IPPROTO_ICMPV6,
            (Transport::Tcp, _) => libc::IPPROTO_TCP,
            (Transport::Udp, _) => libc::IPPROTO_UDP,
        };
        u8::try_from(number).unwrap_or_default()
    }

    fn protocol(self, v4: bool) -> SockProtocol {
        match (self, v4) {
            (Transport::Icmp, true) => SockProtocol::Icmp,
            (Transport::Icmp, false) => SockProtocol::IcmpV6,
            (Transport::Tcp, _) => SockProtocol::Tcp,
            (Transport::Udp, _) => SockProtocol::Udp,
        }
    }
}

/// A raw socket of one protocol, in the namespace in which it was opened.
#[derive(Debug)]
pub struct RawSocket {
    fd: OwnedFd,
}

impl RawSocket {
    /// Opens a socket for packets to addresses of this family.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW.
    pub fn open(transport: Transport, v4: bool) -> Result<Self> {
        let family = if v4 { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(family, SockType::Raw, flags, transport.protocol(v4));
        Ok(RawSocket { fd: fd.map_err(|errno| Error::new("open a raw socket", errno))? })
    }

    /// Forbids fragments of the packets that are sent: the header of IPv4 gets the flag DF. The kernel does not compare
    /// their size with what it has learned about the MTU of a way, only with the MTU of the link (`IP_PMTUDISC_PROBE`,
    /// ip(7)).
    ///
    /// # Errors
    /// Fails if the kernel refuses the option.
    pub fn forbid_fragments(&self, v4: bool) -> Result<()> {
        if v4 {
            return set_ip_mtu_discover(&self.fd, Ipv4PathMtuDiscovery::PROBE).map_err(refused_option);
        }
        set_ipv6_mtu_discover(&self.fd, Ipv6PathMtuDiscovery::PROBE).map_err(refused_option)?;
        setsockopt(&self.fd, sockopt::Ipv6DontFrag, &true)
            .map_err(|errno| Error::new("forbid fragments", errno))
    }

    /// Sends a transport header with its data. The kernel adds the header of IP, and computes only the checksum of
    /// ICMPv6.
    ///
    /// # Errors
    /// ENETUNREACH without a route, EPERM if a rule of the namespace drops it, EMSGSIZE if it does not fit.
    pub fn send(&self, packet: &[u8], to: IpAddr) -> Result<()> {
        let flags = MsgFlags::MSG_DONTWAIT;
        let fd = self.fd.as_raw_fd();
        let sent = match to {
            IpAddr::V4(ip) => sendto(fd, packet, &SockaddrIn::from(SocketAddrV4::new(ip, 0)), flags),
            IpAddr::V6(ip) => sendto(fd, packet, &SockaddrIn6::from(SocketAddrV6::new(ip, 0, 0, 0)), flags),
        };
        let errno = match sent {
            Ok(length) if length == packet.len() => return Ok(()),
            Ok(_) => Errno::EMSGSIZE,
            Err(errno) => errno,
        };
        Err(Error::new(format!("send a packet to {to}"), errno))
    }
}

fn refused_option(err: rustix::io::Errno) -> Error {
    Error::new("forbid fragments", Errno::from_raw(err.raw_os_error()))
}
