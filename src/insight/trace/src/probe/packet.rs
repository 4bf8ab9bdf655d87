//! Makes the bytes of a probe, and recognizes it again. It carries a random number that no other packet has: in the
//! data of an echo request or a datagram, and as the sequence number of a SYN. Translation of addresses keeps it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cnimble_netlink::conntrack::{FirstPacket, PacketKind};
use cnimble_netlink::packet::Pattern;
use cnimble_netlink::raw::Transport;

use crate::flow::Flow;

const TEXT: &[u8] = b"cnimble trace";

const ECHO: [u8; 2] = [8, 128];
const ECHO_REPLY: [u8; 2] = [0, 129];
/// The types of ICMP errors that report a lost packet, of IPv4 and then of IPv6.
pub(super) const ERRORS: [&[u8]; 2] = [&[3, 11, 12], &[1, 2, 3, 4]];

/// The length of a header of IP without options, of IPv4 and of IPv6.
const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;

const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// A probe. The random number identifies it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Probe {
    pub(crate) flow: Flow,
    pub(crate) from: IpAddr,
    /// The protocol of the flow.
    pub(crate) transport: Transport,
    pub(crate) number: u32,
}

/// What a captured packet is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sighting {
    /// The probe on its way to the receiver.
    Probe,
    /// The receiver's answer. The text says what it is.
    Answer(&'static str),
    /// A router or the receiver reports that the probe was not delivered.
    Error { from: IpAddr, text: &'static str },
}

impl Probe {
    /// Returns the number of the protocol in the IP header (`IPPROTO_…`).
    pub(super) fn protocol_number(&self) -> u8 {
        self.transport.number(self.flow.to.is_ipv4())
    }

    /// Returns the transport header with its data.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let number = self.number.to_be_bytes();
        let (from, to) = (self.flow.from_port.to_be_bytes(), self.flow.to_port.to_be_bytes());
        let (mut bytes, checksum_at) = match self.transport {
            Transport::Icmp => {
                let kind = if self.flow.to.is_ipv4() { 8 } else { 128 };
                let [id, id2, ..] = number;
                (vec![kind, 0, 0, 0, id, id2, 0, 1], 2)
            }
            Transport::Tcp => {
                let [a, b, c, d] = number;
                let rest = [a, b, c, d, 0, 0, 0, 0, 0x50, SYN, 0xfa, 0xf0, 0, 0, 0, 0];
                ([&from[..], &to[..], &rest[..]].concat(), 16)
            }
            Transport::Udp => {
                let length = u16::try_from(8 + 4 + TEXT.len()).unwrap_or(8).to_be_bytes();
                ([from, to, length, [0, 0]].concat(), 6)
            }
        };
        if self.transport != Transport::Tcp {
            bytes.extend(number);
            bytes.extend(TEXT);
        }
        if let Some(size) = self.flow.size {
            let header = if self.flow.to.is_ipv4() { IPV4_HEADER } else { IPV6_HEADER };
            let length = usize::try_from(size).unwrap_or(0).saturating_sub(header);
            bytes.resize(length.max(bytes.len()), 0);
        }
        self.put_checksum(&mut bytes, checksum_at);
        bytes
    }

    /// Returns the segment that ends the connection which a SYN has begun (RFC 9293, 3.5.3).
    pub(crate) fn reset(&self) -> Vec<u8> {
        let (from, to) = (self.flow.from_port.to_be_bytes(), self.flow.to_port.to_be_bytes());
        let [a, b, c, d] = self.number.wrapping_add(1).to_be_bytes();
        let mut bytes = [&from[..], &to[..], &[a, b, c, d, 0, 0, 0, 0, 0x50, RST, 0, 0, 0, 0, 0, 0]].concat();
        self.put_checksum(&mut bytes, 16);
        bytes
    }

    fn put_checksum(&self, bytes: &mut [u8], at: usize) {
        let sum = self.checksum(bytes).to_be_bytes();
        if let Some(place) = bytes.get_mut(at..at + 2) {
            place.copy_from_slice(&sum);
        }
    }

    /// Returns a packet with an IP header before this transport header.
    pub(crate) fn packet(&self, transport: &[u8]) -> Vec<u8> {
        let protocol = self.protocol_number();
        let (from, to) = (octets(self.from), octets(self.flow.to));
        if self.flow.to.is_ipv4() {
            let [high, low] = u16::try_from(20 + transport.len()).unwrap_or(0).to_be_bytes();
            // Version and header length, total length, no fragments (DF), 64 hops.
            let mut header = vec![0x45, 0, high, low, 0, 0, 0x40, 0, 64, protocol, 0, 0];
            header.extend(from);
            header.extend(to);
            let sum = internet_checksum(&header).to_be_bytes();
            if let Some(place) = header.get_mut(10..12) {
                place.copy_from_slice(&sum);
            }
            return [&header, transport].concat();
        }
        let [high, low] = u16::try_from(transport.len()).unwrap_or(0).to_be_bytes();
        [&[0x60, 0, 0, 0, high, low, protocol, 64], &from[..], &to[..], transport].concat()
    }

    /// Returns the checksum of RFC 1071. For TCP and UDP it includes a pseudo header. The kernel computes that of
    /// ICMPv6.
    fn checksum(&self, bytes: &[u8]) -> u16 {
        let mut all = Vec::new();
        if self.transport != Transport::Icmp {
            let (from, to) = (octets(self.from), octets(self.flow.to));
            let number = self.protocol_number();
            let length = u32::try_from(bytes.len()).unwrap_or(0).to_be_bytes();
            all = [&from[..], &to[..], &length[..], &[0, 0, 0, number]].concat();
        }
        all.extend(bytes);
        // Zero would mean that there is no checksum (RFC 768).
        match internet_checksum(&all) {
            0 if self.transport == Transport::Udp => 0xffff,
            sum => sum,
        }
    }

    /// Returns the filter for captures. It may let other packets pass, too.
    pub(crate) fn pattern(&self) -> Pattern {
        match self.transport {
            Transport::Icmp => Pattern::Icmp,
            Transport::Tcp => Pattern::Tcp(self.number),
            Transport::Udp => Pattern::Udp(self.flow.to_port),
        }
    }

    /// Takes the identity of the first packet of a connection that a host sends itself, in place of a probe. It returns
    /// `None` if the packet is not from the flow's sender to its receiver, or begins no connection.
    pub(crate) fn adopt(flow: &Flow, from: IpAddr, transport: Transport, packet: &[u8]) -> Option<Self> {
        let (source, protocol, data) = split(packet)?;
        let is_from_sender = source == from && destination(packet)? == flow.to;
        if !is_from_sender || protocol != transport.number(flow.to.is_ipv4()) {
            return None;
        }
        let (from_port, to_port) = match transport {
            Transport::Icmp => (0, 0),
            Transport::Tcp | Transport::Udp => (half(data, 0)?, half(data, 2)?),
        };
        let (begins, number) = match transport {
            Transport::Icmp => (ECHO.contains(data.first()?), word(data, 8)?),
            Transport::Tcp => (data.get(13)? & (SYN | ACK) == SYN, word(data, 4)?),
            Transport::Udp => (true, first_word(data)?),
        };
        let adopted = Probe { flow: Flow { from_port, ..*flow }, from, transport, number };
        (begins && to_port == flow.to_port).then_some(adopted)
    }

    /// Recognizes the beginning of a packet that a rule of [`answer_conditions`](Self::answer_conditions) has matched.
    /// So an error quotes the probe, although the kernel's message does not contain the quotation. Without an IP header
    /// the receiver is taken for the sender of the error.
    pub(crate) fn recognize_held(&self, transport: &[u8]) -> Option<Sighting> {
        if let Some(sighting) = self.recognize_transport(transport) {
            return Some(sighting);
        }
        let is_v4 = self.flow.to.is_ipv4();
        let (kind, code) = (*transport.first()?, *transport.get(1)?);
        let is_error = ERRORS.get(usize::from(!is_v4))?.contains(&kind);
        is_error.then(|| Sighting::Error { from: self.flow.to, text: error_text(is_v4, kind, code) })
    }

    /// Recognizes a packet that begins with an IP header. It returns `None` for a foreign or incomplete packet.
    pub(crate) fn recognize(&self, packet: &[u8]) -> Option<Sighting> {
        let (source, protocol, data) = split(packet)?;
        if protocol == icmp(packet)? {
            return self.recognize_icmp(source, data, packet);
        }
        if protocol != self.protocol_number() {
            return None;
        }
        self.recognize_transport(data)
    }

    /// Returns the key by which connection tracking knows the probe where it was captured. It returns `None` for a
    /// packet that is not the probe.
    pub(crate) fn first_packet(&self, packet: &[u8]) -> Option<FirstPacket> {
        if self.recognize(packet)? != Sighting::Probe {
            return None;
        }
        let (source, protocol, data) = split(packet)?;
        let kind = if self.transport == Transport::Icmp {
            PacketKind::Echo { id: half(data, 4)? }
        } else {
            PacketKind::Ports { source: half(data, 0)?, destination: half(data, 2)? }
        };
        Some(FirstPacket { protocol, source, destination: destination(packet)?, kind })
    }

    /// Recognizes a transport header of the probe's own protocol with the data after it. It returns `None` for a
    /// foreign packet, but takes any UDP datagram with the probe's ports in reverse for the answer.
    pub(crate) fn recognize_transport(&self, data: &[u8]) -> Option<Sighting> {
        match self.transport {
            Transport::Icmp => {
                let kind = data.first()?;
                let is_it = word(data, 8)? == self.number;
                if is_it && ECHO.contains(kind) {
                    return Some(Sighting::Probe);
                }
                (is_it && ECHO_REPLY.contains(kind)).then_some(Sighting::Answer("an echo reply"))
            }
            Transport::Tcp if word(data, 4)? == self.number => Some(Sighting::Probe),
            Transport::Tcp if word(data, 8)? == self.number.wrapping_add(1) => {
                let refused = data.get(13)? & RST != 0;
                Some(Sighting::Answer(if refused {
                    "a refusal: nothing listens there"
                } else {
                    "the port is open"
                }))
            }
            Transport::Tcp => None,
            Transport::Udp => {
                let ports = (half(data, 0)?, half(data, 2)?);
                if ports == (self.flow.to_port, self.flow.from_port) && ports.0 != ports.1 {
                    return Some(Sighting::Answer("a datagram"));
                }
                (first_word(data)? == self.number).then_some(Sighting::Probe)
            }
        }
    }

    /// Recognizes an ICMP packet: the probe, its answer, or an error that quotes the probe.
    fn recognize_icmp(&self, source: IpAddr, data: &[u8], packet: &[u8]) -> Option<Sighting> {
        let (kind, code) = (*data.first()?, *data.get(1)?);
        let v4 = is_v4(packet)?;
        let errors = ERRORS.get(usize::from(!v4))?;
        if !errors.contains(&kind) {
            return if self.transport == Transport::Icmp { self.recognize_transport(data) } else { None };
        }
        let (_, protocol, inner) = split(data.get(8..)?)?;
        if protocol != self.protocol_number() {
            return None;
        }
        (self.recognize_transport(inner)? == Sighting::Probe)
            .then(|| Sighting::Error { from: source, text: error_text(v4, kind, code) })
    }
}

