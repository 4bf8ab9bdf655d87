//! TCP segments of no connection, as a program with CAP_NET_RAW sends them.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, recvfrom, sendto,
    setsockopt, socket,
};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::{Ns, PATIENCE, wait_until};

const RST: u8 = 0x04;
const SYN: u8 = 0x02;
/// The source port of segments.
const PORT: u16 = 39_999;

/// The source that `listener` sees for a reset of an unknown connection, which `sender` sends from the address `from`.
/// `None` if a later segment arrived, but not the reset.
///
/// # Panics
/// Panics if neither arrives.
pub fn reset_seen(sender: &Ns, from: &str, listener: &Ns, to: &str) -> Option<IpAddr> {
    use std::sync::atomic::{AtomicU16, Ordering};
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    // Ports that connection tracking has never seen.
    let port = NEXT.fetch_add(2, Ordering::Relaxed);
    let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let heard = listener.within(|| raw(to));
    setsockopt(&heard, ReceiveTimeout, &TimeVal::milliseconds(200)).unwrap();
    let sending = sender.within(|| raw(from));
    bind(sending.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(from, 0))).unwrap();
    let mut seen = None;
    let done = wait_until(PATIENCE, || {
        for (port, flags) in [(port, RST), (port + 1, SYN)] {
            let there = SockaddrStorage::from(SocketAddr::new(to, 0));
            let segment = segment(from, to, port, flags);
            // Where there is no way yet, that is an error here.
            let _ = sendto(sending.as_raw_fd(), &segment, &there, MsgFlags::empty());
        }
        let mut buffer = [0; 128];
        while let Ok((length, Some(source))) = recvfrom::<SockaddrStorage>(heard.as_raw_fd(), &mut buffer) {
            // With the packet's header for IPv4, without for IPv6.
            let header = if to.is_ipv4() { usize::from(buffer[0] & 0x0f) * 4 } else { 0 };
            let Some(tcp) = buffer[..length].get(header..) else { continue };
            match u16::from_be_bytes([tcp[2], tcp[3]]) {
                arrived if arrived == port => seen = Some(ip(&source)),
                arrived if arrived == port + 1 => return true,
                _ => {}
            }
        }
        false
    });
    assert!(done, "nothing arrived at {to}");
    seen
}

fn raw(of: IpAddr) -> OwnedFd {
    let family = if of.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Tcp).unwrap()
}

fn ip(source: &SockaddrStorage) -> IpAddr {
    let v4 = source.as_sockaddr_in().map(|source| IpAddr::from(source.ip()));
    v4.or_else(|| source.as_sockaddr_in6().map(|source| IpAddr::from(source.ip()))).unwrap()
}

/// A TCP header alone, with its checksum.
fn segment(from: IpAddr, to: IpAddr, port: u16, flags: u8) -> Vec<u8> {
    let mut header = PORT.to_be_bytes().to_vec();
    header.extend(port.to_be_bytes());
    header.extend([0, 0, 0x10, 0, 0, 0, 0, 0, 5 << 4, flags, 0x20, 0, 0, 0, 0, 0]);
    let octets = |ip| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let pseudo = [octets(from), octets(to), vec![0, 6, 0, 20], header.clone()].concat();
    let mut sum: u32 = pseudo.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let sum = (!u16::try_from(sum).unwrap()).to_be_bytes();
    header[16..18].copy_from_slice(&sum);
    header
}
