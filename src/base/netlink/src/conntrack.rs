//! Connection tracking: `conntrack -L -p PROTOCOL`, `conntrack -D -p PROTOCOL`. linux/netfilter/nfnetlink_conntrack.h.

use std::cell::RefCell;
use std::net::IpAddr;

use nix::errno::Errno;

use super::socket::{Next, Protocol, Socket};
use super::uapi::netlink::{NLA_F_NESTED, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};
use super::uapi::nf_conntrack::{
    CTA_FILTER, CTA_FILTER_F_CTA_PROTO_NUM, CTA_FILTER_ORIG_FLAGS, CTA_FILTER_REPLY_FLAGS, CTA_ID,
    CTA_IP_V4_DST, CTA_IP_V4_SRC, CTA_IP_V6_DST, CTA_IP_V6_SRC, CTA_PROTO_DST_PORT, CTA_PROTO_ICMP_CODE,
    CTA_PROTO_ICMP_ID, CTA_PROTO_ICMP_TYPE, CTA_PROTO_ICMPV6_CODE, CTA_PROTO_ICMPV6_ID,
    CTA_PROTO_ICMPV6_TYPE, CTA_PROTO_NUM, CTA_PROTO_SRC_PORT, CTA_STATS_GLOBAL_ENTRIES, CTA_TUPLE_IP,
    CTA_TUPLE_ORIG, CTA_TUPLE_PROTO, CTA_TUPLE_REPLY, CTA_ZONE, IPCTNL_MSG_CT_DELETE, IPCTNL_MSG_CT_GET,
    IPCTNL_MSG_CT_GET_STATS, IPCTNL_MSG_CT_NEW,
};
use super::uapi::nfnetlink::{NFGENMSG, NFNL_SUBSYS_CTNETLINK, NFPROTO_IPV4, NFPROTO_IPV6, NFPROTO_UNSPEC};
use super::wire::{self, Attributes, Message, Writer, ip};
use super::{Error, IfPresent as _, Result};

/// The number of entries below which one list of both families and all protocols is cheaper than two lists.
const FEW: u32 = 1000;
/// The maximum number of deletions in one send.
const CHUNK: usize = 100;

/// The type of an echo request (RFC 792).
const ECHO_REQUEST: u8 = 8;
/// The type of an echo request of ICMPv6 (RFC 4443).
const ECHO_REQUEST_V6: u8 = 128;

/// A tracked connection by its destination; its source doesn't matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// The number of the protocol, `IPPROTO_UDP` for example.
    pub protocol: u8,
    /// The destination of the first packet.
    pub destination: IpAddr,
    /// The destination port.
    pub port: u16,
    /// The source of answers: another than `destination` if that was translated.
    pub answers_from: IpAddr,
    /// The source port of answers.
    pub answer_port: u16,
}

/// The first packet of a connection. The kernel finds the connection's entry by it, without a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FirstPacket {
    /// The number of the protocol, `IPPROTO_UDP` for example.
    pub protocol: u8,
    /// The sender's address, before any translation in this namespace.
    pub source: IpAddr,
    /// The receiver's address, before any translation in this namespace.
    pub destination: IpAddr,
    /// The ports, or the identifier of an echo request.
    pub kind: PacketKind,
}

/// The part of a first packet behind its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PacketKind {
    /// A protocol with ports.
    Ports {
        /// The port of the sender, before any translation in this namespace.
        source: u16,
        /// The port of the receiver, before any translation in this namespace.
        destination: u16,
    },
    /// An echo request of ICMP or ICMPv6.
    Echo {
        /// The identifier (RFC 792, RFC 4443).
        id: u16,
    },
}

/// Address families to look for entries in. For each list the kernel goes through the table of all namespaces (262,144
/// buckets), which takes some 10 ms however few entries there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Families {
    /// Whether entries of IPv4 are looked for.
    pub v4: bool,
    /// Whether entries of IPv6 are looked for.
    pub v6: bool,
}

