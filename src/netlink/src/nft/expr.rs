//! What rules are made of. A rule is a small program for a machine with registers; the
//! functions of [`Expr`] are its instructions, named as `nft --debug=netlink` prints them.

use super::attr::{self, Writer};

/// The first register of 16 bytes (`NFT_REG_1`); what most rules need is one.
pub const REG1: u32 = 1;
/// The second.
pub const REG2: u32 = 2;

const NFT_REG_VERDICT: u32 = 0;

/// Four bytes of the registers (`NFT_REG32_00` and so on): [`REG1`] is words 0 to 3, [`REG2`]
/// words 4 to 7. The parts of a concatenation stand side by side.
pub const fn word(number: u32) -> u32 {
    8 + number
}

/// What becomes of a packet.
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
            Verdict::Drop => 0,
            Verdict::Accept => 1,
            Verdict::Jump(_) => -3,
            Verdict::Goto(_) => -4,
            Verdict::Return => -5,
        }
    }

    /// As `NFTA_DATA_VERDICT`.
    pub(super) fn write(&self, w: &mut Writer) {
        w.nest(2, |w| {
            w.u32(1, self.code().cast_unsigned());
            if let Verdict::Jump(chain) | Verdict::Goto(chain) = self {
                w.text(2, chain);
            }
        });
    }

    /// From the attributes `NFTA_VERDICT_*`.
    pub(super) fn parse(attrs: &[u8]) -> Option<Self> {
        let chain = || attr::find_text(attrs, 2);
        match attr::find_u32(attrs, 1)?.cast_signed() {
            0 => Some(Verdict::Drop),
            1 => Some(Verdict::Accept),
            -3 => Some(Verdict::Jump(chain()?)),
            -4 => Some(Verdict::Goto(chain()?)),
            -5 => Some(Verdict::Return),
            _ => None,
        }
    }
}

/// Which header a payload offset counts from (`NFT_PAYLOAD_*_HEADER`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Header {
    Link = 0,
    Network = 1,
    Transport = 2,
}

/// What else is known of a packet (`NFT_META_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Meta {
    Iifname = 6,
    Oifname = 7,
    Nfproto = 15,
    L4proto = 16,
}

/// One instruction.
#[derive(Debug, Clone)]
pub struct Expr {
    name: &'static str,
    data: Data,
}

#[derive(Debug, Clone)]
enum Data {
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
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lookup {
    In,
    NotIn,
    Verdict,
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

    /// `lookup reg N set SET dreg 0`: does what the verdict map says.
    pub fn vmap(register: u32, map: &str) -> Self {
        Self::lookup(register, map, Lookup::Verdict)
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

    /// `masq`
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
        w.nest(1, |w| {
            w.text(1, self.name);
            w.nest(2, |w| self.data.write(w));
        });
    }
}

impl Data {
    fn write(&self, w: &mut Writer) {
        match self {
            Data::Meta { key, register } => {
                w.u32(1, *register);
                w.u32(2, *key as u32);
            }
            Data::Payload { header, offset, len, register } => {
                w.u32(1, *register);
                w.u32(2, *header as u32);
                w.u32(3, *offset);
                w.u32(4, *len);
            }
            Data::Bitwise { register, mask } => {
                w.u32(1, *register);
                w.u32(2, *register);
                w.u32(3, u32::try_from(mask.len()).unwrap_or(0));
                w.nest(4, |w| w.attr(1, mask));
                w.nest(5, |w| w.attr(1, &vec![0; mask.len()]));
            }
            Data::Cmp { register, equal, value } => {
                w.u32(1, *register);
                w.u32(2, u32::from(!equal));
                w.nest(3, |w| w.attr(1, value));
            }
            Data::Lookup { register, set, kind } => {
                w.text(1, set);
                w.u32(2, *register);
                match kind {
                    Lookup::In => {}
                    Lookup::NotIn => w.u32(5, 1),
                    Lookup::Verdict => w.u32(3, NFT_REG_VERDICT),
                    Lookup::Value(into) => w.u32(3, *into),
                }
            }
            Data::Verdict(verdict) => {
                w.u32(1, NFT_REG_VERDICT);
                w.nest(2, |w| verdict.write(w));
            }
            Data::CtStatus { register } => {
                const NFT_CT_STATUS: u32 = 2;
                w.u32(1, *register);
                w.u32(2, NFT_CT_STATUS);
            }
            Data::CtState { register } => {
                const NFT_CT_STATE: u32 = 0;
                w.u32(1, *register);
                w.u32(2, NFT_CT_STATE);
            }
            Data::AddressType { register } => {
                const NFT_FIB_RESULT_ADDRTYPE: u32 = 3;
                const NFTA_FIB_F_DADDR: u32 = 2;
                w.u32(1, *register);
                w.u32(2, NFT_FIB_RESULT_ADDRTYPE);
                w.u32(3, NFTA_FIB_F_DADDR);
            }
            Data::Dnat { ipv6, addr, port } => {
                const NFT_NAT_DNAT: u32 = 1;
                let family = if *ipv6 { libc::NFPROTO_IPV6 } else { libc::NFPROTO_IPV4 };
                w.u32(1, NFT_NAT_DNAT);
                w.u32(2, family.cast_unsigned());
                w.u32(3, *addr);
                w.u32(5, *port);
            }
            Data::None => {}
        }
    }
}

/// The verdict of an `immediate`, from its data.
pub(super) fn immediate_verdict(data: &[u8]) -> Option<Verdict> {
    Verdict::parse(attr::find(attr::find(data, 2)?, 2)?)
}

/// The comment of iptables' `-m comment`, from the data of a `match`: `NFTA_MATCH_NAME` and
/// `NFTA_MATCH_INFO`, the latter being `struct xt_comment_info`.
pub(super) fn xtables_comment(data: &[u8]) -> Option<String> {
    (attr::find_text(data, 1)? == "comment").then(|| attr::find_text(data, 3))?
}
