//! Packet sockets (packet(7)), for an interface without an address. They are open only while something is asked. A
//! filter keeps all but the answers out, so a pod's own traffic doesn't wake the process.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::link::Mac;

/// The types of linux/if_ether.h.
const ETH_P_ALL: u16 = 0x0003;
const ETH_P_IP: u16 = 0x0800;
const ETH_P_ARP: u16 = 0x0806;
const ETH_P_IPV6: u16 = 0x86dd;

/// The purpose of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketPurpose {
    /// UDP datagrams to port 68.
    Dhcp,
    /// Packets of ARP (RFC 826).
    Arp,
    /// IP packets that come in and go out, of one [`Pattern`].
    Ip(Pattern),
}

/// The direction of a captured packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// This namespace sent it by the interface.
    Sent,
    /// The packet came in.
    Received,
    /// The packet came in with the hardware address of another host. Only a port of a bridge takes such a frame.
    Foreign,
}

/// linux/filter.h: load a byte, a word of two, jump if equal, jump if a bit is set, the header's length, load behind
/// it, answer.
const LDB: u16 = 0x30;
const LDH: u16 = 0x28;
const JEQ: u16 = 0x15;
const JSET: u16 = 0x45;
const LDX_HEADER: u16 = 0xb1;
const LDH_BEHIND: u16 = 0x48;
const RET: u16 = 0x06;

/// Takes datagrams of UDP that are no later fragments, with destination port 68. The packet begins with the header of
/// IPv4.
const TO_CLIENTS: [libc::sock_filter; 8] = [
    instruction(LDB, 0, 0, 9),
    instruction(JEQ, 0, 5, 17),
    instruction(LDH, 0, 0, 6),
    instruction(JSET, 3, 0, 0x1fff),
    instruction(LDX_HEADER, 0, 0, 0),
    instruction(LDH_BEHIND, 0, 0, 2),
    instruction(JEQ, 1, 0, 68),
    instruction(RET, 0, 0, 0),
];
/// Keeps everything but a few IP packets out of a capture, so that a busy link does not fill its buffer. A reader looks
/// closer at what it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// All packets of ICMP and ICMPv6.
    Icmp,
    /// ICMP, and segments of TCP that have this sequence number or acknowledge it as that of a SYN.
    Tcp(u32),
    /// ICMP, and datagrams from or to this UDP port.
    Udp(u16),
    /// ICMP, and segments of TCP that begin, accept or refuse a connection.
    AnyTcpHandshake,
    /// ICMP, and all datagrams of UDP.
    AnyUdp,
}

/// Protocol numbers of IP.
const ICMP: u32 = 1;
const TCP: u32 = 6;
const UDP: u32 = 17;
const ICMP_V6: u32 = 58;
const LD_BEHIND: u16 = 0x40;
const LDB_BEHIND: u16 = 0x50;
/// The flags SYN and RST of a segment (RFC 9293, 3.1).
const SYN_OR_RST: u32 = 0x06;
const AND: u16 = 0x54;
const LDX: u16 = 0x01;
const REJECT: libc::sock_filter = instruction(RET, 0, 0, 0);

impl Pattern {
    /// Returns the filter. The packet begins with the header of IP. Each part either answers or goes on behind its end.
    fn program(self) -> Vec<libc::sock_filter> {
        // Loads the version, and goes on with IPv4 or behind that part.
        let v4 = self.conditions(9, &[instruction(LDX_HEADER, 0, 0, 0)], [ICMP, ICMP]);
        let v6 = self.conditions(6, &[instruction(LDX, 0, 0, 40)], [ICMP, ICMP_V6]);
        let over_v4 = u8::try_from(v4.len()).unwrap_or(u8::MAX);
        let mut program =
            vec![instruction(LDB, 0, 0, 0), instruction(AND, 0, 0, 0xf0), instruction(JEQ, 0, over_v4, 0x40)];
        program.extend(v4);
        program.extend(v6);
        program
    }