impl FromIterator<IpAddr> for Families {
    fn from_iter<I: IntoIterator<Item = IpAddr>>(addrs: I) -> Self {
        addrs.into_iter().fold(Families::default(), |found, addr| Families {
            v4: found.v4 || addr.is_ipv4(),
            v6: found.v6 || addr.is_ipv6(),
        })
    }
}

/// What the kernel needs to find an entry again.
pub(super) struct Entry {
    family: u8,
    original: Vec<u8>,
    id: Vec<u8>,
    zone: Option<Vec<u8>>,
}

/// Deletes all entries of these families and protocols in the current namespace that `choose` picks. Returns their
/// number. The protocols must have ports. All protocols share one walk through the kernel's table.
///
/// # Errors
/// Fails with EAGAIN if the table keeps changing while it is listed. An entry that has gone by itself is no error.
pub fn forget(families: Families, protocols: &[u8], choose: impl Fn(&Flow) -> bool) -> Result<usize> {
    // The kernel's filter takes one protocol. A second walk costs more than entries that are left out here.
    let only = match protocols {
        [] => return Ok(0),
        [protocol] => Some(*protocol),
        _ => None,
    };
    // Without netfilter there is no connection tracking.
    let socket = Socket::open(Protocol::Netfilter).map(Some);
    let Some(mut socket) = socket.default_for(&[Errno::EPROTONOSUPPORT])? else { return Ok(0) };
    let lists: &[u8] = match (count(&mut socket)?, families.v4, families.v6) {
        (Some(0), ..) | (_, false, false) => &[],
        (_, true, false) => &[NFPROTO_IPV4],
        (_, false, true) => &[NFPROTO_IPV6],
        (Some(..FEW), true, true) => &[NFPROTO_UNSPEC],
        (_, true, true) => &[NFPROTO_IPV4, NFPROTO_IPV6],
    };
    let mut entries = Vec::new();
    for family in lists {
        entries.extend(list(&mut socket, *family, only, &|flow: &Flow| {
            protocols.contains(&flow.protocol) && choose(flow)
        })?);
    }
    for chunk in entries.chunks(CHUNK) {
        delete(&mut socket, chunk)?;
    }
    Ok(entries.len())
}

/// Returns the connections of one protocol and family in the current namespace that `choose` picks. The protocol must
/// have ports.
///
/// # Errors
/// Fails with EAGAIN if the table keeps changing while it is listed.
pub fn connections(v4: bool, protocol: u8, choose: impl Fn(&Flow) -> bool) -> Result<Vec<Flow>> {
    let socket = Socket::open(Protocol::Netfilter).map(Some);
    let Some(mut socket) = socket.default_for(&[Errno::EPROTONOSUPPORT])? else { return Ok(Vec::new()) };
    let found = RefCell::new(Vec::new());
    let family = if v4 { NFPROTO_IPV4 } else { NFPROTO_IPV6 };
    let note = |flow: &Flow| {
        if flow.protocol == protocol && choose(flow) {
            found.borrow_mut().push(*flow);
        }
        false
    };
    list(&mut socket, family, Some(protocol), &note)?;
    Ok(found.into_inner())
}

/// Deletes the entry of one connection in the current namespace. Returns false if it has none.
///
/// # Errors
/// Fails if the kernel refuses the request.
pub fn forget_connection(first: &FirstPacket) -> Result<bool> {
    let family = if first.source.is_ipv4() { NFPROTO_IPV4 } else { NFPROTO_IPV6 };
    let flags = NLM_F_REQUEST | NLM_F_ACK;
    let message = wire::message(type_of(IPCTNL_MSG_CT_DELETE), flags, &header(family), |w| {
        w.nest(CTA_TUPLE_ORIG, |w| write_tuple(w, first));
    });
    // Without netfilter there is no connection tracking.
    let socket = Socket::open(Protocol::Netfilter).map(Some);
    let Some(mut socket) = socket.default_for(&[Errno::EPROTONOSUPPORT])? else { return Ok(false) };
    match socket.ask("delete a connection", message, &mut |_| Ok(())) {
        Ok(()) => Ok(true),
        // The kernel answers EINVAL if it cannot load the module nf_conntrack_netlink.
        Err(err) if err.is(Errno::ENOENT) || err.is(Errno::EINVAL) => Ok(false),
        Err(err) => Err(err),
    }
}

