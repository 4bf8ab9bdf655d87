//! Keys and values of sets and maps.

use std::fmt;
use std::net::IpAddr;

use crate::link::Mac;
use crate::wire;

/// One part of a key. The numbers are the `nft` command's (`enum datatypes`), which the kernel keeps for `nft list`.
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
    /// Returns the length in bytes, without padding.
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

/// A key in a set, or a value of a map. Parts of a concatenation are padded to four bytes. Two keys are equal if their
/// bytes are.
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

    /// The concatenation `self . MAC`.
    #[must_use]
    pub fn and_mac(self, mac: Mac) -> Self {
        self.and(&mac.0, &mac)
    }

    /// `self . PROTOCOL . PORT`
    #[must_use]
    pub fn and_port(self, protocol: u8, port: u16) -> Self {
        self.and(&[protocol], &protocol_name(protocol)).and(&port.to_be_bytes(), &port)
    }

    /// The concatenation `self . PORT`.
    #[must_use]
    pub fn and_service(self, port: u16) -> Self {
        self.and(&port.to_be_bytes(), &port)
    }

    /// The concatenation `self . "NAME"`.
    #[must_use]
    pub fn and_ifname(self, name: &str) -> Self {
        let other = Key::ifname(name);
        self.and(&other.bytes, &other.text)
    }

    /// Appends a part, padded to four bytes, and its text.
    fn and(mut self, part: &[u8], text: &dyn fmt::Display) -> Self {
        self.bytes.extend_from_slice(part);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        let separator = if self.text.is_empty() { "" } else { " . " };
        self.text = format!("{}{separator}{text}", self.text);
        self
    }

    /// Returns the name of an interface, from a key that was made with [`Key::ifname`]. `None` if the length is
    /// another.
    pub fn as_ifname(&self) -> Option<String> {
        let name = wire::text(&self.bytes);
        (self.bytes.len() == KeyType::Ifname.len() && !name.is_empty()).then_some(name)
    }

    /// Returns the name of the interface that a key begins with.
    pub fn first_ifname(&self) -> String {
        wire::text(self.bytes.get(..KeyType::Ifname.len()).unwrap_or(&self.bytes))
    }

    /// Returns protocol and port at the end of a key that was made with [`Key::and_port`], and the address in front of
    /// them, if any. `None` if the bytes are those of no such key.
    pub fn as_port(&self) -> Option<(Option<IpAddr>, u8, u16)> {
        let (front, end) = self.bytes.split_at_checked(self.bytes.len().checked_sub(8)?)?;
        let [protocol, 0, 0, 0, high, low, 0, 0] = *end else { return None };
        let addr = match front.len() {
            0 => None,
            _ => Some(wire::ip(front)?),
        };
        Some((addr, protocol, u16::from_be_bytes([high, low])))
    }

    /// Returns the address of a key that was made with [`Key::ip`]. `None` if the length is another.
    pub fn as_ip(&self) -> Option<IpAddr> {
        wire::ip(&self.bytes)
    }

    /// Returns name and hardware address of a key that was made with [`Key::ifname`] and [`Key::and_mac`]. `None` if it
    /// is too short.
    pub fn as_ifname_and_mac(&self) -> Option<(String, Mac)> {
        let (name, mac) = self.bytes.split_at_checked(KeyType::Ifname.len())?;
        Some((wire::text(name), Mac(mac.get(..6)?.try_into().ok()?)))
    }

    /// Returns address and port of a key (or value) that was made with [`Key::ip`] and [`Key::and_service`]. `None` if
    /// the bytes are those of no such key.
    pub fn as_service(&self) -> Option<(IpAddr, u16)> {
        let (front, end) = self.bytes.split_at_checked(self.bytes.len().checked_sub(4)?)?;
        let [high, low, 0, 0] = *end else { return None };
        Some((wire::ip(front)?, u16::from_be_bytes([high, low])))
    }

    /// Returns the key of these bytes. The kernel doesn't tell types, so the key's text, for messages only, is a guess.
    pub(super) fn from_kernel(bytes: &[u8]) -> Self {
        let name = wire::text(bytes.get(..KeyType::Ifname.len()).unwrap_or_default());
        let mut key = Key { bytes: bytes.to_vec(), text: String::new() };
        key.text = match (wire::ip(bytes), key.as_port()) {
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

    /// Returns the bytes, as the kernel compares them.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Returns the name of a protocol with ports, as in /etc/protocols. Another one gets its number.
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

#[cfg(test)]
mod tests {
    use super::*;

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
