//! The packets that a rule of a port mapping matches, by protocol, port and destination, for rules of the nft command
//! and of both forms of iptables.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::Rule;
use crate::uapi::nf_tables::{
    NFT_CMP_EQ, NFT_META_L4PROTO, NFT_PAYLOAD_NETWORK_HEADER, NFT_PAYLOAD_TRANSPORT_HEADER, NFTA_CMP_DATA,
    NFTA_CMP_OP, NFTA_DATA_VALUE, NFTA_MATCH_INFO, NFTA_MATCH_NAME, NFTA_META_KEY, NFTA_PAYLOAD_BASE,
    NFTA_PAYLOAD_LEN, NFTA_PAYLOAD_OFFSET,
};
use crate::wire::{self, Attributes, u16_ne};

/// The destination of the packets that a rule matches. An absent or unreadable part matches all.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Destination {
    /// The number of the protocol above IP, if the rule compares it.
    pub protocol: Option<u8>,
    /// The ports, of which each matches. It is empty if all ports match, or if the rule's ports aren't understood.
    pub ports: Vec<RangeInclusive<u16>>,
    /// The destination address, if the rule compares a whole one.
    pub address: Option<IpAddr>,
}

/// The field that was loaded into a register to be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loaded {
    Protocol,
    Port,
    Address,
    Other,
}

impl Rule {
    /// Returns the destination of the packets that the rule is for.
    pub fn destination(&self) -> Destination {
        let mut to = Destination::default();
        let mut loaded = Loaded::Other;
        for (name, data) in &self.expressions {
            let data = Attributes::new(data);
            match name.as_str() {
                "meta" if data.u32_be(NFTA_META_KEY) == Some(NFT_META_L4PROTO) => loaded = Loaded::Protocol,
                "payload" => loaded = payload(data),
                "cmp" if data.u32_be(NFTA_CMP_OP) == Some(NFT_CMP_EQ) => {
                    let value = data.nested(NFTA_CMP_DATA).and_then(|data| data.get(NFTA_DATA_VALUE));
                    to.is(loaded, value.unwrap_or_default());
                }
                "match" => to.matches(data),
                // What is masked, or loaded from elsewhere.
                _ => loaded = Loaded::Other,
            }
        }
        to
    }
}

fn payload(data: Attributes<'_>) -> Loaded {
    let place = (data.u32_be(NFTA_PAYLOAD_OFFSET), data.u32_be(NFTA_PAYLOAD_LEN));
    match (data.u32_be(NFTA_PAYLOAD_BASE), place) {
        // The first number is the offset in IPv4, and the second in IPv6.
        (Some(NFT_PAYLOAD_NETWORK_HEADER), (Some(9 | 6), Some(1))) => Loaded::Protocol,
        (Some(NFT_PAYLOAD_NETWORK_HEADER), (Some(16), Some(4)) | (Some(24), Some(16))) => Loaded::Address,
        (Some(NFT_PAYLOAD_TRANSPORT_HEADER), (Some(2), Some(2))) => Loaded::Port,
        _ => Loaded::Other,
    }
}

impl Destination {
    /// Notes that the loaded field has to have this value.
    fn is(&mut self, loaded: Loaded, value: &[u8]) {
        match (loaded, value) {
            (Loaded::Protocol, [protocol]) => self.protocol = Some(*protocol),
            (Loaded::Port, [high, low]) => {
                let port = u16::from_be_bytes([*high, *low]);
                self.ports = vec![port..=port];
            }
            (Loaded::Address, addr) => self.address = wire::ip(addr),
            _ => {}
        }
    }

    /// A match of iptables: `struct xt_tcp`, `xt_udp`, `xt_sctp_info`, `xt_multiport_v1` (linux/netfilter).
    fn matches(&mut self, data: Attributes<'_>) {
        let info = data.get(NFTA_MATCH_INFO).unwrap_or_default();
        let name = data.text(NFTA_MATCH_NAME).unwrap_or_default();
        if ["tcp", "udp", "sctp", "multiport"].contains(&name.as_str()) {
            self.ports = ports_of_match(&name, info);
        }
    }
}