    /// The conditions of one IP version. Extension headers of IPv6 are not walked.
    fn conditions(
        self,
        protocol_at: u32,
        load_header: &[libc::sock_filter],
        icmp: [u32; 2],
    ) -> Vec<libc::sock_filter> {
        let mut program = vec![instruction(LDB, 0, 0, protocol_at)];
        for number in icmp {
            program.extend([instruction(JEQ, 0, 1, number), TAKE]);
        }
        let (protocol, tests) = match self {
            Pattern::Icmp => (None, Vec::new()),
            Pattern::Tcp(number) => {
                let tests = vec![
                    instruction(LD_BEHIND, 0, 0, 4),
                    instruction(JEQ, 0, 1, number),
                    TAKE,
                    instruction(LD_BEHIND, 0, 0, 8),
                    instruction(JEQ, 0, 1, number.wrapping_add(1)),
                    TAKE,
                ];
                (Some(TCP), tests)
            }
            Pattern::Udp(port) => {
                let tests = vec![
                    instruction(LDH_BEHIND, 0, 0, 0),
                    instruction(JEQ, 0, 1, port.into()),
                    TAKE,
                    instruction(LDH_BEHIND, 0, 0, 2),
                    instruction(JEQ, 0, 1, port.into()),
                    TAKE,
                ];
                (Some(UDP), tests)
            }
            Pattern::AnyTcpHandshake => {
                let tests =
                    vec![instruction(LDB_BEHIND, 0, 0, 13), instruction(JSET, 0, 1, SYN_OR_RST), TAKE];
                (Some(TCP), tests)
            }
            Pattern::AnyUdp => (Some(UDP), vec![TAKE]),
        };
        if let Some(protocol) = protocol {
            program.extend([instruction(JEQ, 1, 0, protocol), REJECT]);
            program.extend_from_slice(load_header);
            program.extend(tests);
        }
        program.push(REJECT);
        program
    }
}

const TAKE: libc::sock_filter = instruction(RET, 0, 0, u32::MAX);

const fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// The protocol of a packet socket: IPv4, or any (ETH_P_IP, ETH_P_ALL of linux/if_ether.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listens {
    /// The socket gets IPv4, as that of a DHCP client.
    Ipv4,
    /// The socket gets all packets, as those of some DHCP clients and of programs that record packets.
    Everything,
}

/// `ss -0`: packet sockets of this namespace that are bound to the interface with this index, and get IPv4.
///
/// # Errors
/// Fails if `/proc` is not mounted.
pub fn bound_to(index: u32) -> io::Result<Vec<Listens>> {
    match std::fs::read_to_string("/proc/thread-self/net/packet") {
        // A kernel without packet sockets, or without the module, lists none.
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => Ok(read?.lines().filter_map(|line| listens(line, index)).collect()),
    }
}

/// A line of `/proc/net/packet`: `sk RefCnt Type Proto Iface R Rmem User Inode`.
fn listens(line: &str, wanted: u32) -> Option<Listens> {
    let mut fields = line.split_ascii_whitespace().skip(3);
    let protocol = u16::from_str_radix(fields.next()?, 16).ok()?;
    let index: u32 = fields.next()?.parse().ok()?;
    match protocol {
        _ if index != wanted => None,
        ETH_P_IP => Some(Listens::Ipv4),
        ETH_P_ALL => Some(Listens::Everything),
        _ => None,
    }
}

/// A packet socket of one interface.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    index: i32,
    protocol: u16,
}

impl Socket {
    /// Opens a socket of the interface with this index, in the namespace of this thread.
    pub fn open(kind: SocketPurpose, index: u32) -> io::Result<Socket> {
        let protocol = match kind {
            SocketPurpose::Dhcp => ETH_P_IP,
            SocketPurpose::Arp => ETH_P_ARP,
            SocketPurpose::Ip(_) => ETH_P_ALL,
        };
        let flags = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // Of no protocol until it is bound: nothing comes before the filter is there.
        // SAFETY: socket(2) takes numbers, and its result is checked.
        let fd = checked(unsafe { libc::socket(libc::AF_PACKET, flags, 0) })?;
        // SAFETY: the descriptor is new, and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let index = i32::try_from(index).map_err(io::Error::other)?;
        let socket = Socket { fd, index, protocol };
        match kind {
            SocketPurpose::Dhcp => socket.filter(&TO_CLIENTS)?,
            SocketPurpose::Arp => {}
            SocketPurpose::Ip(pattern) => socket.filter(&pattern.program())?,
        }
        let address = socket.address(Mac([0xff; 6]));
        // SAFETY: the address is a live sockaddr_ll, of the length that is said.
        checked(unsafe { libc::bind(socket.fd.as_raw_fd(), (&raw const address).cast(), LENGTH) })?;
        Ok(socket)
    }

