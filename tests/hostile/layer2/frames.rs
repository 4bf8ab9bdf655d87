//! Raw frames with arbitrary bytes. A program in a pod can send them with CAP_NET_RAW alone.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::socket::{AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, SockaddrLike, sendto, socket};
use nix::unistd::Pid;

use cnimble_tests::Ns;

/// The bytes of a hardware address.
pub(super) type Mac = [u8; 6];

pub(super) fn mac(text: &str) -> Mac {
    let bytes: Vec<u8> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

/// Returns the addresses that no bridge forwards by default, from 01:80:c2:00:00:00 to 01:80:c2:00:00:0f.
pub(super) fn reserved() -> impl Iterator<Item = Mac> {
    (0..16).map(|last| [0x01, 0x80, 0xc2, 0, 0, last])
}

/// Returns an Ethernet frame.
pub(super) fn ethernet(to: Mac, from: Mac, kind: u16, body: &[u8]) -> Vec<u8> {
    let mut frame = to.to_vec();
    frame.extend(from);
    frame.extend(kind.to_be_bytes());
    frame.extend(body);
    frame
}

/// Returns the frame with an 802.1Q tag.
pub(super) fn tagged(frame: &[u8], vlan: u16) -> Vec<u8> {
    let mut tagged = frame[..12].to_vec();
    tagged.extend([0x81, 0x00]);
    tagged.extend(vlan.to_be_bytes());
    tagged.extend(&frame[12..]);
    tagged
}

fn checksum(parts: &[&[u8]]) -> [u8; 2] {
    let mut sum: u32 = 0;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!u16::try_from(sum).unwrap()).to_be_bytes()
}

/// Returns an ICMPv6 packet from a link-local address, with its checksum filled in.
fn icmpv6(to: Ipv6Addr, mut message: Vec<u8>) -> Vec<u8> {
    let from: Ipv6Addr = "fe80::bad".parse().unwrap();
    let length = u16::try_from(message.len()).unwrap().to_be_bytes();
    let pseudo = [0, 0, length[0], length[1], 0, 0, 0, 58];
    let sum = checksum(&[&from.octets(), &to.octets(), &pseudo, &message]);
    message[2..4].copy_from_slice(&sum);
    let mut packet = vec![0x60, 0, 0, 0, length[0], length[1], 58, 255];
    packet.extend(from.octets());
    packet.extend(to.octets());
    packet.extend(message);
    packet
}

/// Returns a router advertisement (RFC 4861, 4.2) that offers a default route and the prefix 2001:db8:bad::/64 for
/// address configuration.
pub(super) fn advertisement() -> Vec<u8> {
    let mut message = vec![134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0];
    message.extend([3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10, 0, 0, 0x0e, 0x10, 0, 0, 0, 0]);
    message.extend("2001:db8:bad::".parse::<Ipv6Addr>().unwrap().octets());
    icmpv6("ff02::1".parse().unwrap(), message)
}

/// Returns a neighbour solicitation (135) or advertisement (136) for `target`, from `mac`.
pub(super) fn neighbour(kind: u8, target: Ipv6Addr, mac: Mac) -> Vec<u8> {
    let override_it = if kind == 136 { 0x20 } else { 0 };
    let mut message = vec![kind, 0, 0, 0, override_it, 0, 0, 0];
    message.extend(target.octets());
    message.extend([kind - 134, 1]);
    message.extend(mac);
    icmpv6("ff02::1".parse().unwrap(), message)
}

/// Returns an ARP request for `wanted`, from `from`.
pub(super) fn arp(from_mac: Mac, from: Ipv4Addr, wanted: Ipv4Addr) -> Vec<u8> {
    let mut packet = vec![0, 1, 8, 0, 6, 4, 0, 1];
    packet.extend(from_mac);
    packet.extend(from.octets());
    packet.extend([0; 6]);
    packet.extend(wanted.octets());
    packet
}

/// Returns a UDP datagram with the payload `text`.
pub(super) fn udp(from: Ipv4Addr, to: Ipv4Addr, port: u16, text: &str) -> Vec<u8> {
    let length = u16::try_from(8 + text.len()).unwrap();
    let mut packet = vec![0x45, 0];
    packet.extend((20 + length).to_be_bytes());
    packet.extend([0, 1, 0, 0, 64, 17, 0, 0]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    let sum = checksum(&[&packet]);
    packet[10..12].copy_from_slice(&sum);
    for number in [4000, port, length, 0] {
        packet.extend(number.to_be_bytes());
    }
    packet.extend(text.as_bytes());
    packet
}

/// Sends the frames out of eth0, in order, on one processor. The kernel forwards them in the same order, so that the
/// last frame sent arrives last.
pub(super) fn send(pod: &Ns, frames: &[Vec<u8>]) {
    pod.within(|| {
        let mut one = CpuSet::new();
        one.set(nix::sched::sched_getcpu().unwrap()).unwrap();
        sched_setaffinity(Pid::from_raw(0), &one).unwrap();
        let raw = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None).unwrap();
        let out = eth0();
        for frame in frames {
            let sent = sendto(raw.as_raw_fd(), frame, &out, MsgFlags::empty());
            assert_eq!(sent, Ok(frame.len()), "{frame:02x?}");
        }
    });
}

fn eth0() -> LinkAddr {
    let mut all = nix::ifaddrs::getifaddrs().unwrap();
    let found = all.find_map(|one| {
        let address = one.address.filter(|_| one.interface_name == "eth0")?;
        address.as_link_addr().copied()
    });
    let found = found.expect("eth0");
    assert!(found.len() > 0);
    found
}