/// Returns the destination's ports that a match of iptables is for. The list is empty if it is for all ports, and for a
/// match that isn't understood.
pub(crate) fn ports_of_match(name: &str, info: &[u8]) -> Vec<RangeInclusive<u16>> {
    /// `XT_TCP_INV_DSTPT` and `XT_UDP_INV_DSTPT`
    const ALL_OTHERS: u8 = 0x02;
    let mut ports: Vec<_> = match name {
        "tcp" if info.get(11).is_some_and(|flags| flags & ALL_OTHERS != 0) => Vec::new(),
        "udp" if info.get(8).is_some_and(|flags| flags & ALL_OTHERS != 0) => Vec::new(),
        "tcp" | "udp" => range_at(info, 4).into_iter().collect(),
        "sctp" if is_for_other_sctp_ports(info) => Vec::new(),
        "sctp" => range_at(info, 0).into_iter().collect(),
        "multiport" => multiport(info),
        _ => Vec::new(),
    };
    ports.retain(|ports| *ports != (0..=u16::MAX));
    ports
}

/// Whether a `struct xt_sctp_info` inverts the test of the destination's ports (`invflags`, behind the ports, the bitmap
/// of chunks, its type, four flags of chunks with their count, and `flags`).
fn is_for_other_sctp_ports(info: &[u8]) -> bool {
    const INVERTED: usize = 8 + 256 + 4 + 12 + 4 + 4;
    const XT_SCTP_DEST_PORTS: u32 = 0x02;
    let flags = info.get(INVERTED..INVERTED + 4).and_then(|bytes| bytes.try_into().ok());
    flags.is_some_and(|flags| u32::from_ne_bytes(flags) & XT_SCTP_DEST_PORTS != 0)
}

/// Returns the range whose first and last port are at an offset. Returns `None` if the match is too short.
fn range_at(info: &[u8], at: usize) -> Option<RangeInclusive<u16>> {
    Some(u16_ne(info, at)?..=u16_ne(info, at + 2)?)
}

/// Reads a `struct xt_multiport_v1`, in which some ports begin a range that the next one ends. The list is empty if the
/// match is for all other ports, or not only for destinations.
fn multiport(info: &[u8]) -> Vec<RangeInclusive<u16>> {
    const DESTINATION: u8 = 1;
    const PORTS: usize = 2;
    const FLAGS: usize = 32;
    const INVERT: usize = 47;
    const MOST: usize = 15;
    let (Some(&DESTINATION), Some(&count), Some(&0)) = (info.first(), info.get(1), info.get(INVERT)) else {
        return Vec::new();
    };
    let mut ports = Vec::new();
    let mut first = None;
    for index in 0..usize::from(count).min(MOST) {
        let Some(port) = u16_ne(info, PORTS + 2 * index) else { return Vec::new() };
        let begins = info.get(FLAGS + index).is_some_and(|flag| *flag != 0);
        match (first.take(), begins) {
            (None, true) => first = Some(port),
            (begun, _) => ports.push(begun.unwrap_or(port)..=port),
        }
    }
    ports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_multiport_is_read() {
        let mut info = [0_u8; 48];
        (info[0], info[1]) = (1, 3);
        for (index, port) in [80_u16, 90, 99].into_iter().enumerate() {
            info[2 + 2 * index..4 + 2 * index].copy_from_slice(&port.to_ne_bytes());
        }
        info[33] = 1;
        assert_eq!(multiport(&info), [80..=80, 90..=99]);
        info[47] = 1;
        assert!(multiport(&info).is_empty());
        for cut in 0..48 {
            assert!(multiport(&info[..cut]).is_empty());
        }
    }

    #[test]
    fn an_inverted_match_of_sctp_is_for_no_port_in_particular() {
        // `sizeof(struct xt_sctp_info)`
        let mut info = [0_u8; 292];
        for port in info[..4].chunks_exact_mut(2) {
            port.copy_from_slice(&5060_u16.to_ne_bytes());
        }
        assert_eq!(ports_of_match("sctp", &info), [5060..=5060]);
        info[288..].copy_from_slice(&2_u32.to_ne_bytes());
        assert!(ports_of_match("sctp", &info).is_empty());
    }
}
