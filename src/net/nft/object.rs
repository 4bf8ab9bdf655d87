//! What there is in nf_tables: tables, chains, sets and their elements, rules.

use std::fmt;
use std::net::IpAddr;

use super::attr;
use super::expr::{self, Verdict};
use crate::net::link::Mac;

/// The packets that a table sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4 and IPv6.
    Inet,
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// Frames that a bridge forwards.
    Bridge,
}

impl Family {
    /// `NFPROTO_*`, linux/netfilter.h.
    pub(super) fn number(self) -> u8 {
        match self {
            Family::Inet => 1,
            Family::Ipv4 => 2,
            Family::Bridge => 7,
            Family::Ipv6 => 10,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Inet => "inet",
            Family::Ipv4 => "ip",
            Family::Ipv6 => "ip6",
            Family::Bridge => "bridge",
        })
    }
}

/// A table's name. Displayed as `inet cnimble`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table<'a> {
    /// Family.
    pub family: Family,
    /// Name.
    pub name: &'a str,
}

impl<'a> Table<'a> {
    /// The table `family name`.
    pub const fn new(family: Family, name: &'a str) -> Self {
        Table { family, name }
    }
    /// A chain in it.
    pub const fn chain(self, name: &'a str) -> Chain<'a> {
        Chain { table: self, name }
    }
    /// A set or map in it.
    pub const fn set(self, name: &'a str) -> Set<'a> {
        Set { table: self, name }
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family, self.name)
    }
}

/// A chain's name. Displayed as `inet cnimble postrouting`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chain<'a> {
    /// Its table.
    pub table: Table<'a>,
    /// Name.
    pub name: &'a str,
}

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.table, self.name)
    }
}

/// A set's or map's name. Displayed as `inet cnimble ports`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Set<'a> {
    /// Its table.
    pub table: Table<'a>,
    /// Name.
    pub name: &'a str,
}

impl fmt::Display for Set<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.table, self.name)
    }
}

/// Where a base chain gets its packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hook {
    /// `filter` or `nat`.
    pub kind: &'static str,
    /// `NF_INET_*` or `NF_BR_*`: the numbers of both agree.
    pub hook: HookPoint,
    /// Order among the chains at this hook, lower first; nf_tables(8) has names for some.
    pub priority: i32,
}

/// The hooks that we use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // as in nft(8)
pub enum HookPoint {
    Prerouting = 0,
    Postrouting = 4,
}

/// One part of a key. The numbers are those of the `nft` command (`enum datatypes` in its
/// sources): the kernel keeps them for it, so that `nft list` shows addresses as addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // as in nft(8), "DATA TYPES"
pub enum KeyType {
    Ipv4Addr = 7,
    Ipv6Addr = 8,
    EtherAddr = 9,
    Ifname = 41,
}

impl KeyType {
    /// Length in bytes, without padding.
    pub(super) fn len(self) -> usize {
        match self {
            KeyType::Ipv4Addr => 4,
            KeyType::Ipv6Addr => 16,
            KeyType::EtherAddr => 6,
            KeyType::Ifname => 16,
        }
    }
}

/// A set or map to make.
#[derive(Debug, Clone, Copy)]
pub struct SetType<'a> {
    /// The key: one part, or several for a concatenation (`ifname . ether_addr`).
    pub key: &'a [KeyType],
    /// Whether it maps keys to verdicts (`: verdict`).
    pub verdicts: bool,
}

/// A key in a set. Parts of a concatenation are padded to four bytes.
#[derive(Clone)]
pub struct Key {
    bytes: Vec<u8>,
    text: String,
}

impl Key {
    /// A key of one address.
    pub fn ip(ip: IpAddr) -> Self {
        let bytes = match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        Key { bytes, text: ip.to_string() }
    }

    /// A key of one interface name.
    pub fn ifname(name: &str) -> Self {
        let mut bytes = name.as_bytes().to_vec();
        bytes.resize(KeyType::Ifname.len(), 0);
        Key { bytes, text: format!("\"{name}\"") }
    }

