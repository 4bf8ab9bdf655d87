//! DHCPv4 messages (RFC 2131, section 2), options (RFC 2132), and long options (RFC 3396).

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use cnimble_netlink::link::Mac;

/// The codes of options.
pub(crate) mod code {
    pub(crate) const PAD: u8 = 0;
    pub(crate) const SUBNET_MASK: u8 = 1;
    pub(crate) const ROUTERS: u8 = 3;
    pub(crate) const NAME_SERVERS: u8 = 6;
    pub(crate) const HOST_NAME: u8 = 12;
    pub(crate) const DOMAIN_NAME: u8 = 15;
    pub(crate) const MTU: u8 = 26;
    pub(crate) const STATIC_ROUTES: u8 = 33;
    pub(crate) const REQUESTED_ADDRESS: u8 = 50;
    pub(crate) const LEASE_TIME: u8 = 51;
    pub(crate) const OVERLOAD: u8 = 52;
    pub(crate) const MESSAGE_TYPE: u8 = 53;
    pub(crate) const SERVER: u8 = 54;
    pub(crate) const REQUEST_LIST: u8 = 55;
    pub(crate) const MESSAGE: u8 = 56;
    pub(crate) const LARGEST_MESSAGE: u8 = 57;
    pub(crate) const RENEWAL: u8 = 58;
    pub(crate) const REBINDING: u8 = 59;
    pub(crate) const VENDOR_CLASS: u8 = 60;
    pub(crate) const CLIENT_ID: u8 = 61;
    pub(crate) const USER_CLASS: u8 = 77;
    pub(crate) const DOMAIN_SEARCH: u8 = 119;
    pub(crate) const CLASSLESS_ROUTES: u8 = 121;
    /// Microsoft's code for classless routes.
    pub(crate) const CLASSLESS_ROUTES_MS: u8 = 249;
    pub(crate) const END: u8 = 255;
}

/// The type of a message (option 53).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    Discover = 1,
    Offer = 2,
    Request = 3,
    Decline = 4,
    Ack = 5,
    Nak = 6,
    Release = 7,
}

impl Type {
    /// Returns the type with this number, or `None`.
    fn from_number(number: u8) -> Option<Type> {
        use Type::{Ack, Decline, Discover, Nak, Offer, Release, Request};
        [Discover, Offer, Request, Decline, Ack, Nak, Release].into_iter().find(|kind| *kind as u8 == number)
    }

    /// Returns the type's name in RFC 2131 without its prefix `DHCP`, such as `DISCOVER`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Type::Discover => "DISCOVER",
            Type::Offer => "OFFER",
            Type::Request => "REQUEST",
            Type::Decline => "DECLINE",
            Type::Ack => "ACK",
            Type::Nak => "NAK",
            Type::Release => "RELEASE",
        }
    }
}

/// The bytes in front of the options.
const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// The length of the fixed fields in bytes.
const HEADER: usize = 236;
/// The shortest message that is sent, in bytes: BOOTP's size (RFC 1542, section 2.1). Some relays drop shorter ones.
const SHORTEST: usize = 300;
/// The flag that asks a server to broadcast its answer.
const BROADCAST: u16 = 0x8000;

/// The destination of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum To {
    /// All hosts of the link.
    Everybody,
    /// This server, by way of this hardware address.
    Server(Ipv4Addr, Mac),
}

/// A message of the client.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    pub(crate) kind: Type,
    pub(crate) to: To,
    pub(crate) xid: u32,
    /// The time since the exchange began, in seconds.
    pub(crate) seconds: u16,
    /// Whether the server must broadcast its answer.
    pub(crate) broadcast: bool,
    /// The client's present address, or 0.0.0.0.
    pub(crate) address: Ipv4Addr,
    pub(crate) mac: Mac,
    /// The options in their order, after the type. A long value is split (RFC 3396).
    pub(crate) options: Vec<(u8, Vec<u8>)>,
}

