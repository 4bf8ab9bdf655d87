//! The expressions of rules. A rule is a small program for a machine with registers; the
//! functions of [`Expr`] are its instructions, named as `nft --debug=netlink` prints them.

use crate::uapi::nf_tables::*;
use crate::uapi::nfnetlink::{NF_ACCEPT, NF_DROP, NFPROTO_IPV4, NFPROTO_IPV6};
use crate::wire::{Attributes, Writer};

/// The first register of 16 bytes (`NFT_REG_1`); what most rules need is one.
pub const REG1: u32 = NFT_REG_1;
/// The second register.
pub const REG2: u32 = NFT_REG_2;

/// Four bytes of the registers (`NFT_REG32_00` and so on): [`REG1`] is words 0 to 3, [`REG2`]
/// words 4 to 7. The parts of a concatenation stand side by side.
pub const fn word(number: u32) -> u32 {
    NFT_REG32_00 + number
}

/// The fate of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // as in nft(8), "VERDICT STATEMENTS"
pub enum Verdict {
    Drop,
    Accept,
    Return,
    Jump(String),
    Goto(String),
}

impl Verdict {
    /// `NF_DROP`, `NF_ACCEPT` (linux/netfilter.h), `NFT_*` (linux/netfilter/nf_tables.h).
    fn code(&self) -> i32 {
        match self {
            Verdict::Drop => NF_DROP,
            Verdict::Accept => NF_ACCEPT,
            Verdict::Jump(_) => NFT_JUMP,
            Verdict::Goto(_) => NFT_GOTO,
            Verdict::Return => NFT_RETURN,
        }
    }

    /// Writes the attribute `NFTA_DATA_VERDICT`.
    pub(super) fn write(&self, w: &mut Writer) {
        w.nest(NFTA_DATA_VERDICT, |w| {
            w.u32_be(NFTA_VERDICT_CODE, self.code().cast_unsigned());
            if let Verdict::Jump(chain) | Verdict::Goto(chain) = self {
                w.text(NFTA_VERDICT_CHAIN, chain);
            }
        });
    }

    /// From the attributes `NFTA_VERDICT_*`.
    pub(super) fn parse(attrs: Attributes<'_>) -> Option<Self> {
        let chain = || attrs.text(NFTA_VERDICT_CHAIN);
        match attrs.u32_be(NFTA_VERDICT_CODE)?.cast_signed() {
            NF_DROP => Some(Verdict::Drop),
            NF_ACCEPT => Some(Verdict::Accept),
            NFT_JUMP => Some(Verdict::Jump(chain()?)),
            NFT_GOTO => Some(Verdict::Goto(chain()?)),
            NFT_RETURN => Some(Verdict::Return),
            _ => None,
        }
    }
}

/// The header that a payload offset counts from (`NFT_PAYLOAD_*_HEADER`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
#[repr(u32)]
pub enum Header {
    Link = NFT_PAYLOAD_LL_HEADER,
    Network = NFT_PAYLOAD_NETWORK_HEADER,
    Transport = NFT_PAYLOAD_TRANSPORT_HEADER,
}

/// A property of a packet beside its bytes (`NFT_META_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
#[repr(u32)]
pub enum Meta {
    Protocol = NFT_META_PROTOCOL,
    Iifname = NFT_META_IIFNAME,
    Oifname = NFT_META_OIFNAME,
    Nfproto = NFT_META_NFPROTO,
    L4proto = NFT_META_L4PROTO,
}