    /// `self . MAC`
    #[must_use]
    pub fn and_mac(mut self, mac: Mac) -> Self {
        self.bytes.extend_from_slice(&mac.0);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self.text = format!("{} . {mac}", self.text);
        self
    }

    /// The kernel has no types: the text, for messages only, is a guess.
    pub(super) fn from_kernel(bytes: &[u8]) -> Self {
        let name = attr::text(bytes.get(..KeyType::Ifname.len()).unwrap_or_default());
        let text = match (<[u8; 4]>::try_from(bytes), <[u8; 16]>::try_from(bytes)) {
            (Ok(v4), _) => IpAddr::from(v4).to_string(),
            _ if !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic()) => format!("\"{name}\""),
            (_, Ok(v6)) => IpAddr::from(v6).to_string(),
            _ => format!("{bytes:02x?}"),
        };
        Key { bytes: bytes.to_vec(), text }
    }

    /// The bytes, as the kernel compares them.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Key {}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({}, {:?})", self.text, self.bytes)
    }
}

/// An element of a set or map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    /// Key.
    pub key: Key,
    /// What a verdict map says for the key; `None` in a set.
    pub verdict: Option<Verdict>,
    /// Comment, at most 128 bytes; empty for none.
    pub comment: String,
}

impl Element {
    /// An element of a set.
    pub fn new(key: Key, comment: impl Into<String>) -> Self {
        Element { key, verdict: None, comment: comment.into() }
    }

    /// From the attributes of an element in a reply (`NFTA_SET_ELEM_*`).
    pub(super) fn parse(attrs: &[u8]) -> Option<Self> {
        let key = attr::find(attr::find(attrs, 1)?, 1)?;
        Some(Element {
            key: Key::from_kernel(key),
            verdict: attr::find(attrs, 2).and_then(|data| attr::find(data, 2)).and_then(Verdict::parse),
            comment: attr::find(attrs, 6).and_then(comment).unwrap_or_default(),
        })
    }
}

/// A rule as the kernel lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The chain it is in.
    pub chain: String,
    /// What it is deleted by.
    pub handle: u64,
    /// Comment; empty for none. A comment given to iptables counts as well.
    pub comment: String,
    expressions: Vec<(String, Vec<u8>)>,
}

impl Rule {
    /// From the attributes of a reply (`NFTA_RULE_*`).
    pub(super) fn parse(attrs: &[u8]) -> Option<Self> {
        let expressions: Vec<(String, Vec<u8>)> = attr::find(attrs, 4)
            .map(|list| {
                attr::attrs(list)
                    .filter_map(|(_, expression)| {
                        let data = attr::find(expression, 2).unwrap_or_default();
                        Some((attr::find_text(expression, 1)?, data.to_vec()))
                    })
                    .collect()
            })
            .unwrap_or_default();
        let own = attr::find(attrs, 7).and_then(comment);
        let comment = own.or_else(|| {
            expressions.iter().find_map(|(name, data)| match name.as_str() {
                "match" => expr::xtables_comment(data),
                _ => None,
            })
        });
        Some(Rule {
            chain: attr::find_text(attrs, 2)?,
            handle: attr::find_u64(attrs, 3)?,
            comment: comment.unwrap_or_default(),
            expressions,
        })
    }

    /// The chain that it jumps or goes to.
    pub fn target(&self) -> Option<String> {
        self.expressions.iter().filter(|(name, _)| name == "immediate").find_map(|(_, data)| {
            match expr::immediate_verdict(data)? {
                Verdict::Jump(chain) | Verdict::Goto(chain) => Some(chain),
                _ => None,
            }
        })
    }

    /// Whether it looks something up in this set.
    pub fn uses_set(&self, set: &str) -> bool {
        self.expressions
            .iter()
            .any(|(name, data)| name == "lookup" && attr::find_text(data, 1).as_deref() == Some(set))
    }

    /// Whether it has an expression of this name (`masq`, `payload` …).
    pub fn has(&self, expression: &str) -> bool {
        self.expressions.iter().any(|(name, _)| name == expression)
    }