/// Returns the checksum of RFC 1071.
fn internet_checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| match pair {
        [high, low] => u32::from(u16::from_be_bytes([*high, *low])),
        [high] => u32::from(*high) << 8,
        _ => 0,
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(0)
}

/// Returns the text about an ICMP error, by RFC 792 and RFC 4443.
fn error_text(v4: bool, kind: u8, code: u8) -> &'static str {
    match (v4, kind, code) {
        (true, 3, 0) | (false, 1, 0) => "network unreachable",
        (true, 3, 1) | (false, 1, 3) => "host unreachable",
        (true, 3, 3) | (false, 1, 4) => "port unreachable",
        (true, 3, 4) | (false, 2, _) => "the packet is too large for the way",
        (true, 3, 9 | 10 | 13) | (false, 1, 1 | 5) => "prohibited by an administrator",
        (true, 11, _) | (false, 3, _) => "time exceeded: the way is a loop, or too long",
        _ => "not delivered",
    }
}

/// Returns the packet's version of IP. It returns `None` for other bytes.
fn is_v4(packet: &[u8]) -> Option<bool> {
    match packet.first()? >> 4 {
        4 => Some(true),
        6 => Some(false),
        _ => None,
    }
}

/// Returns the number of ICMP for the packet's version of IP.
fn icmp(packet: &[u8]) -> Option<u8> {
    Some(if is_v4(packet)? { 1 } else { 58 })
}