    fn filter(&self, conditions: &[libc::sock_filter]) -> io::Result<()> {
        let mut program = conditions.to_vec();
        program.push(TAKE);
        let length = u16::try_from(program.len()).map_err(io::Error::other)?;
        let program = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
        let size = size_of::<libc::sock_fprog>() as libc::socklen_t;
        // SAFETY: the program and what it points to live until the kernel has copied them.
        checked(unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const program).cast(),
                size,
            )
        })?;
        Ok(())
    }

    /// Sends to the host of this hardware address; the kernel makes the frame's header.
    pub fn send(&self, to: Mac, packet: &[u8]) -> io::Result<()> {
        self.send_to(&self.address(to), packet)
    }

    /// Sends a packet that begins with the header of IPv4 or IPv6, as [`send`](Self::send) does. The frame gets its
    /// type.
    pub fn send_ip(&self, to: Mac, packet: &[u8]) -> io::Result<()> {
        let is_v6 = packet.first().is_some_and(|first| first >> 4 == 6);
        let protocol = if is_v6 { ETH_P_IPV6 } else { ETH_P_IP };
        let address = libc::sockaddr_ll { sll_protocol: protocol.to_be(), ..self.address(to) };
        self.send_to(&address, packet)
    }

    fn send_to(&self, address: &libc::sockaddr_ll, packet: &[u8]) -> io::Result<()> {
        // SAFETY: packet and address are live, and of the lengths that are said.
        let sent = unsafe {
            libc::sendto(
                self.fd.as_raw_fd(),
                packet.as_ptr().cast(),
                packet.len(),
                0,
                std::ptr::from_ref(address).cast(),
                LENGTH,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Returns a received packet and the sender's hardware address, or `None` if nothing has arrived.
    ///
    /// # Errors
    /// Fails if the interface is gone or down, for example.
    pub fn receive<'b>(&self, buffer: &'b mut [u8]) -> io::Result<Option<(Mac, &'b [u8])>> {
        let received = self.receive_from(buffer)?;
        Ok(received.map(|(address, packet)| {
            let [a, b, c, d, e, f, ..] = address.sll_addr;
            (Mac([a, b, c, d, e, f]), packet)
        }))
    }

    /// Returns a captured packet with its direction.
    ///
    /// # Errors
    /// Fails as [`receive`](Self::receive) does.
    pub fn capture<'b>(&self, buffer: &'b mut [u8]) -> io::Result<Option<(Direction, &'b [u8])>> {
        let received = self.receive_from(buffer)?;
        Ok(received.map(|(address, packet)| {
            let direction = match address.sll_pkttype {
                libc::PACKET_OUTGOING => Direction::Sent,
                libc::PACKET_OTHERHOST => Direction::Foreign,
                _ => Direction::Received,
            };
            (direction, packet)
        }))
    }

    fn receive_from<'b>(&self, buffer: &'b mut [u8]) -> io::Result<Option<(libc::sockaddr_ll, &'b [u8])>> {
        let mut address = self.address(Mac([0; 6]));
        let mut length = LENGTH;
        // SAFETY: buffer and address are live and writable, and of the lengths that are said.
        let got = unsafe {
            libc::recvfrom(
                self.fd.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                0,
                (&raw mut address).cast(),
                &raw mut length,
            )
        };
        let Ok(got) = usize::try_from(got) else {
            let err = io::Error::last_os_error();
            let nothing = matches!(err.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
            return if nothing { Ok(None) } else { Err(err) };
        };
        Ok(Some((address, buffer.get(..got).unwrap_or_default())))
    }

    fn address(&self, mac: Mac) -> libc::sockaddr_ll {
        let [a, b, c, d, e, f] = mac.0;
        libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: self.protocol.to_be(),
            sll_ifindex: self.index,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 6,
            sll_addr: [a, b, c, d, e, f, 0, 0],
        }
    }
}

const LENGTH: libc::socklen_t = size_of::<libc::sockaddr_ll>() as libc::socklen_t;

fn checked(outcome: libc::c_int) -> io::Result<libc::c_int> {
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(outcome) }
}

impl From<Socket> for OwnedFd {
    fn from(socket: Socket) -> Self {
        socket.fd
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Netlink;
    use crate::link::{Change, set};
    use crate::testing::in_netns;

    #[test]
    fn a_bound_socket_is_listed_for_its_link() {
        in_netns("a_bound_socket", || {
            let up = Change { up: Some(true), ..Change::default() };
            Netlink::open().unwrap().execute(set(1, "lo", &up)).unwrap();
            assert_eq!(bound_to(1).unwrap(), []);
            let _arp = Socket::open(SocketPurpose::Arp, 1).unwrap();
            assert_eq!(bound_to(1).unwrap(), []);
            let _dhcp = Socket::open(SocketPurpose::Dhcp, 1).unwrap();
            assert_eq!(bound_to(1).unwrap(), [Listens::Ipv4]);
            assert_eq!(bound_to(2).unwrap(), []);
        });
    }

    #[test]
    fn lines_of_the_kernel_are_read() {
        let line = "00000000f1e2d3c4 3      3    0003   2     1 0      0      31415 ";
        assert_eq!(listens(line, 2), Some(Listens::Everything));
        assert_eq!(listens(line, 3), None);
        for other in
            ["sk       RefCnt Type Proto  Iface R Rmem   User   Inode", "", "1 2 3 0800", "1 2 3 88cc 2"]
        {
            assert_eq!(listens(other, 2), None, "{other}");
        }
    }
}
