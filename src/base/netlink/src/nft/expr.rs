//! The expressions of rules. A rule is a small program for a machine with registers; the functions of [`Expr`] are its
//! instructions, named as `nft --debug=netlink` prints them.

use super::Family;
use crate::uapi::nf_tables::*;
use crate::uapi::nfnetlink::{NF_ACCEPT, NF_DROP};
use crate::wire::{Attributes, Writer};

/// The first register of 16 bytes (`NFT_REG_1`). Most rules need only this one.
pub const REG1: u32 = NFT_REG_1;
/// The second register of 16 bytes (`NFT_REG_2`).
pub const REG2: u32 = NFT_REG_2;

/// Four bytes of the registers (`NFT_REG32_00` and so on): [`REG1`] is words 0 to 3, [`REG2`] words 4 to 7. The parts
/// of a concatenation stand side by side.
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

    /// Reads a verdict (`NFTA_VERDICT_*`). `None` for one of a queue, and others that aren't known here.
    pub(super) fn parse(attrs: Attributes<'_>) -> Option<Self> {
        match attrs.u32_be(NFTA_VERDICT_CODE)?.cast_signed() {
            NF_DROP => Some(Verdict::Drop),
            NF_ACCEPT => Some(Verdict::Accept),
            NFT_JUMP => Some(Verdict::Jump(attrs.text(NFTA_VERDICT_CHAIN)?)),
            NFT_GOTO => Some(Verdict::Goto(attrs.text(NFTA_VERDICT_CHAIN)?)),
            NFT_RETURN => Some(Verdict::Return),
            _ => None,
        }
    }
}

/// The header that a payload offset counts from (`NFT_PAYLOAD_*_HEADER`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // as in nft(8), "RAW PAYLOAD EXPRESSION"
#[repr(u32)]
pub enum Header {
    Link = NFT_PAYLOAD_LL_HEADER,
    Network = NFT_PAYLOAD_NETWORK_HEADER,
    Transport = NFT_PAYLOAD_TRANSPORT_HEADER,
}

/// A property of a packet beside its bytes (`NFT_META_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // as in nft(8), "META EXPRESSIONS"
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
    pub(super) attributes: Vec<(u16, Value)>,
}

/// The value of an expression's attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Number(u32),
    Register(u32),
    Data(Vec<u8>),
    Verdict(Verdict),
    Text(String),
    Bytes(Vec<u8>),
    /// The attribute is not written. The kernel reports 0, or nothing if it is older.
    Zero,
    /// The attribute is neither written nor reported.
    Absent,
}
use Value::{Absent, Number, Register, Zero};

impl Expr {
    pub(super) fn new<const N: usize>(name: &'static str, attributes: [(u16, Value); N]) -> Self {
        Expr { name, attributes: attributes.into() }
    }

    /// `meta load KEY => reg N`
    pub fn meta(key: Meta, register: u32) -> Self {
        Expr::new("meta", [(NFTA_META_DREG, Register(register)), (NFTA_META_KEY, Number(key as u32))])
    }

    /// `meta set KEY with reg N`
    pub(super) fn meta_set(key: u32, register: u32) -> Self {
        Expr::new("meta", [(NFTA_META_KEY, Number(key)), (NFTA_META_SREG, Register(register))])
    }

    /// `payload load LEN b @ HEADER + OFFSET => reg N`
    pub fn payload(header: Header, offset: u32, len: u32, register: u32) -> Self {
        Expr::new(
            "payload",
            [
                (NFTA_PAYLOAD_DREG, Register(register)),
                (NFTA_PAYLOAD_BASE, Number(header as u32)),
                (NFTA_PAYLOAD_OFFSET, Number(offset)),
                (NFTA_PAYLOAD_LEN, Number(len)),
            ],
        )
    }

    /// `bitwise reg N = ( reg N & MASK ) ^ 0`
    pub fn mask(register: u32, mask: &[u8]) -> Self {
        Expr::new(
            "bitwise",
            [
                (NFTA_BITWISE_SREG, Register(register)),
                (NFTA_BITWISE_DREG, Register(register)),
                (NFTA_BITWISE_LEN, Number(u32::try_from(mask.len()).unwrap_or(0))),
                (NFTA_BITWISE_MASK, Value::Data(mask.to_vec())),
                (NFTA_BITWISE_XOR, Value::Data(vec![0; mask.len()])),
                (NFTA_BITWISE_OP, Zero),
            ],
        )
    }

    /// `cmp eq reg N VALUE`: goes on if they are equal.
    pub fn equal(register: u32, value: &[u8]) -> Self {
        Expr::cmp(register, NFT_CMP_EQ, value)
    }

    /// `cmp neq reg N VALUE`: goes on if they differ.
    pub fn differ(register: u32, value: &[u8]) -> Self {
        Expr::cmp(register, NFT_CMP_NEQ, value)
    }

    fn cmp(register: u32, op: u32, value: &[u8]) -> Self {
        let value = Value::Data(value.to_vec());
        let register = (NFTA_CMP_SREG, Register(register));
        Expr::new("cmp", [register, (NFTA_CMP_OP, Number(op)), (NFTA_CMP_DATA, value)])
    }

    /// `lookup reg N set SET`: goes on if the register's content is in the set.
    pub fn in_set(register: u32, set: &str) -> Self {
        Expr::lookup(register, set, Zero, Absent)
    }