/// Writes the attributes of CTA_TUPLE_ORIG.
fn write_tuple(w: &mut Writer, first: &FirstPacket) {
    w.nest(CTA_TUPLE_IP, |w| match (first.source, first.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            w.bytes(CTA_IP_V4_SRC, &source.octets());
            w.bytes(CTA_IP_V4_DST, &destination.octets());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            w.bytes(CTA_IP_V6_SRC, &source.octets());
            w.bytes(CTA_IP_V6_DST, &destination.octets());
        }
        // No packet has addresses of two families. The kernel refuses a message without them.
        _ => {}
    });
    w.nest(CTA_TUPLE_PROTO, |w| {
        w.bytes(CTA_PROTO_NUM, &[first.protocol]);
        match first.kind {
            PacketKind::Ports { source, destination } => {
                w.bytes(CTA_PROTO_SRC_PORT, &source.to_be_bytes());
                w.bytes(CTA_PROTO_DST_PORT, &destination.to_be_bytes());
            }
            PacketKind::Echo { id } if first.source.is_ipv4() => {
                w.bytes(CTA_PROTO_ICMP_ID, &id.to_be_bytes());
                w.bytes(CTA_PROTO_ICMP_TYPE, &[ECHO_REQUEST]);
                w.bytes(CTA_PROTO_ICMP_CODE, &[0]);
            }
            PacketKind::Echo { id } => {
                w.bytes(CTA_PROTO_ICMPV6_ID, &id.to_be_bytes());
                w.bytes(CTA_PROTO_ICMPV6_TYPE, &[ECHO_REQUEST_V6]);
                w.bytes(CTA_PROTO_ICMPV6_CODE, &[0]);
            }
        }
    });
}

/// `conntrack -C`: returns the number of entries of all protocols.
fn count(socket: &mut Socket) -> Result<Option<u32>> {
    let kind = type_of(IPCTNL_MSG_CT_GET_STATS);
    let message = wire::message(kind, NLM_F_REQUEST, &header(NFPROTO_UNSPEC), |_| {});
    let mut count = None;
    socket.ask("count connections", message, &mut |message| {
        let value = Attributes::behind(message.body, NFGENMSG).get(CTA_STATS_GLOBAL_ENTRIES);
        count = value.and_then(|value| Some(u32::from_be_bytes(value.try_into().ok()?)));
        Ok(())
    })?;
    Ok(count)
}

/// Lists the entries that `choose` picks. The kernel leaves out all protocols but `only`.
fn list(
    socket: &mut Socket,
    family: u8,
    only: Option<u8>,
    choose: &impl Fn(&Flow) -> bool,
) -> Result<Vec<Entry>> {
    let what = "list connections";
    let flags = NLM_F_REQUEST | NLM_F_DUMP;
    let message = wire::message(type_of(IPCTNL_MSG_CT_GET), flags, &header(family), |w| {
        // The kernel's filter needs a family.
        let Some(only) = only.filter(|_| family != NFPROTO_UNSPEC) else { return };
        // Linux before 5.8 has no filter and lists everything.
        w.nest(CTA_TUPLE_ORIG, |w| w.nest(CTA_TUPLE_PROTO, |w| w.bytes(CTA_PROTO_NUM, &[only])));
        w.nest(CTA_FILTER, |w| {
            w.u32_ne(CTA_FILTER_ORIG_FLAGS, CTA_FILTER_F_CTA_PROTO_NUM);
            w.u32_ne(CTA_FILTER_REPLY_FLAGS, 0);
        });
    });
    let listed = socket.list(what, &message, |message| {
        let wanted = message.kind == type_of(IPCTNL_MSG_CT_NEW);
        let chosen = if wanted { read(message) } else { None };
        Ok(chosen.filter(|(flow, _)| choose(flow)).map(|(_, entry)| entry))
    })?;
    listed.ok_or_else(|| Error::new(what, Errno::EAGAIN).reason("it changed while it was listed"))
}