impl Question {
    /// Returns the bytes of the message.
    pub(crate) fn encode(&self) -> Vec<u8> {
        // The fields are BOOTREQUEST, Ethernet, six bytes of hardware address, and no hops.
        let mut bytes = vec![1, 1, 6, 0];
        bytes.extend_from_slice(&self.xid.to_be_bytes());
        bytes.extend_from_slice(&self.seconds.to_be_bytes());
        bytes.extend_from_slice(&if self.broadcast { BROADCAST } else { 0 }.to_be_bytes());
        bytes.extend_from_slice(&self.address.octets());
        bytes.resize(28, 0);
        bytes.extend_from_slice(&self.mac.0);
        bytes.resize(HEADER, 0);
        bytes.extend_from_slice(&COOKIE);
        bytes.extend_from_slice(&[code::MESSAGE_TYPE, 1, self.kind as u8]);
        for (code, value) in &self.options {
            // An option without a value is sent as well.
            let pieces = value.chunks(255).chain(value.is_empty().then_some(&[][..]));
            for piece in pieces {
                bytes.push(*code);
                bytes.push(u8::try_from(piece.len()).unwrap_or(u8::MAX));
                bytes.extend_from_slice(piece);
            }
        }
        bytes.push(code::END);
        bytes.resize(bytes.len().max(SHORTEST), code::PAD);
        bytes
    }
}

/// A message of a server.
#[derive(Debug, Clone)]
pub(crate) struct ServerMessage {
    pub(crate) kind: Type,
    pub(crate) xid: u32,
    /// The address that the server offers or assigns.
    pub(crate) address: Ipv4Addr,
    options: BTreeMap<u8, Vec<u8>>,
}

impl ServerMessage {
    /// Reads an answer to the client with this hardware address. `None` for any other message, for one without a type,
    /// and for types that only clients send.
    pub(crate) fn parse(bytes: &[u8], mac: Mac) -> Option<ServerMessage> {
        if *bytes.first()? != 2 || bytes.get(28..34)? != mac.0 || bytes.get(HEADER..HEADER + 4)? != COOKIE {
            return None;
        }
        let xid = u32::from_be_bytes(bytes.get(4..8)?.try_into().ok()?);
        let address: [u8; 4] = bytes.get(16..20)?.try_into().ok()?;
        let mut options = BTreeMap::new();
        read_options(bytes.get(HEADER + 4..)?, &mut options);
        // Options may continue in the fields for names of file and server.
        let overload = options.get(&code::OVERLOAD).and_then(|value: &Vec<u8>| value.first().copied());
        if overload.is_some_and(|bits| bits & 1 != 0) {
            read_options(bytes.get(108..HEADER)?, &mut options);
        }
        if overload.is_some_and(|bits| bits & 2 != 0) {
            read_options(bytes.get(44..108)?, &mut options);
        }
        let kind = match options.get(&code::MESSAGE_TYPE)?.as_slice() {
            [number] => Type::from_number(*number)?,
            _ => return None,
        };
        matches!(kind, Type::Offer | Type::Ack | Type::Nak).then_some(())?;
        Some(ServerMessage { kind, xid, address: address.into(), options })
    }

    /// Returns the value of an option, or `None` without the option.
    pub(crate) fn option(&self, code: u8) -> Option<&[u8]> {
        self.options.get(&code).map(Vec::as_slice)
    }

    /// Returns the value of an option with four bytes as a number. `None` without it, or for another length.
    pub(crate) fn number(&self, code: u8) -> Option<u32> {
        Some(u32::from_be_bytes(self.option(code)?.try_into().ok()?))
    }

    /// Returns the first address of an option, or `None`.
    pub(crate) fn address_of(&self, code: u8) -> Option<Ipv4Addr> {
        self.addresses(code).next()
    }

