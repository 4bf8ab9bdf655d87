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
    Output = 3,
    Forward = 2,
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
    InetProto = 12,
    InetService = 13,
    Ifname = 41,
}

impl KeyType {
    /// Length in bytes, without padding.
    pub(super) fn len(self) -> usize {
        match self {
            KeyType::Ipv4Addr => 4,
            KeyType::Ipv6Addr => 16,
            KeyType::EtherAddr => 6,
            KeyType::InetProto => 1,
            KeyType::InetService => 2,
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

    /// A key of a protocol above IP (by its number) and a port: `tcp . 80`.
    pub fn port(protocol: u8, port: u16) -> Self {
        Key { bytes: Vec::new(), text: String::new() }.and_port(protocol, port)
    }

    /// `self . MAC`
    #[must_use]
    pub fn and_mac(self, mac: Mac) -> Self {
        self.and(&mac.0, &mac)
    }

    /// `self . PROTOCOL . PORT`
    #[must_use]
    pub fn and_port(self, protocol: u8, port: u16) -> Self {
        self.and(&[protocol], &protocol_name(protocol)).and(&port.to_be_bytes(), &port)
    }

    /// `self . PORT`
    #[must_use]
    pub fn and_service(self, port: u16) -> Self {
        self.and(&port.to_be_bytes(), &port)
    }

    /// `self . "NAME"`
    #[must_use]
    pub fn and_ifname(self, name: &str) -> Self {
        let other = Key::ifname(name);
        self.and(&other.bytes, &other.text)
    }

    fn and(mut self, part: &[u8], text: &dyn fmt::Display) -> Self {
        self.bytes.extend_from_slice(part);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        let separator = if self.text.is_empty() { "" } else { " . " };
        self.text = format!("{}{separator}{text}", self.text);
        self
    }

    /// The name of an interface, of a key that was made with [`Key::ifname`].
    pub fn as_ifname(&self) -> Option<String> {
        let name = attr::text(&self.bytes);
        (self.bytes.len() == KeyType::Ifname.len() && !name.is_empty()).then_some(name)
    }

    /// Protocol and port at the end of a key that was made with [`Key::and_port`], and the
    /// address in front of them, if there is one.
    pub fn as_port(&self) -> Option<(Option<IpAddr>, u8, u16)> {
        let (front, end) = self.bytes.split_at_checked(self.bytes.len().checked_sub(8)?)?;
        let [protocol, 0, 0, 0, high, low, 0, 0] = *end else { return None };
        let addr = match front.len() {
            0 => None,
            _ => Some(address(front)?),
        };
        Some((addr, protocol, u16::from_be_bytes([high, low])))
    }

    /// The address of a key that was made with [`Key::ip`].
    pub fn as_ip(&self) -> Option<IpAddr> {
        address(&self.bytes)
    }

    /// Name and hardware address of a key that was made with [`Key::ifname`] and
    /// [`Key::and_mac`].
    pub fn as_ifname_and_mac(&self) -> Option<(String, Mac)> {
        let (name, mac) = self.bytes.split_at_checked(KeyType::Ifname.len())?;
        Some((attr::text(name), Mac(mac.get(..6)?.try_into().ok()?)))
    }

    /// Address and port of a key (or value) that was made with [`Key::ip`] and
    /// [`Key::and_service`].
    pub fn as_service(&self) -> Option<(IpAddr, u16)> {
        let (front, end) = self.bytes.split_at_checked(self.bytes.len().checked_sub(4)?)?;
        let [high, low, 0, 0] = *end else { return None };
        Some((address(front)?, u16::from_be_bytes([high, low])))
    }

    /// The kernel has no types: the text, for messages only, is a guess.
    pub(super) fn from_kernel(bytes: &[u8]) -> Self {
        let name = attr::text(bytes.get(..KeyType::Ifname.len()).unwrap_or_default());
        let mut key = Key { bytes: bytes.to_vec(), text: String::new() };
        key.text = match (address(bytes), key.as_port()) {
            _ if !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic()) => format!("\"{name}\""),
            (Some(addr), _) => addr.to_string(),
            (_, Some((addr, protocol, port))) => {
                let addr = addr.map(|addr| format!("{addr} . ")).unwrap_or_default();
                format!("{addr}{} . {port}", protocol_name(protocol))
            }
            _ => format!("{bytes:02x?}"),
        };
        key
    }

    /// The bytes, as the kernel compares them.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The address that these bytes are by their number.
fn address(bytes: &[u8]) -> Option<IpAddr> {
    match (<[u8; 4]>::try_from(bytes), <[u8; 16]>::try_from(bytes)) {
        (Ok(v4), _) => Some(v4.into()),
        (_, Ok(v6)) => Some(v6.into()),
        _ => None,
    }
}

/// As /etc/protocols has it, for those with ports.
pub fn protocol_name(number: u8) -> String {
    match i32::from(number) {
        libc::IPPROTO_TCP => "tcp".to_owned(),
        libc::IPPROTO_UDP => "udp".to_owned(),
        libc::IPPROTO_SCTP => "sctp".to_owned(),
        other => other.to_string(),
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
    /// What another map says for the key; made like a key.
    pub data: Option<Key>,
    /// Comment, at most 128 bytes; empty for none.
    pub comment: String,
}

impl Element {
    /// An element of a set.
    pub fn new(key: Key, comment: impl Into<String>) -> Self {
        Element { key, verdict: None, data: None, comment: comment.into() }
    }

    /// An element of a map with values.
    pub fn mapped(key: Key, data: Key, comment: impl Into<String>) -> Self {
        Element { data: Some(data), ..Element::new(key, comment) }
    }

    /// From the attributes of an element in a reply (`NFTA_SET_ELEM_*`).
    pub(super) fn parse(attrs: &[u8]) -> Option<Self> {
        let key = attr::find(attr::find(attrs, 1)?, 1)?;
        let data = attr::find(attrs, 2).unwrap_or_default();
        Some(Element {
            key: Key::from_kernel(key),
            verdict: attr::find(data, 2).and_then(Verdict::parse),
            data: attr::find(data, 1).map(Key::from_kernel),
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

    #[test]
    fn ports_go_there_and_back() {
        let v6: IpAddr = "fd00::1".parse().unwrap();
        for (key, text) in [
            (Key::port(6, 8080), "tcp . 8080"),
            (Key::ip([10, 0, 0, 1].into()).and_port(17, 53), "10.0.0.1 . udp . 53"),
            (Key::ip(v6).and_port(132, 65535), "fd00::1 . sctp . 65535"),
        ] {
            assert_eq!(key.to_string(), text);
            let back = Key::from_kernel(key.bytes());
            assert_eq!(back.to_string(), text);
            assert_eq!(back.as_port(), key.as_port());
        }
        assert_eq!(Key::port(6, 80).as_port(), Some((None, 6, 80)));
        assert_eq!(Key::ip(v6).and_service(80).as_service(), Some((v6, 80)));
        for short in [&[][..], &[1, 2, 3], &[6, 0, 0, 1, 0, 80, 0, 0], &[9; 30]] {
            assert_eq!(Key::from_kernel(short).as_port(), None);
        }
    }
}