/// One instruction of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expr {
    pub(super) name: &'static str,
    pub(super) data: Data,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Data {
    Meta { key: Meta, register: u32 },
    Payload { header: Header, offset: u32, len: u32, register: u32 },
    Bitwise { register: u32, mask: Vec<u8> },
    Cmp { register: u32, equal: bool, value: Vec<u8> },
    Lookup { register: u32, set: String, kind: Lookup },
    Verdict(Verdict),
    CtStatus { register: u32 },
    CtState { register: u32 },
    AddressType { register: u32 },
    Dnat { ipv6: bool, addr: u32, port: u32 },
    Counter,
    Match { name: &'static str, revision: u32, info: Vec<u8> },
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lookup {
    In,
    NotIn,
    Value(u32),
}

impl Expr {
    /// `meta load KEY => reg N`
    pub fn meta(key: Meta, register: u32) -> Self {
        Expr { name: "meta", data: Data::Meta { key, register } }
    }

    /// `payload load LEN b @ HEADER + OFFSET => reg N`
    pub fn payload(header: Header, offset: u32, len: u32, register: u32) -> Self {
        Expr { name: "payload", data: Data::Payload { header, offset, len, register } }
    }

    /// `bitwise reg N = ( reg N & MASK ) ^ 0`
    pub fn mask(register: u32, mask: &[u8]) -> Self {
        Expr { name: "bitwise", data: Data::Bitwise { register, mask: mask.to_vec() } }
    }

    /// `cmp eq reg N VALUE`: goes on if they are equal.
    pub fn equal(register: u32, value: &[u8]) -> Self {
        Expr { name: "cmp", data: Data::Cmp { register, equal: true, value: value.to_vec() } }
    }

    /// `cmp neq reg N VALUE`: goes on if they differ.
    pub fn differ(register: u32, value: &[u8]) -> Self {
        Expr { name: "cmp", data: Data::Cmp { register, equal: false, value: value.to_vec() } }
    }

    /// `lookup reg N set SET`: goes on if it is in the set.
    pub fn in_set(register: u32, set: &str) -> Self {
        Self::lookup(register, set, Lookup::In)
    }

    /// `lookup reg N set SET 0x1`: goes on if it isn't in the set.
    pub fn not_in_set(register: u32, set: &str) -> Self {
        Self::lookup(register, set, Lookup::NotIn)
    }

    /// `lookup reg N set SET dreg M`: goes on with what the map says, if it has the key.
    pub fn map(register: u32, map: &str, into: u32) -> Self {
        Self::lookup(register, map, Lookup::Value(into))
    }

    fn lookup(register: u32, set: &str, kind: Lookup) -> Self {
        Expr { name: "lookup", data: Data::Lookup { register, set: set.to_owned(), kind } }
    }

    /// `immediate reg 0 VERDICT`
    pub fn verdict(verdict: Verdict) -> Self {
        Expr { name: "immediate", data: Data::Verdict(verdict) }
    }

    /// The statement `masquerade`.
    pub fn masquerade() -> Self {
        Expr { name: "masq", data: Data::None }
    }

    /// `ct load status => reg N`: `IPS_*` (linux/netfilter/nf_conntrack_common.h), a number
    /// in host byte order.
    pub fn ct_status(register: u32) -> Self {
        Expr { name: "ct", data: Data::CtStatus { register } }
    }

    /// `ct load state => reg N`: bits of `NF_CT_STATE_BIT`
    /// (linux/netfilter/nf_conntrack_common.h), a number in host byte order.
    pub fn ct_state(register: u32) -> Self {
        Expr { name: "ct", data: Data::CtState { register } }
    }

    /// `fib daddr type => reg N`: what the routing tables make of the destination
    /// (`RTN_LOCAL` …, linux/rtnetlink.h), a number in host byte order.
    pub fn destination_type(register: u32) -> Self {
        Expr { name: "fib", data: Data::AddressType { register } }
    }

    /// `nat dnat ip addr_min reg N proto_min reg M`
    pub fn dnat(ipv6: bool, addr: u32, port: u32) -> Self {
        Expr { name: "nat", data: Data::Dnat { ipv6, addr, port } }
    }

    /// As `NFTA_LIST_ELEM` with `NFTA_EXPR_NAME` and `NFTA_EXPR_DATA`.
    pub(super) fn write(&self, w: &mut Writer) {
        w.nest(NFTA_LIST_ELEM, |w| {
            w.text(NFTA_EXPR_NAME, self.name);
            w.nest(NFTA_EXPR_DATA, |w| self.data.write(w));
        });
    }
}

impl Data {
    fn write(&self, w: &mut Writer) {
        match self {
            Data::Meta { key, register } => {
                w.u32_be(NFTA_META_DREG, *register);
                w.u32_be(NFTA_META_KEY, *key as u32);
            }
            Data::Payload { header, offset, len, register } => {
                w.u32_be(NFTA_PAYLOAD_DREG, *register);
                w.u32_be(NFTA_PAYLOAD_BASE, *header as u32);
                w.u32_be(NFTA_PAYLOAD_OFFSET, *offset);
                w.u32_be(NFTA_PAYLOAD_LEN, *len);
            }
            Data::Bitwise { register, mask } => {
                w.u32_be(NFTA_BITWISE_SREG, *register);
                w.u32_be(NFTA_BITWISE_DREG, *register);
                w.u32_be(NFTA_BITWISE_LEN, u32::try_from(mask.len()).unwrap_or(0));
                w.nest(NFTA_BITWISE_MASK, |w| w.bytes(NFTA_DATA_VALUE, mask));
                w.nest(NFTA_BITWISE_XOR, |w| w.bytes(NFTA_DATA_VALUE, &vec![0; mask.len()]));
            }
            Data::Cmp { register, equal, value } => {
                w.u32_be(NFTA_CMP_SREG, *register);
                w.u32_be(NFTA_CMP_OP, if *equal { NFT_CMP_EQ } else { NFT_CMP_NEQ });
                w.nest(NFTA_CMP_DATA, |w| w.bytes(NFTA_DATA_VALUE, value));
            }
            Data::Lookup { register, set, kind } => {
                w.text(NFTA_LOOKUP_SET, set);
                w.u32_be(NFTA_LOOKUP_SREG, *register);
                match kind {
                    Lookup::In => {}
                    Lookup::NotIn => w.u32_be(NFTA_LOOKUP_FLAGS, NFT_LOOKUP_F_INV),
                    Lookup::Value(into) => w.u32_be(NFTA_LOOKUP_DREG, *into),
                }
            }
            Data::Verdict(verdict) => {
                w.u32_be(NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT);
                w.nest(NFTA_IMMEDIATE_DATA, |w| verdict.write(w));
            }
            Data::CtStatus { register } => {
                w.u32_be(NFTA_CT_DREG, *register);
                w.u32_be(NFTA_CT_KEY, NFT_CT_STATUS);
            }
            Data::CtState { register } => {
                w.u32_be(NFTA_CT_DREG, *register);
                w.u32_be(NFTA_CT_KEY, NFT_CT_STATE);
            }
            Data::AddressType { register } => {
                w.u32_be(NFTA_FIB_DREG, *register);
                w.u32_be(NFTA_FIB_RESULT, NFT_FIB_RESULT_ADDRTYPE);
                w.u32_be(NFTA_FIB_FLAGS, NFTA_FIB_F_DADDR);
            }
            Data::Dnat { ipv6, addr, port } => {
                let family = if *ipv6 { NFPROTO_IPV6 } else { NFPROTO_IPV4 };
                w.u32_be(NFTA_NAT_TYPE, NFT_NAT_DNAT);
                w.u32_be(NFTA_NAT_FAMILY, family.into());
                w.u32_be(NFTA_NAT_REG_ADDR_MIN, *addr);
                w.u32_be(NFTA_NAT_REG_PROTO_MIN, *port);
            }
            Data::Counter => {
                w.u64_be(NFTA_COUNTER_BYTES, 0);
                w.u64_be(NFTA_COUNTER_PACKETS, 0);
            }
            Data::Match { name, revision, info } => {
                w.text(NFTA_MATCH_NAME, name);
                w.u32_be(NFTA_MATCH_REV, *revision);
                w.bytes(NFTA_MATCH_INFO, info);
            }
            Data::None => {}
        }
    }
}

/// The verdict of an `immediate`, from its data.
pub(super) fn immediate_verdict(data: Attributes<'_>) -> Option<Verdict> {
    Verdict::parse(data.nested(NFTA_IMMEDIATE_DATA)?.nested(NFTA_DATA_VERDICT)?)
}