/// Deletes these entries. One that has gone is no error.
fn delete(socket: &mut Socket, entries: &[Entry]) -> Result<()> {
    let what = "delete a connection";
    let mut writer = Writer::default();
    for entry in entries {
        let flags = NLM_F_REQUEST | NLM_F_ACK;
        writer.message(type_of(IPCTNL_MSG_CT_DELETE), flags, &header(entry.family), |w| {
            w.bytes(CTA_TUPLE_ORIG | NLA_F_NESTED, &entry.original);
            // The ID tells it from a later one with the same addresses.
            w.bytes(CTA_ID, &entry.id);
            if let Some(zone) = &entry.zone {
                w.bytes(CTA_ZONE, zone);
            }
        });
    }
    let mut bytes = writer.finish().unwrap_or_default();
    let count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
    let first = socket.take_numbers(count);
    wire::number(&mut bytes, first);
    socket.send(what, &bytes)?;
    let mut refused = None;
    socket.acknowledgements(what, first, &mut |index, ack| {
        if index < count && ack.errno() != Some(Errno::ENOENT) {
            refused = refused.take().or(Protocol::Netfilter.refusal(what, ack));
        }
        if index.checked_add(1) == Some(count) { Next::Done } else { Next::More }
    })?;
    refused.map_or(Ok(()), Err)
}

/// The type of a message, `IPCTNL_MSG_CT_…`, in `struct nlmsghdr`.
const fn type_of(message: u16) -> u16 {
    NFNL_SUBSYS_CTNETLINK << 8 | message
}

fn header(family: u8) -> [u8; NFGENMSG] {
    [family, 0, 0, 0]
}

/// An entry from IPCTNL_MSG_CT_NEW, or `None` if its protocol has no ports.
pub(super) fn read(message: &Message<'_>) -> Option<(Flow, Entry)> {
    let attrs = Attributes::behind(message.body, NFGENMSG);
    let original = attrs.get(CTA_TUPLE_ORIG)?;
    let sent = Tuple::read(Attributes::new(original))?;
    let answered = Tuple::read(attrs.nested(CTA_TUPLE_REPLY)?)?;
    let entry = Entry {
        family: *message.body.first()?,
        original: original.to_vec(),
        id: attrs.get(CTA_ID)?.to_vec(),
        zone: attrs.get(CTA_ZONE).map(<[u8]>::to_vec),
    };
    let flow = Flow {
        protocol: sent.protocol,
        destination: sent.destination,
        port: sent.destination_port,
        answers_from: answered.source,
        answer_port: answered.source_port,
    };
    Some((flow, entry))
}

/// One direction of a connection (CTA_TUPLE_ORIG, CTA_TUPLE_REPLY).
struct Tuple {
    protocol: u8,
    source: IpAddr,
    source_port: u16,
    destination: IpAddr,
    destination_port: u16,
}