/// Returns the source, the protocol and the data of a packet. Extension headers of IPv6 are not skipped.
fn split(packet: &[u8]) -> Option<(IpAddr, u8, &[u8])> {
    if is_v4(packet)? {
        let header = usize::from(packet.first()? & 0xf) * 4;
        let source: [u8; 4] = *packet.get(12..)?.first_chunk()?;
        return Some((Ipv4Addr::from(source).into(), *packet.get(9)?, packet.get(header..)?));
    }
    let source: [u8; 16] = *packet.get(8..)?.first_chunk()?;
    Some((Ipv6Addr::from(source).into(), *packet.get(6)?, packet.get(40..)?))
}

/// Returns the destination in the header of IP.
fn destination(packet: &[u8]) -> Option<IpAddr> {
    if is_v4(packet)? {
        let octets: [u8; 4] = *packet.get(16..)?.first_chunk()?;
        return Some(Ipv4Addr::from(octets).into());
    }
    let octets: [u8; 16] = *packet.get(24..)?.first_chunk()?;
    Some(Ipv6Addr::from(octets).into())
}

/// Returns four bytes as a number.
fn word(data: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*data.get(offset..)?.first_chunk()?))
}

/// Returns the first four bytes of a datagram's data as a number. Missing ones count as zero. A link may have filled up
/// the frame behind the datagram's end.
fn first_word(datagram: &[u8]) -> Option<u32> {
    let end = usize::from(half(datagram, 4)?).min(datagram.len());
    let mut first = [0; 4];
    for (to, from) in first.iter_mut().zip(datagram.get(8..end)?) {
        *to = *from;
    }
    Some(u32::from_be_bytes(first))
}