    /// `lookup reg N set SET 0x1`: goes on if the register's content isn't in the set.
    pub fn not_in_set(register: u32, set: &str) -> Self {
        Expr::lookup(register, set, Number(NFT_LOOKUP_F_INV), Absent)
    }

    /// `lookup reg N set SET dreg M`: loads the map's value for the key. It goes on only if the map has the key.
    pub fn map(register: u32, map: &str, into: u32) -> Self {
        Expr::lookup(register, map, Zero, Register(into))
    }

    fn lookup(register: u32, set: &str, flags: Value, into: Value) -> Self {
        Expr::new(
            "lookup",
            [
                (NFTA_LOOKUP_SET, Value::Text(set.to_owned())),
                (NFTA_LOOKUP_SREG, Register(register)),
                (NFTA_LOOKUP_FLAGS, flags),
                (NFTA_LOOKUP_DREG, into),
            ],
        )
    }

    /// `immediate reg 0 VERDICT`
    pub fn verdict(verdict: Verdict) -> Self {
        let register = (NFTA_IMMEDIATE_DREG, Number(NFT_REG_VERDICT));
        Expr::new("immediate", [register, (NFTA_IMMEDIATE_DATA, Value::Verdict(verdict))])
    }

    /// Returns the statement `masquerade` of nft(8).
    pub fn masquerade() -> Self {
        Expr::new("masq", [])
    }

    /// `ct load status => reg N`: loads `IPS_*` (linux/netfilter/nf_conntrack_common.h) in host byte order.
    pub fn ct_status(register: u32) -> Self {
        Expr::new("ct", [(NFTA_CT_DREG, Register(register)), (NFTA_CT_KEY, Number(NFT_CT_STATUS))])
    }

    /// `ct load state => reg N`: loads `NF_CT_STATE_BIT` (linux/netfilter/nf_conntrack_common.h) in host byte order.
    pub fn ct_state(register: u32) -> Self {
        Expr::new("ct", [(NFTA_CT_DREG, Register(register)), (NFTA_CT_KEY, Number(NFT_CT_STATE))])
    }

    /// `fib daddr type => reg N`: loads the routing tables' type of the destination (`RTN_LOCAL` …, linux/rtnetlink.h)
    /// in host byte order.
    pub fn destination_type(register: u32) -> Self {
        let result = (NFTA_FIB_RESULT, Number(NFT_FIB_RESULT_ADDRTYPE));
        let register = (NFTA_FIB_DREG, Register(register));
        Expr::new("fib", [register, result, (NFTA_FIB_FLAGS, Number(NFTA_FIB_F_DADDR))])
    }

    /// `nat dnat ip addr_min reg N proto_min reg M`; `family` is that of the address.
    pub fn dnat(family: Family, addr: u32, port: u32) -> Self {
        Expr::new(
            "nat",
            [
                (NFTA_NAT_TYPE, Number(NFT_NAT_DNAT)),
                (NFTA_NAT_FAMILY, Number(family.number().into())),
                (NFTA_NAT_REG_ADDR_MIN, Register(addr)),
                (NFTA_NAT_REG_PROTO_MIN, Register(port)),
            ],
        )
    }

    /// `immediate reg N VALUE`
    pub fn immediate(register: u32, value: &[u8]) -> Self {
        let value = Value::Data(value.to_vec());
        Expr::new("immediate", [(NFTA_IMMEDIATE_DREG, Register(register)), (NFTA_IMMEDIATE_DATA, value)])
    }

    /// `nat snat ip addr_min reg N`; `family` is that of the address.
    pub fn snat(family: Family, addr: u32) -> Self {
        Expr::new(
            "nat",
            [
                (NFTA_NAT_TYPE, Number(NFT_NAT_SNAT)),
                (NFTA_NAT_FAMILY, Number(family.number().into())),
                (NFTA_NAT_REG_ADDR_MIN, Register(addr)),
            ],
        )
    }

    /// Writes `NFTA_LIST_ELEM` with `NFTA_EXPR_NAME` and `NFTA_EXPR_DATA`.
    pub(super) fn write(&self, w: &mut Writer) {
        w.nest(NFTA_LIST_ELEM, |w| {
            w.text(NFTA_EXPR_NAME, self.name);
            w.nest(NFTA_EXPR_DATA, |w| {
                self.attributes.iter().for_each(|(kind, value)| value.write(w, *kind));
            });
        });
    }
}

impl Value {
    fn write(&self, w: &mut Writer, kind: u16) {
        match self {
            Number(number) | Register(number) => w.u32_be(kind, *number),
            Value::Data(bytes) => w.nest(kind, |w| w.bytes(NFTA_DATA_VALUE, bytes)),
            Value::Verdict(verdict) => w.nest(kind, |w| verdict.write(w)),
            Value::Text(text) => w.text(kind, text),
            Value::Bytes(bytes) => w.bytes(kind, bytes),
            Zero | Absent => {}
        }
    }
}

/// Returns the verdict of an `immediate`, from its data. `None` if it loads a value.
pub(super) fn immediate_verdict(data: Attributes<'_>) -> Option<Verdict> {
    Verdict::parse(data.nested(NFTA_IMMEDIATE_DATA)?.nested(NFTA_DATA_VERDICT)?)
}
