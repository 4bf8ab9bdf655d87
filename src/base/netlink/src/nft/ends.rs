//! The networks that a rule of iptables' nf_tables variant, or of the nft command, compares addresses with.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use super::{Family, Rule};
use crate::uapi::nf_tables::{
    NFT_CMP_EQ, NFT_CMP_NEQ, NFT_PAYLOAD_NETWORK_HEADER, NFTA_BITWISE_MASK, NFTA_CMP_DATA, NFTA_CMP_OP,
    NFTA_DATA_VALUE, NFTA_PAYLOAD_BASE, NFTA_PAYLOAD_LEN, NFTA_PAYLOAD_OFFSET,
};
use crate::wire::{self, Attributes};

/// A network that one of a packet's addresses must be in, or must not be in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// The network.
    pub network: IpNetwork,
    /// Whether the address must not be in the network (`! -s NETWORK`).
    pub is_excluded: bool,
}

/// The networks that a rule compares a packet's addresses with. It may have more conditions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ends {
    /// All of them hold for the source.
    pub source: Vec<End>,
    /// All of them hold for the destination.
    pub destination: Vec<End>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Source,
    Destination,
}

impl Rule {
    /// The networks that the rule of a table of this family is for. What isn't understood is left out.
    pub fn ends(&self, family: Family) -> Ends {
        let mut ends = Ends::default();
        let mut loaded: Option<(Field, usize, Option<Vec<u8>>)> = None;
        for (name, data) in &self.expressions {
            let data = Attributes::new(data);
            match (name.as_str(), &mut loaded) {
                ("payload", _) => loaded = payload(family, data).map(|(field, length)| (field, length, None)),
                ("bitwise", Some((_, _, mask))) => {
                    *mask = data
                        .nested(NFTA_BITWISE_MASK)
                        .and_then(|data| Some(data.get(NFTA_DATA_VALUE)?.to_vec()));
                    // The expression is no mask, but another calculation.
                    if mask.is_none() {
                        loaded = None;
                    }
                }
                ("cmp", Some((field, length, mask))) => {
                    let value = data.nested(NFTA_CMP_DATA).and_then(|data| data.get(NFTA_DATA_VALUE));
                    let end = value.and_then(|value| end(family, value, *length, mask.as_deref(), &data));
                    match field {
                        Field::Source => ends.source.extend(end),
                        Field::Destination => ends.destination.extend(end),
                    }
                }
                ("counter" | "match", _) => {}
                _ => loaded = None,
            }
        }
        ends
    }
}

/// Returns the address that a `payload` loads, and how many of its first bytes. `None` if it loads anything else.
fn payload(family: Family, data: Attributes<'_>) -> Option<(Field, usize)> {
    let (source, destination, longest) = match family {
        Family::Ipv4 => (12, 16, 4),
        Family::Ipv6 => (8, 24, 16),
        Family::Inet | Family::Bridge => return None,
    };
    let length = data.u32_be(NFTA_PAYLOAD_LEN).filter(|length| (1..=longest).contains(length))?;
    let field = match (data.u32_be(NFTA_PAYLOAD_BASE)?, data.u32_be(NFTA_PAYLOAD_OFFSET)?) {
        (NFT_PAYLOAD_NETWORK_HEADER, offset) if offset == source => Field::Source,
        (NFT_PAYLOAD_NETWORK_HEADER, offset) if offset == destination => Field::Destination,
        _ => return None,
    };
    Some((field, usize::try_from(length).ok()?))
}

/// Returns the network that a `cmp` compares the loaded bytes with. Without a mask they are the network's prefix.
fn end(
    family: Family,
    value: &[u8],
    length: usize,
    mask: Option<&[u8]>,
    data: &Attributes<'_>,
) -> Option<End> {
    let is_excluded = match data.u32_be(NFTA_CMP_OP)? {
        NFT_CMP_EQ => false,
        NFT_CMP_NEQ => true,
        _ => return None,
    };
    let mut address = value.get(..length)?.to_vec();
    address.resize(if family == Family::Ipv4 { 4 } else { 16 }, 0);
    let prefix = match mask {
        None => u8::try_from(8 * length).ok()?,
        Some(mask) => prefix_of(mask)?,
    };
    Some(End { network: IpNetwork::new(wire::ip(&address)?, prefix).ok()?, is_excluded })
}

/// Returns the number of leading ones in a mask, or `None` if more ones follow the first zero.
pub(crate) fn prefix_of(mask: &[u8]) -> Option<u8> {
    let ones: u32 = mask.iter().map(|byte| byte.count_ones()).sum();
    let zeros = mask.iter().rposition(|byte| *byte != 0).map_or(0, |last| {
        mask.get(..last).unwrap_or_default().iter().map(|byte| byte.count_zeros()).sum::<u32>()
            + mask.get(last).map_or(0, |byte| byte.leading_ones().abs_diff(byte.count_ones()))
    });
    (zeros == 0).then(|| u8::try_from(ones).ok())?
}

impl End {
    /// Whether a packet with this address satisfies the condition.
    pub fn allows(&self, ip: IpAddr) -> bool {
        self.network.contains(ip) != self.is_excluded
    }
}