/// Returns two bytes as a number.
fn half(data: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*data.get(offset..)?.first_chunk()?))
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::Protocol;

    fn probe(transport: Transport, to: &str, from: &str) -> Probe {
        let (to, from): (IpAddr, IpAddr) = (to.parse().unwrap(), from.parse().unwrap());
        let ports = if transport == Transport::Icmp { (0, 0) } else { (61000, 80) };
        let protocol = Protocol::Tcp;
        let flow = Flow { from: Some(from), to, protocol, from_port: ports.0, to_port: ports.1, size: None };
        Probe { flow, from, transport, number: 0xdead_beef }
    }

    fn v4(from: [u8; 4], protocol: u8, data: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
        packet.extend(from);
        packet.extend([10, 0, 0, 9]);
        packet.extend(data);
        packet
    }

    #[test]
    fn a_probe_is_known_again() {
        for (transport, number) in [(Transport::Icmp, 1), (Transport::Tcp, 6), (Transport::Udp, 17)] {
            let probe = probe(transport, "10.0.0.9", "10.0.0.1");
            let bytes = probe.bytes();
            // The sum over everything, with the checksum in place, is zero.
            assert!([0, 0xffff].contains(&probe.checksum(&bytes)), "{transport:?}");
            let packet = v4([10, 0, 0, 1], number, &bytes);
            assert_eq!(probe.recognize(&packet), Some(Sighting::Probe), "{transport:?}");
            let other = Probe { number: 1, ..probe };
            assert_eq!(other.recognize(&packet), None, "{transport:?}");
            let mut error = vec![3, 13, 0, 0, 0, 0, 0, 0];
            error.extend(&packet);
            let error = v4([10, 0, 0, 7], 1, &error);
            let from = "10.0.0.7".parse().unwrap();
            let text = "prohibited by an administrator";
            assert_eq!(probe.recognize(&error), Some(Sighting::Error { from, text }), "{transport:?}");
            for length in 0..error.len() {
                let _ = probe.recognize(&error[..length]);
                let _ = probe.recognize(&packet[..length.min(packet.len())]);
            }
        }
    }

    #[test]
    fn a_probe_has_the_size_that_was_asked_for() {
        for (to, header) in [("10.0.0.9", IPV4_HEADER), ("fd00::9", IPV6_HEADER)] {
            let small = probe(Transport::Icmp, to, to);
            let full = Probe { flow: Flow { size: Some(1500), ..small.flow }, ..small };
            assert_eq!(full.bytes().len() + header, 1500);
            assert_eq!(full.recognize_transport(&full.bytes()), Some(Sighting::Probe));
            let tiny = Probe { flow: Flow { size: Some(1), ..small.flow }, ..small };
            assert_eq!(tiny.bytes(), small.bytes());
        }
    }

    #[test]
    fn only_the_first_packet_of_the_awaited_sender_is_adopted() {
        for (transport, number) in [(Transport::Icmp, 1), (Transport::Tcp, 6), (Transport::Udp, 17)] {
            let sent = probe(transport, "10.0.0.9", "10.0.0.1");
            let packet = v4([10, 0, 0, 1], number, &sent.bytes());
            let adopt = |packet: &[u8], from: &str| {
                Probe::adopt(&sent.flow, from.parse().unwrap(), transport, packet)
            };
            let adopted = adopt(&packet, "10.0.0.1").unwrap();
            assert_eq!((adopted.number, adopted.flow.from_port), (sent.number, sent.flow.from_port));
            assert_eq!(adopted.recognize(&packet), Some(Sighting::Probe), "{transport:?}");
            assert!(adopt(&packet, "10.0.0.2").is_none(), "{transport:?}");
            for length in 0..packet.len() {
                let _ = adopt(&packet[..length], "10.0.0.1");
            }
        }
        // A datagram of one byte, with the frame's padding behind it.
        let udp = probe(Transport::Udp, "10.0.0.9", "10.0.0.1");
        let short = v4([10, 0, 0, 1], 17, &[0xee, 0x48, 0, 80, 0, 9, 0, 0, 7, 1, 1, 1]);
        let adopted = Probe::adopt(&udp.flow, udp.from, Transport::Udp, &short).unwrap();
        assert_eq!((adopted.number, adopted.recognize(&short)), (0x0700_0000, Some(Sighting::Probe)));
        let tcp = probe(Transport::Tcp, "10.0.0.9", "10.0.0.1");
        let mut later = tcp.bytes();
        later[13] = SYN | ACK;
        assert!(Probe::adopt(&tcp.flow, tcp.from, Transport::Tcp, &v4([10, 0, 0, 1], 6, &later)).is_none());
        let other = Flow { to_port: 81, ..tcp.flow };
        let packet = v4([10, 0, 0, 1], 6, &tcp.bytes());
        assert!(Probe::adopt(&other, tcp.from, Transport::Tcp, &packet).is_none());
    }

    #[test]
    fn answers_are_known() {
        let tcp = probe(Transport::Tcp, "10.0.0.9", "10.0.0.1");
        let mut answer =
            vec![0, 80, 0xee, 0x48, 0, 0, 0, 1, 0xde, 0xad, 0xbe, 0xf0, 0x50, 0x12, 0, 0, 0, 0, 0, 0];
        let read = |answer: &[u8]| tcp.recognize(&v4([10, 0, 0, 9], 6, answer));
        assert_eq!(read(&answer), Some(Sighting::Answer("the port is open")));
        answer[13] = 0x14;
        assert_eq!(read(&answer), Some(Sighting::Answer("a refusal: nothing listens there")));
        answer[11] = 0;
        assert_eq!(read(&answer), None);
        let icmp = probe(Transport::Icmp, "10.0.0.9", "10.0.0.1");
        let mut reply = icmp.bytes();
        reply[0] = 0;
        let read = icmp.recognize(&v4([10, 0, 0, 9], 1, &reply));
        assert_eq!(read, Some(Sighting::Answer("an echo reply")));
    }
}
