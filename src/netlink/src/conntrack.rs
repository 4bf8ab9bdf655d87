//! Connection tracking: what the kernel remembers of UDP (`conntrack -L -p udp`, `-D`).
//!
//! The numbers are those of linux/netfilter/nfnetlink_conntrack.h.

use std::net::IpAddr;

use nix::errno::Errno;

use super::nft::attr::{self, Writer};
use super::nft::socket::{Answer, Socket};
use super::{Error, Result};

const SUBSYSTEM: u16 = 1;
const NEW: u16 = 0;
const GET: u16 = 1;
const DELETE: u16 = 2;

const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_DUMP: u16 = 0x300;
const NLA_F_NESTED: u16 = 0x8000;

const TUPLE_ORIG: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
const FILTER: u16 = 25;

const UDP: u8 = 17;
/// Deletions in one datagram.
const CHUNK: usize = 100;

/// A UDP "connection" as far as it was opened: from whom doesn't matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// Whom the first packet was sent to.
    pub destination: IpAddr,
    /// Its port.
    pub port: u16,
    /// Who is to answer: another than `destination` if that was translated.
    pub answers_from: IpAddr,
    /// Its port.
    pub answer_port: u16,
}

/// An entry with what it is deleted by.
pub(super) struct Entry {
    family: u8,
    original: Vec<u8>,
    id: Vec<u8>,
    zone: Option<Vec<u8>>,
}

/// Deletes all UDP entries of the current namespace that `choose` picks; returns how many.
///
/// # Errors
/// The kernel's. Entries that went by themselves are none.
pub fn forget_udp(choose: impl Fn(&Flow) -> bool) -> Result<usize> {
    let mut socket = match Socket::open() {
        // No netfilter, no memory.
        Err(err) if err.is(Errno::EPROTONOSUPPORT) => return Ok(0),
        other => other?,
    };
    let mut entries = Vec::new();
    let mut sequence = 1;
    // The filter wants to know the family.
    for family in [libc::AF_INET, libc::AF_INET6] {
        let family = u8::try_from(family).unwrap_or(0);
        entries.extend(list(&mut socket, sequence, family, &choose)?);
        sequence += 1;
    }
    for chunk in entries.chunks(CHUNK) {
        delete(&mut socket, sequence, chunk)?;
        sequence += u32::try_from(chunk.len()).unwrap_or(u32::MAX);
    }
    Ok(entries.len())
}

fn list(
    socket: &mut Socket,
    sequence: u32,
    family: u8,
    choose: &impl Fn(&Flow) -> bool,
) -> Result<Vec<Entry>> {
    // CTA_FILTER_FLAG(CTA_PROTO_NUM): compare the protocol and nothing else.
    const PROTO_NUM: u32 = 1 << 3;
    let what = "list UDP connections";
    let mut writer = Writer::default();
    writer.message(SUBSYSTEM << 8 | GET, NLM_F_REQUEST | NLM_F_DUMP, family, 0, |w| {
        // Linux before 5.8 doesn't know the filter and lists everything.
        w.nest(TUPLE_ORIG, |w| w.nest(2, |w| w.attr(1, &[UDP])));
        w.nest(FILTER, |w| {
            w.attr(1, &PROTO_NUM.to_ne_bytes());
            w.attr(2, &0_u32.to_ne_bytes());
        });
    });
    writer.number(sequence);
    socket.send(writer.finished().unwrap_or_default(), what)?;
    let mut found = Vec::new();
    let mut outcome = Ok(());
    while !socket.receive(what, true, |answered, answer| {
        if answered != sequence {
            return false;
        }
        match answer {
            Answer::Object(message) => {
                if message.kind & 0xff == NEW
                    && let Some((flow, entry)) = parse(message.payload, message.attrs())
                    && choose(&flow)
                {
                    found.push(entry);
                }
                false
            }
            Answer::Interrupted => false,
            Answer::Done => true,
            Answer::Refused(errno, reason) => {
                outcome = Err(Error::new(what, errno).reason(reason));
                true
            }
        }
    })? {}
    outcome.map(|()| found)
}

fn delete(socket: &mut Socket, first: u32, entries: &[Entry]) -> Result<()> {
    let what = "delete a UDP connection";
    let mut writer = Writer::default();
    for entry in entries {
        let kind = SUBSYSTEM << 8 | DELETE;
        writer.message(kind, NLM_F_REQUEST | NLM_F_ACK, entry.family, 0, |w| {
            w.attr(TUPLE_ORIG | NLA_F_NESTED, &entry.original);
            // Not another one that has the same addresses by now.
            w.attr(ID, &entry.id);
            if let Some(zone) = &entry.zone {
                w.attr(ZONE, zone);
            }
        });
    }
    let next = writer.number(first);
    socket.send(writer.finished().unwrap_or_default(), what)?;
    let mut outcome = Ok(());
    while !socket.receive(what, true, |answered, answer| {
        if !(first..next).contains(&answered) {
            return false;
        }
        if let Answer::Refused(errno, reason) = answer
            && errno != Errno::ENOENT
            && outcome.is_ok()
        {
            outcome = Err(Error::new(what, errno).reason(reason));
        }
        answered.wrapping_add(1) == next
    })? {}
    outcome
}

pub(super) fn parse(header: &[u8], attrs: &[u8]) -> Option<(Flow, Entry)> {
    let original = attr::find(attrs, TUPLE_ORIG)?;
    let (_, destination, _, port) = tuple(original)?;
    let (answers_from, _, answer_port, _) = tuple(attr::find(attrs, TUPLE_REPLY)?)?;
    let entry = Entry {
        family: *header.first()?,
        original: original.to_vec(),
        id: attr::find(attrs, ID)?.to_vec(),
        zone: attr::find(attrs, ZONE).map(<[u8]>::to_vec),
    };
    Some((Flow { destination, port, answers_from, answer_port }, entry))
}

/// Source and destination, source port and destination port of a UDP tuple.
fn tuple(tuple: &[u8]) -> Option<(IpAddr, IpAddr, u16, u16)> {
    let (ip, proto) = (attr::find(tuple, 1)?, attr::find(tuple, 2)?);
    if attr::find(proto, 1)?.first() != Some(&UDP) {
        return None;
    }
    let v4 = |kind| Some(IpAddr::from(<[u8; 4]>::try_from(attr::find(ip, kind)?).ok()?));
    let v6 = |kind| Some(IpAddr::from(<[u8; 16]>::try_from(attr::find(ip, kind)?).ok()?));
    let port = |kind| Some(u16::from_be_bytes(attr::find(proto, kind)?.try_into().ok()?));
    Some((v4(1).or_else(|| v6(3))?, v4(2).or_else(|| v6(4))?, port(2)?, port(3)?))
}