    /// The constants that it compares with.
    pub fn constants(&self) -> impl Iterator<Item = &[u8]> {
        self.expressions
            .iter()
            .filter(|(name, _)| name == "cmp")
            .filter_map(|(_, data)| attr::find(attr::find(data, 3)?, 1))
    }
}

/// The comment in user data: a list of one-byte kind, one-byte length, value; kind 0 is the
/// comment for rules and elements alike (libnftnl/udata.h).
fn comment(userdata: &[u8]) -> Option<String> {
    let mut rest = userdata;
    while let [kind, length, tail @ ..] = rest {
        let value = tail.get(..usize::from(*length))?;
        if *kind == 0 {
            return Some(attr::text(value));
        }
        rest = tail.get(usize::from(*length)..)?;
    }
    None
}

/// User data with a comment, cut to what its length byte can say.
pub(super) fn comment_userdata(comment: &str) -> Vec<u8> {
    let text = comment.as_bytes().get(..254).unwrap_or(comment.as_bytes());
    let mut out = vec![0, u8::try_from(text.len() + 1).unwrap_or(u8::MAX)];
    out.extend_from_slice(text);
    out.push(0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_go_there_and_back() {
        assert_eq!(comment(&comment_userdata("net: a")).as_deref(), Some("net: a"));
        // Something else in front of it.
        let mut both = vec![2, 1, 0xff];
        both.extend(comment_userdata("x"));
        assert_eq!(comment(&both).as_deref(), Some("x"));
        assert_eq!(comment(&[0, 200, b'x']), None);
        assert_eq!(comment_userdata(&"x".repeat(300)).len(), 257);
    }

    /// What the kernel sends is read without trust: bytes cut off or changed anywhere give
    /// fewer attributes, never a panic.
    #[test]
    fn broken_objects_can_be_read() {
        use super::super::expr::{Expr, REG1};
        let mut w = attr::Writer::default();
        w.message(0, 0, 0, 0, |w| {
            w.text(2, "chain");
            w.u64(3, 7);
            let rule = [
                Expr::equal(REG1, b"abc"),
                Expr::in_set(REG1, "s"),
                Expr::verdict(Verdict::Jump("c".into())),
            ];
            w.nest(4, |w| rule.iter().for_each(|expr| expr.write(w)));
            w.attr(7, &comment_userdata("a comment"));
        });
        w.message(0, 0, 0, 0, |w| {
            w.nest(1, |w| w.attr(1, &[10, 0, 0, 1]));
            w.nest(2, |w| Verdict::Goto("c".into()).write(w));
            w.attr(6, &comment_userdata("another"));
        });
        let bytes = w.finished().unwrap().to_vec();
        let read = |bytes: &[u8]| {
            for message in attr::messages(bytes) {
                if let Some(rule) = Rule::parse(message.attrs()) {
                    let _ = (rule.target(), rule.uses_set("s"), rule.constants().count());
                }
                let _ = Element::parse(message.attrs()).map(|element| element.key.to_string());
            }
        };
        let whole: Vec<_> = attr::messages(&bytes).collect();
        let rule = Rule::parse(whole[0].attrs()).unwrap();
        assert_eq!((rule.handle, rule.comment.as_str()), (7, "a comment"));
        assert_eq!(rule.target().as_deref(), Some("c"));
        assert_eq!(Element::parse(whole[1].attrs()).unwrap().key.to_string(), "10.0.0.1");
        for at in 0..bytes.len() {
            read(&bytes[..at]);
            for value in [0, 1, 2, 5, 0x7f, 0x80, 0xff] {
                let mut broken = bytes.clone();
                broken[at] = value;
                read(&broken);
            }
        }
    }

    #[test]
    fn keys_are_padded() {
        let key = Key::ifname("veth1").and_mac(Mac([1, 2, 3, 4, 5, 6]));
        assert_eq!(key.bytes().len(), 24);
        assert_eq!(&key.bytes()[16..], &[1, 2, 3, 4, 5, 6, 0, 0]);
    }
}