impl Tuple {
    /// Returns `None` for a protocol without ports.
    fn read(tuple: Attributes<'_>) -> Option<Self> {
        let (addrs, proto) = (tuple.nested(CTA_TUPLE_IP)?, tuple.nested(CTA_TUPLE_PROTO)?);
        Some(Tuple {
            protocol: *proto.get(CTA_PROTO_NUM)?.first()?,
            source: ip(addrs.get(CTA_IP_V4_SRC).or_else(|| addrs.get(CTA_IP_V6_SRC))?)?,
            source_port: u16::from_be_bytes(proto.get(CTA_PROTO_SRC_PORT)?.try_into().ok()?),
            destination: ip(addrs.get(CTA_IP_V4_DST).or_else(|| addrs.get(CTA_IP_V6_DST))?)?,
            destination_port: u16::from_be_bytes(proto.get(CTA_PROTO_DST_PORT)?.try_into().ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::{Families, FirstPacket, PacketKind, forget, forget_connection};
    use crate::link::{Change, set};
    use crate::nft::{Batch, Expr, Family, Hook, HookPoint, Nft, REG1, Table};
    use crate::testing::in_netns;
    use crate::{Error, Netlink};

    /// A rule that looks at connections makes the kernel track them.
    fn track() -> Result<(), Error> {
        let table = Table::new(Family::Inet, "t");
        let chain = table.chain("c");
        let mut batch = Batch::new();
        batch.create_table(table);
        batch.create_base_chain(chain, Hook { kind: "filter", hook: HookPoint::Output, priority: 0 });
        batch.add_rule(chain, &[Expr::ct_state(REG1), Expr::equal(REG1, &[0; 4])], "");
        Nft::new().commit(&batch)
    }

    /// Calls `body` in a namespace with a loopback whose connections are tracked.
    fn where_connections_are_tracked(test: &'static str, body: impl FnOnce() + Send + 'static) {
        in_netns(test, move || {
            if let Err(err) = track() {
                eprintln!("SKIP {test}: {err}");
                return;
            }
            let up = Change { up: Some(true), ..Change::default() };
            Netlink::open().unwrap().execute(set(1, "lo", &up)).unwrap();
            body();
        });
    }

    #[test]
    fn only_chosen_connections_are_deleted() {
        where_connections_are_tracked("only_chosen_connections_are_deleted", || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            for port in [8001, 8002, 8003] {
                socket.send_to(b"x", ("127.0.0.1", port)).unwrap();
            }
            UdpSocket::bind("[::1]:0").unwrap().send_to(b"x", ("::1", 8001)).unwrap();
            let of = |ports: &'static [u16]| {
                move |flow: &super::Flow| flow.destination.is_loopback() && ports.contains(&flow.port)
            };
            let (v4, v6) = (Families { v4: true, v6: false }, Families { v4: false, v6: true });
            let (udp, sctp) = (libc::IPPROTO_UDP as u8, libc::IPPROTO_SCTP as u8);
            assert_eq!(forget(v4, &[], |_| true).unwrap(), 0);
            assert_eq!(forget(v4, &[sctp], |_| true).unwrap(), 0, "of another protocol");
            assert_eq!(forget(v4, &[udp], of(&[8001, 8003, 9000])).unwrap(), 2);
            assert_eq!(forget(v6, &[udp], of(&[8002])).unwrap(), 0, "of the other family");
            let both = Families { v4: true, v6: true };
            assert_eq!(forget(both, &[udp, sctp], of(&[8001, 8002, 8003])).unwrap(), 2);
            assert_eq!(forget(v4, &[udp], |_| true).unwrap(), 0);
        });
    }

    #[test]
    fn one_connection_is_deleted_by_its_first_packet() {
        where_connections_are_tracked("one_connection_is_deleted_by_its_first_packet", || {
            for address in ["127.0.0.1", "::1"] {
                let address: std::net::IpAddr = address.parse().unwrap();
                let socket = UdpSocket::bind((address, 0)).unwrap();
                let port = socket.local_addr().unwrap().port();
                for to in [8001, 8002] {
                    socket.send_to(b"x", (address, to)).unwrap();
                }
                let first = |destination| FirstPacket {
                    protocol: libc::IPPROTO_UDP as u8,
                    source: address,
                    destination: address,
                    kind: PacketKind::Ports { source: port, destination },
                };
                assert!(!forget_connection(&first(8003)).unwrap());
                assert!(forget_connection(&first(8001)).unwrap());
                assert!(!forget_connection(&first(8001)).unwrap());
                assert!(forget_connection(&first(8002)).unwrap());
            }
        });
    }
}
