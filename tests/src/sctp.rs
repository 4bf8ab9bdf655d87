//! SCTP by raw sockets, because many test kernels lack the protocol. Connection tracking knows it anyway.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, recvfrom, sendto, socket,
};

use crate::{Ns, PATIENCE, wait_until};

/// Receives all packets of SCTP in a namespace.
pub struct Listener {
    name: &'static str,
    v4: OwnedFd,
    v6: OwnedFd,
}

impl Listener {
    pub fn open(ns: &Ns, name: &'static str) -> Self {
        let (v4, v6) = ns.within(|| (raw(AddressFamily::Inet), raw(AddressFamily::Inet6)));
        Listener { name, v4, v6 }
    }

    /// Whether a packet with this initiate tag has arrived. Forgets all others.
    fn has(&self, tag: u32) -> bool {
        let mut found = false;
        for (socket, is_ipv4) in [(&self.v4, true), (&self.v6, false)] {
            let mut buffer = [0; 256];
            while let Ok((length, _)) = recvfrom::<SockaddrStorage>(socket.as_raw_fd(), &mut buffer) {
                // With the packet's header for IPv4, without for IPv6.
                let header = if is_ipv4 { usize::from(buffer[0] & 0x0f) * 4 } else { 0 };
                let packet = &buffer[header..length];
                found |= packet.get(16..20) == Some(&tag.to_be_bytes());
            }
        }
        found
    }
}

/// The name of the listener that the beginning of an association arrives at. It is sent again until it arrives.
///
/// # Panics
/// Panics if it arrives nowhere.
pub fn begin(from: &Ns, source_port: u16, to: &str, listeners: &[&Listener]) -> &'static str {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let tag = NEXT.fetch_add(1, Ordering::Relaxed);
    let to: SocketAddr = to.parse().unwrap();
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = from.within(|| raw(family));
    let packet = init(source_port, to.port(), tag);
    let mut name = None;
    wait_until(PATIENCE, || {
        // The socket takes no port.
        let there = SockaddrStorage::from(SocketAddr::new(to.ip(), 0));
        // Where there is no way yet, that is an error here.
        let _ = sendto(socket.as_raw_fd(), &packet, &there, MsgFlags::empty());
        name = listeners.iter().find(|listener| listener.has(tag)).map(|listener| listener.name);
        name.is_some()
    });
    name.unwrap_or_else(|| panic!("nothing arrived from {} port {source_port}", to.ip()))
}

fn raw(family: AddressFamily) -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(family, SockType::Raw, flags, SockProtocol::Sctp).unwrap()
}

/// A packet with the chunk INIT (RFC 9260, sections 3.1 and 3.3.2).
fn init(source_port: u16, port: u16, tag: u32) -> Vec<u8> {
    let mut packet = [source_port.to_be_bytes(), port.to_be_bytes()].concat();
    // The verification tag and the checksum follow, then type, flags and length of the chunk.
    packet.extend([0; 8]);
    packet.extend([1, 0, 0, 20]);
    packet.extend(tag.to_be_bytes());
    packet.extend(65_536_u32.to_be_bytes());
    packet.extend([0, 1, 0, 1]);
    packet.extend(1_u32.to_be_bytes());
    let sum = crc32c(&packet).to_le_bytes();
    packet[8..12].copy_from_slice(&sum);
    packet
}

/// The checksum of SCTP (RFC 9260, appendix A).
fn crc32c(bytes: &[u8]) -> u32 {
    let shift = |sum: u32| if sum & 1 == 1 { sum >> 1 ^ 0x82f6_3b78 } else { sum >> 1 };
    !bytes.iter().fold(!0, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), |sum, _| shift(sum)))
}
