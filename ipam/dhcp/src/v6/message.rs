//! DHCPv6 messages (RFC 8415, sections 8 and 21), and DNS options (RFC 3646).

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use crate::domains;

/// The codes of options.
pub(crate) mod code {
    pub(crate) const CLIENT_ID: u16 = 1;
    pub(crate) const SERVER_ID: u16 = 2;
    pub(crate) const IA_NA: u16 = 3;
    pub(crate) const IA_ADDRESS: u16 = 5;
    pub(crate) const REQUEST_LIST: u16 = 6;
    pub(crate) const PREFERENCE: u16 = 7;
    pub(crate) const ELAPSED: u16 = 8;
    pub(crate) const STATUS: u16 = 13;
    pub(crate) const RAPID_COMMIT: u16 = 14;
    pub(crate) const NAME_SERVERS: u16 = 23;
    pub(crate) const DOMAINS: u16 = 24;
    pub(crate) const SOL_MAX_RT: u16 = 82;
}

/// The length of type and transaction ID in bytes.
const HEADER: usize = 4;
/// The longest DUID in bytes: two for the type, and up to 128 (RFC 8415, section 11.1).
const LONGEST_DUID: usize = 130;
/// The values of SOL_MAX_RT that count, in seconds. Others are ignored (RFC 8415, section 21.24).
const SOL_MAX_RT: std::ops::RangeInclusive<u32> = 60..=86_400;
/// The most addresses of an answer that are read. A pod needs no more.
const MOST_ADDRESSES: usize = 16;

/// The type of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    Solicit = 1,
    Advertise = 2,
    Request = 3,
    Renew = 5,
    Rebind = 6,
    Reply = 7,
    Release = 8,
    Decline = 9,
}

impl Type {
    /// Returns the type's name in RFC 8415.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Type::Solicit => "Solicit",
            Type::Advertise => "Advertise",
            Type::Request => "Request",
            Type::Renew => "Renew",
            Type::Rebind => "Rebind",
            Type::Reply => "Reply",
            Type::Release => "Release",
            Type::Decline => "Decline",
        }
    }
}

/// A message of the client.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    pub(crate) kind: Type,
    /// The transaction ID of 24 bits.
    pub(crate) xid: u32,
    /// The time since the exchange began, in hundredths of a second.
    pub(crate) elapsed: u16,
    pub(crate) duid: Vec<u8>,
    /// The DUID of the server that is meant, or `None` for any.
    pub(crate) server: Option<Vec<u8>>,
    pub(crate) iaid: u32,
    /// The address that the message is about. `None` lets the server choose one.
    pub(crate) address: Option<Ipv6Addr>,
}

impl Question {
    /// Returns the bytes of the message.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let [_, a, b, c] = self.xid.to_be_bytes();
        let mut bytes = vec![self.kind as u8, a, b, c];
        option(&mut bytes, code::CLIENT_ID, &self.duid);
        if let Some(server) = &self.server {
            option(&mut bytes, code::SERVER_ID, server);
        }
        let mut ia = self.iaid.to_be_bytes().to_vec();
        // T1, T2 and the lifetimes are 0, so that the server chooses them.
        ia.extend_from_slice(&[0; 8]);
        if let Some(address) = self.address {
            let mut value = address.octets().to_vec();
            value.extend_from_slice(&[0; 8]);
            option(&mut ia, code::IA_ADDRESS, &value);
        }
        option(&mut bytes, code::IA_NA, &ia);
        option(&mut bytes, code::ELAPSED, &self.elapsed.to_be_bytes());
        if self.kind == Type::Solicit {
            option(&mut bytes, code::RAPID_COMMIT, &[]);
        }
        if !matches!(self.kind, Type::Release | Type::Decline) {
            let wanted = [code::NAME_SERVERS, code::DOMAINS, code::SOL_MAX_RT];
            option(&mut bytes, code::REQUEST_LIST, &wanted.map(u16::to_be_bytes).concat());
        }
        bytes
    }
}

/// Appends an option.
fn option(bytes: &mut Vec<u8>, code: u16, value: &[u8]) {
    // A value has at most some hundred bytes, so the length fits.
    let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
    bytes.extend_from_slice(&code.to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(value);
}

/// The status of a message, an IA or an address (option 13), if it is no success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) code: u16,
    text: String,
}

impl Status {
    pub(crate) const NO_ADDRESSES: u16 = 2;
    pub(crate) const NO_BINDING: u16 = 3;
    pub(crate) const NOT_ON_LINK: u16 = 4;

    /// Reads the status. `None` for success, and for an option that is cut off.
    fn read(value: &[u8]) -> Option<Status> {
        let (code, text) = value.split_first_chunk::<2>()?;
        let code = u16::from_be_bytes(*code);
        let text = String::from_utf8_lossy(text).chars().take(80).flat_map(char::escape_debug).collect();
        (code != 0).then_some(Status { code, text })
    }

    /// Returns the status in words for the log, with the text of the server.
    pub(crate) fn words(&self) -> String {
        let code = self.code;
        let words = match code {
            1 => "it fails without a reason (UnspecFail)",
            Status::NO_ADDRESSES => "it has no address to give (NoAddrsAvail)",
            Status::NO_BINDING => "it knows no such lease (NoBinding)",
            Status::NOT_ON_LINK => "the address does not belong to this link (NotOnLink)",
            5 => "it wants to be asked by multicast (UseMulticast)",
            _ => return format!("status {code}: \"{}\"", self.text),
        };
        if self.text.is_empty() { words.to_owned() } else { format!("{words}: \"{}\"", self.text) }
    }
}