    /// Returns the addresses of an option, or none without it. Bytes that are left over are ignored.
    pub(crate) fn addresses(&self, code: u8) -> impl Iterator<Item = Ipv4Addr> {
        let value = self.option(code).unwrap_or_default();
        value.chunks_exact(4).filter_map(|four| <[u8; 4]>::try_from(four).ok()).map(Ipv4Addr::from)
    }
}

/// Adds the options in `bytes`. The parts of an option that occurs several times are joined (RFC 3396). An option that
/// is cut off ends the list.
fn read_options(mut bytes: &[u8], options: &mut BTreeMap<u8, Vec<u8>>) {
    loop {
        match bytes {
            [code::PAD, rest @ ..] => bytes = rest,
            [] | [code::END, ..] => return,
            [code, length, rest @ ..] => {
                let Some((value, behind)) = rest.split_at_checked(usize::from(*length)) else { return };
                options.entry(*code).or_default().extend_from_slice(value);
                bytes = behind;
            }
            [_] => return,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);

    pub(crate) fn answer(kind: Type, xid: u32, address: Ipv4Addr, options: &[(u8, &[u8])]) -> Vec<u8> {
        let options = options.iter().map(|(code, value)| (*code, value.to_vec())).collect();
        let unset = Ipv4Addr::UNSPECIFIED;
        let to = To::Everybody;
        let question =
            Question { kind, to, xid, seconds: 0, broadcast: false, address: unset, mac: MAC, options };
        let mut bytes = question.encode();
        bytes[0] = 2;
        bytes[16..20].copy_from_slice(&address.octets());
        bytes
    }

    #[test]
    fn a_truncated_answer_is_read_without_its_end() {
        let long = vec![7; 300];
        let server = [10, 0, 0, 1];
        let options =
            [(code::SERVER, &server[..]), (code::MESSAGE, &long), (code::LEASE_TIME, &[0, 0, 1, 0])];
        let address = Ipv4Addr::new(10, 0, 0, 9);
        let bytes = answer(Type::Ack, 77, address, &options);
        let read = ServerMessage::parse(&bytes, MAC).unwrap();
        assert_eq!((read.kind, read.xid, read.address), (Type::Ack, 77, address));
        assert_eq!(read.option(code::MESSAGE), Some(long.as_slice()));
        assert_eq!(read.number(code::LEASE_TIME), Some(256));
        assert_eq!(read.address_of(code::SERVER), Some(server.into()));
        assert!(ServerMessage::parse(&bytes, Mac([1; 6])).is_none());
        for length in 0..bytes.len() {
            let cut = ServerMessage::parse(&bytes[..length], MAC);
            assert!(length >= 243 || cut.is_none(), "{length}");
        }
        for kind in [Type::Discover, Type::Request, Type::Decline, Type::Release] {
            assert!(ServerMessage::parse(&answer(kind, 1, address, &[]), MAC).is_none(), "{kind:?}");
        }
    }

    #[test]
    fn options_continue_in_the_fields_for_names() {
        let mut bytes = answer(Type::Offer, 1, Ipv4Addr::LOCALHOST, &[(code::OVERLOAD, &[3])]);
        bytes[44..50].copy_from_slice(&[code::ROUTERS, 4, 10, 0, 0, 1]);
        bytes[108..112].copy_from_slice(&[code::MTU, 2, 5, 120]);
        let read = ServerMessage::parse(&bytes, MAC).unwrap();
        assert_eq!(read.address_of(code::ROUTERS), Some(Ipv4Addr::new(10, 0, 0, 1)));
        assert_eq!(read.option(code::MTU), Some(&[5, 120][..]));
    }

    #[test]
    fn a_message_has_the_size_of_bootp_and_its_options() {
        let bytes = answer(Type::Request, 1, Ipv4Addr::UNSPECIFIED, &[]);
        assert_eq!(bytes.len(), SHORTEST);
        assert_eq!(bytes[240..244], [53, 1, 3, 255]);
    }
}
