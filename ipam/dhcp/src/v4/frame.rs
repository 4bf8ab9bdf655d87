//! The headers of IPv4 and UDP around a DHCP message. The interface has no address yet, so the kernel cannot make them.
//!
//! Checksums of received packets are verified, except a UDP checksum that was left to hardware. Over a veth pair that
//! is the sum of the pseudo-header alone (CHECKSUM_PARTIAL, linux/skbuff.h).

use std::net::Ipv4Addr;

/// The port of servers (RFC 2131, section 4.1).
const SERVER_PORT: u16 = 67;
/// The port of clients.
const CLIENT_PORT: u16 = 68;

const UDP: u8 = 17;
/// The length of an IPv4 header without options, in bytes.
const IP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;

/// The bits of "more fragments" and of the offset, which are 0 in a whole packet.
const FRAGMENT: u16 = 0x3fff;

/// Returns the IP packet with a message from `source`, port 68, to port 67 of `destination`.
pub(crate) fn wrap(source: Ipv4Addr, destination: Ipv4Addr, message: &[u8]) -> Vec<u8> {
    // A message has some hundred bytes, so the length fits.
    let udp_length = u16::try_from(UDP_HEADER + message.len()).unwrap_or(u16::MAX);
    let length = udp_length.saturating_add(IP_HEADER as u16);
    let mut header = vec![0x45, 0x10];
    header.extend_from_slice(&length.to_be_bytes());
    header.extend_from_slice(&[0, 0, 0x40, 0, 64, UDP, 0, 0]);
    header.extend_from_slice(&source.octets());
    header.extend_from_slice(&destination.octets());
    let checksum = !sum(&header, 0);
    write_word(&mut header, 10, checksum);
    let mut udp = Vec::with_capacity(UDP_HEADER + message.len());
    for field in [CLIENT_PORT, SERVER_PORT, udp_length, 0] {
        udp.extend_from_slice(&field.to_be_bytes());
    }
    udp.extend_from_slice(message);
    // A checksum of zero would mean that there is none (RFC 768).
    let checksum = match !sum(&udp, pseudo(source, destination, udp_length)) {
        0 => u16::MAX,
        checksum => checksum,
    };
    write_word(&mut udp, 6, checksum);
    header.append(&mut udp);
    header
}

/// Returns the message in an IP packet to port 68. `None` for any other packet, for fragments, and if a checksum is
/// wrong.
pub(crate) fn unwrap(packet: &[u8]) -> Option<&[u8]> {
    let first = *packet.first()?;
    let header_length = usize::from(first & 0x0f) * 4;
    if first >> 4 != 4 || header_length < IP_HEADER || *packet.get(9)? != UDP {
        return None;
    }
    let total = usize::from(word(packet, 2)?);
    // The rest is dropped, because an Ethernet frame may be padded.
    let packet = packet.get(..total)?;
    let (header, udp) = packet.split_at_checked(header_length)?;
    if sum(header, 0) != u16::MAX || word(header, 6)? & FRAGMENT != 0 {
        return None;
    }
    let (source, destination) = (address(header, 12)?, address(header, 16)?);
    let length = word(udp, 4)?;
    let udp = udp.get(..usize::from(length)).filter(|udp| udp.len() >= UDP_HEADER)?;
    if word(udp, 2)? != CLIENT_PORT {
        return None;
    }
    let pseudo = pseudo(source, destination, length);
    let checksum = word(udp, 6)?;
    let left_to_hardware = checksum == fold(pseudo);
    if checksum != 0 && !left_to_hardware && sum(udp, pseudo) != u16::MAX {
        return None;
    }
    udp.get(UDP_HEADER..)
}

/// Returns the sum of UDP's pseudo-header (RFC 768), not folded yet.
fn pseudo(source: Ipv4Addr, destination: Ipv4Addr, length: u16) -> u32 {
    let [a, b] = [source, destination].map(u32::from);
    [a >> 16, a & 0xffff, b >> 16, b & 0xffff, u32::from(UDP), u32::from(length)].iter().sum()
}

/// Returns the ones' complement sum of the bytes and `start` (RFC 1071). It is 0xffff over data with a right checksum.
fn sum(bytes: &[u8], start: u32) -> u16 {
    let mut sum = start;
    for pair in bytes.chunks(2) {
        // There are at most 65535 bytes, so the sum does not overflow.
        sum += u32::from(pair.first().copied().unwrap_or(0)) << 8;
        sum += u32::from(pair.get(1).copied().unwrap_or(0));
    }
    fold(sum)
}

/// Adds the carries to the lower 16 bits.
fn fold(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    u16::try_from((once & 0xffff) + (once >> 16)).unwrap_or(u16::MAX)
}

/// Returns the big-endian number at `at`, or `None` behind the end.
fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Returns the address at `at`, or `None` behind the end.
fn address(bytes: &[u8], at: usize) -> Option<Ipv4Addr> {
    let octets: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(Ipv4Addr::from(octets))
}

/// Writes a big-endian number at `at`. Does nothing behind the end.
fn write_word(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(field) = bytes.get_mut(at..at + 2) {
        field.copy_from_slice(&value.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: Ipv4Addr = Ipv4Addr::new(10, 1, 2, 1);

    /// To port 68, from a server.
    fn answer(message: &[u8]) -> Vec<u8> {
        let mut packet = wrap(SERVER, Ipv4Addr::BROADCAST, message);
        write_word(&mut packet, 20, SERVER_PORT);
        write_word(&mut packet, 22, CLIENT_PORT);
        packet
    }

    #[test]
    fn a_wrapped_message_is_unwrapped_and_any_flipped_bit_is_noticed() {
        for message in [&b""[..], b"x", b"an odd one", b"four"] {
            let packet = answer(message);
            assert_eq!(unwrap(&packet), Some(message));
            let mut filled = packet.clone();
            filled.extend_from_slice(&[0; 9]);
            assert_eq!(unwrap(&filled), Some(message));
            for length in 0..packet.len() {
                assert_eq!(unwrap(&packet[..length]), None, "{length} bytes");
            }
            for bit in 0..packet.len() * 8 {
                let mut broken = packet.clone();
                broken[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(unwrap(&broken), None, "bit {bit} of {packet:?}");
            }
        }
        assert_eq!(unwrap(&wrap(SERVER, Ipv4Addr::BROADCAST, b"x")), None);
    }

    #[test]
    fn an_unfinished_or_missing_checksum_is_accepted() {
        let mut packet = answer(b"message");
        write_word(&mut packet, 26, fold(pseudo(SERVER, Ipv4Addr::BROADCAST, 15)));
        assert_eq!(unwrap(&packet), Some(&b"message"[..]));
        write_word(&mut packet, 26, 0);
        assert_eq!(unwrap(&packet), Some(&b"message"[..]));
        write_word(&mut packet, 26, 1);
        assert_eq!(unwrap(&packet), None);
    }

    #[test]
    fn fragments_are_ignored() {
        for bits in [0x2000_u16, 0x0001, 0x1fff] {
            let mut packet = answer(b"message");
            write_word(&mut packet, 6, bits);
            write_word(&mut packet, 10, 0);
            let checksum = !sum(&packet[..20], 0);
            write_word(&mut packet, 10, checksum);
            assert_eq!(unwrap(&packet), None, "{bits:#x}");
        }
    }
}