/// An address that the server gives. A `valid` of 0 takes it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) address: Ipv6Addr,
    /// The preferred lifetime in seconds: new connections use the address.
    pub(crate) preferred: u32,
    /// The valid lifetime in seconds.
    pub(crate) valid: u32,
}

/// The client's IA_NA in an answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ia {
    /// T1 and T2, in seconds. The client chooses those that are 0.
    pub(crate) times: (u32, u32),
    pub(crate) status: Option<Status>,
    pub(crate) addresses: Vec<Given>,
}

/// A message of a server.
#[derive(Debug, Clone)]
pub(crate) struct ServerMessage {
    pub(crate) kind: Type,
    pub(crate) xid: u32,
    /// The DUID of the server.
    pub(crate) server: Vec<u8>,
    pub(crate) preference: u8,
    /// Whether the server gives the lease in answer to a Solicit (Rapid Commit).
    pub(crate) rapid: bool,
    /// The status of the message. `None` for success.
    pub(crate) status: Option<Status>,
    /// The first IA_NA with the number of the client.
    pub(crate) ia: Option<Ia>,
    pub(crate) name_servers: Vec<Ipv6Addr>,
    pub(crate) domains: Vec<String>,
    /// The longest pause between two Solicits that the server allows (SOL_MAX_RT), in seconds.
    pub(crate) longest_pause: Option<u32>,
}

impl ServerMessage {
    /// Reads an answer to the client with this DUID. `None` for other messages, and for those without a valid server
    /// (RFC 8415, section 16).
    pub(crate) fn parse(bytes: &[u8], duid: &[u8], iaid: u32) -> Option<ServerMessage> {
        let (header, options) = bytes.split_at_checked(HEADER)?;
        let &[kind, a, b, c] = header else { return None };
        let kind = [Type::Advertise, Type::Reply].into_iter().find(|known| *known as u8 == kind)?;
        let all: Vec<(u16, &[u8])> = Options(options).collect();
        // The first one of repeated options counts.
        let mut once: BTreeMap<u16, &[u8]> = BTreeMap::new();
        for (code, value) in &all {
            once.entry(*code).or_insert(value);
        }
        if *once.get(&code::CLIENT_ID)? != duid {
            return None;
        }
        let server = once.get(&code::SERVER_ID)?;
        if !(3..=LONGEST_DUID).contains(&server.len()) {
            return None;
        }
        let longest_pause = once.get(&code::SOL_MAX_RT).and_then(|value| (*value).try_into().ok());
        let addresses = once.get(&code::NAME_SERVERS).copied().unwrap_or_default();
        Some(ServerMessage {
            kind,
            xid: u32::from_be_bytes([0, a, b, c]),
            server: server.to_vec(),
            preference: once.get(&code::PREFERENCE).and_then(|value| value.first()).copied().unwrap_or(0),
            rapid: once.contains_key(&code::RAPID_COMMIT),
            status: once.get(&code::STATUS).and_then(|value| Status::read(value)),
            ia: all.iter().filter(|(code, _)| *code == code::IA_NA).find_map(|(_, value)| ia(value, iaid)),
            name_servers: addresses.as_chunks::<16>().0.iter().map(|bytes| Ipv6Addr::from(*bytes)).collect(),
            domains: once.get(&code::DOMAINS).map(|value| domains::search(value)).unwrap_or_default(),
            longest_pause: longest_pause
                .map(u32::from_be_bytes)
                .filter(|seconds| SOL_MAX_RT.contains(seconds)),
        })
    }

    /// Returns the status by which the server refuses, of the message or of the IA. `None` for success.
    pub(crate) fn refusal(&self) -> Option<&Status> {
        self.status.as_ref().or(self.ia.as_ref().and_then(|ia| ia.status.as_ref()))
    }
}

/// Reads an IA_NA. `None` if it has another number or is cut off.
fn ia(value: &[u8], iaid: u32) -> Option<Ia> {
    let (head, options) = value.split_first_chunk::<12>()?;
    let [number, renew, rebind] = words(head);
    if number != iaid {
        return None;
    }
    let mut ia = Ia { times: (renew, rebind), ..Ia::default() };
    for (code, value) in Options(options) {
        match code {
            code::IA_ADDRESS if ia.addresses.len() < MOST_ADDRESSES => ia.addresses.extend(given(value)),
            code::STATUS if ia.status.is_none() => ia.status = Status::read(value),
            _ => {}
        }
    }
    Some(ia)
}

/// Reads an address of an IA_NA. `None` if its lifetimes are inconsistent or its status is a failure.
fn given(value: &[u8]) -> Option<Given> {
    let (address, rest) = value.split_first_chunk::<16>()?;
    let (times, options) = rest.split_first_chunk::<8>()?;
    let [preferred, valid] = words(times);
    // An address with a failure is ignored (RFC 8415, section 18.2.10.1).
    let failed = Options(options).any(|(code, value)| code == code::STATUS && Status::read(value).is_some());
    (preferred <= valid && !failed).then_some(Given { address: Ipv6Addr::from(*address), preferred, valid })
}

/// Returns the big-endian numbers in `bytes`, or 0 for those behind the end.
fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    let mut all = [0; N];
    for (word, four) in all.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *word = u32::from_be_bytes(*four);
    }
    all
}

/// The options in some bytes. An option that is cut off ends the list.
struct Options<'b>(&'b [u8]);

impl<'b> Iterator for Options<'b> {
    type Item = (u16, &'b [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (&[a, b, c, d], rest) = self.0.split_first_chunk::<4>()?;
        let (value, behind) = rest.split_at_checked(usize::from(u16::from_be_bytes([c, d])))?;
        self.0 = behind;
        Some((u16::from_be_bytes([a, b]), value))
    }
}

#[cfg(test)]
pub(crate) mod tests;
