//! Queueing disciplines: `tc qdisc`. Those that limit a pod's traffic: a token bucket at a
//! link's root, and `ingress`, where filters for received packets hang. [`super::htb`] has the
//! one for limits that aren't for all packets.
//!
//! The netlink crates have no type for a token bucket; its options are `struct tc_tbf_qopt`
//! of include/uapi/linux/pkt_sched.h.

use netlink_packet_core::{DefaultNla, NLM_F_ACK, NLM_F_ECHO, NLM_F_REQUEST};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcOption};
use nix::errno::Errno;

use super::htb;
use super::request::{Mode, encode};
use super::wire::{self, Attributes, Malformed, Message, text, u32_at};
use super::{Netlink, Request, Result};

/// Nanoseconds of a tick, in which times of qdiscs are told: PSCHED_TICKS2NS() has been this
/// since Linux 2.6.31, and /proc/net/psched is the same everywhere.
const TICK: u64 = 64;

/// The handle of what is at a link's root, `1:`.
pub(super) const ROOT_HANDLE: TcHandle = TcHandle { major: 1, minor: 0 };
/// The handle of `ingress`, `ffff:`; the kernel knows no other.
pub(super) const INGRESS_HANDLE: TcHandle = TcHandle { major: 0xffff, minor: 0 };

const RTM_NEWQDISC: u16 = 36;
/// Length of `struct tcmsg`.
pub(super) const TCMSG: usize = 20;
pub(super) const TCA_KIND: u16 = 1;
pub(super) const TCA_OPTIONS: u16 = 2;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;

/// A token bucket filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tbf {
    /// Bytes per second.
    pub rate: u64,
    /// What may wait for tokens, in bytes.
    pub limit: u32,
    /// The size of the bucket: the time that it takes to fill it, in ticks of 64 ns.
    pub buffer: u32,
}

impl Tbf {
    /// A bucket for `burst` bytes that is refilled with `rate` bytes per second. What has to
    /// wait longer than `latency_ms` is dropped. Numbers too large for the kernel become the
    /// largest that it has: a bucket holds 274 seconds of traffic.
    ///
    /// The time is cut to whole microseconds, as the Go plugin does it.
    pub fn new(rate: u64, burst: u64, latency_ms: u32) -> Self {
        let micros = (u128::from(burst) * 1_000_000).checked_div(u128::from(rate)).unwrap_or(0);
        let ticks = micros * 1000 / u128::from(TICK);
        let limit = u128::from(rate) * u128::from(latency_ms) / 1000 + u128::from(burst);
        let narrow = |number: u128| u32::try_from(number).unwrap_or(u32::MAX);
        Tbf { rate, limit: narrow(limit), buffer: narrow(ticks) }
    }

    /// The bucket's size in bytes.
    pub fn burst(&self) -> u64 {
        let bytes = u128::from(self.buffer) * u128::from(TICK) * u128::from(self.rate) / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// `struct tc_tbf_qopt`: two `struct tc_ratespec` of which only the first one's rate is
    /// set, the last field; limit, buffer, and a field that is not used.
    fn parameters(&self) -> Vec<u8> {
        let rate = u32::try_from(self.rate).unwrap_or(u32::MAX);
        let mut bytes = vec![0; 8];
        bytes.extend(rate.to_ne_bytes());
        bytes.extend([0; 12]);
        bytes.extend(self.limit.to_ne_bytes());
        bytes.extend(self.buffer.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes
    }

    fn read(options: &[u8]) -> std::result::Result<Self, Malformed> {
        const SHORT: Malformed = Malformed("the options of a token bucket are too short");
        let mut tbf = Tbf { rate: 0, limit: 0, buffer: 0 };
        let mut long_rate = None;
        for attribute in Attributes::new(options) {
            let (kind, value) = attribute?;
            match kind {
                TCA_TBF_PARMS => {
                    tbf.rate = u32_at(value, 8).ok_or(SHORT)?.into();
                    tbf.limit = u32_at(value, 24).ok_or(SHORT)?;
                    tbf.buffer = u32_at(value, 28).ok_or(SHORT)?;
                }
                TCA_TBF_RATE64 => {
                    long_rate = Some(u64::from_ne_bytes(value.try_into().map_err(|_| SHORT)?));
                }
                _ => {}
            }
        }
        tbf.rate = long_rate.unwrap_or(tbf.rate);
        Ok(tbf)
    }
}

/// A qdisc of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qdisc {
    /// Its kind: `tbf`, `noqueue`, …
    pub kind: String,
    /// The major number of its handle; 0 if the kernel has put it there by itself.
    pub major: u16,
    /// What it is set to, for a token bucket.
    pub tbf: Option<Tbf>,
    /// The class of what no filter has sorted, for the kind `htb`.
    pub default_class: Option<htb::Class>,
}

/// `tc qdisc add dev LINK root handle 1: tbf …`; EEXIST if a qdisc has been put there. `name`
/// is for messages, here as below.
pub fn add_tbf(index: u32, name: &str, tbf: &Tbf) -> Request {
    let mut options = vec![TcOption::Other(DefaultNla::new(TCA_TBF_PARMS, tbf.parameters()))];
    if tbf.rate > u64::from(u32::MAX) {
        let rate = tbf.rate.to_ne_bytes().to_vec();
        options.push(TcOption::Other(DefaultNla::new(TCA_TBF_RATE64, rate)));
    }
    let mut message = of_link(index, ROOT_HANDLE, TcHandle::ROOT);
    message.attributes = vec![TcAttribute::Kind("tbf".into()), TcAttribute::Options(options)];
    let what = format!("add qdisc tbf of {} bytes per second to {name}", tbf.rate);
    Request::new(what, Mode::Create, RouteNetlinkMessage::NewQueueDiscipline(message))
}

/// `tc qdisc add dev LINK ingress`
pub fn add_ingress(index: u32, name: &str) -> Request {
    let mut message = of_link(index, INGRESS_HANDLE, TcHandle::INGRESS);
    message.attributes = vec![TcAttribute::Kind("ingress".into())];
    let message = RouteNetlinkMessage::NewQueueDiscipline(message);
    Request::new(format!("add qdisc ingress to {name}"), Mode::Create, message)
}

/// `tc qdisc del dev LINK root`
pub fn del_root(index: u32, name: &str) -> Request {
    let message = of_link(index, TcHandle::UNSPEC, TcHandle::ROOT);
    let message = RouteNetlinkMessage::DelQueueDiscipline(message);
    Request::new(format!("delete the root qdisc of {name}"), Mode::Change, message)
}

/// `tc qdisc del dev LINK ingress`, with its filters.
pub fn del_ingress(index: u32, name: &str) -> Request {
    let message = of_link(index, INGRESS_HANDLE, TcHandle::INGRESS);
    let message = RouteNetlinkMessage::DelQueueDiscipline(message);
    Request::new(format!("delete qdisc ingress of {name}"), Mode::Change, message)
}

/// A message about the qdisc or filter at a place of a link.
pub(super) fn of_link(index: u32, handle: TcHandle, parent: TcHandle) -> TcMessage {
    let mut message = TcMessage::default();
    message.header.index = index.cast_signed();
    message.header.handle = handle;
    message.header.parent = parent;
    message
}

impl Netlink {
    /// The qdisc at the root of a link; `None` if the kernel has nothing to tell about it.
    ///
    /// # Errors
    /// ENODEV if the link is gone.
    pub fn root_qdisc(&mut self, index: u32) -> Result<Option<Qdisc>> {
        self.qdisc_at(index, TcHandle::ROOT)
    }

    /// The qdisc that takes received packets, `ingress` or `clsact`.
    ///
    /// # Errors
    /// ENODEV if the link is gone.
    pub fn ingress_qdisc(&mut self, index: u32) -> Result<Option<Qdisc>> {
        self.qdisc_at(index, TcHandle::INGRESS)
    }

    fn qdisc_at(&mut self, index: u32, parent: TcHandle) -> Result<Option<Qdisc>> {
        let message = of_link(index, TcHandle::UNSPEC, parent);
        let message = RouteNetlinkMessage::GetQueueDiscipline(message);
        // Kernels before 6.8 answer only to listeners, unless an echo is asked for.
        let message = encode(message, NLM_F_REQUEST | NLM_F_ACK | NLM_F_ECHO);
        let mut found = None;
        let outcome = self.ask(&format!("look up a qdisc of link {index}"), message, |message| {
            found = read(message)?.or(found.take());
            Ok(())
        });
        match outcome {
            Err(err) if err.is(Errno::ENOENT) => Ok(None),
            outcome => outcome.map(|()| found),
        }
    }

    /// Whether the kernel has a kind of qdisc (`tbf`, `htb`). Asked by one that lacks all its
    /// options, which changes nothing: a kernel that knows the kind refuses it with EINVAL.
    ///
    /// # Errors
    /// Whatever else the kernel says, such as EPERM.
    pub fn knows_qdisc(&mut self, kind: &str) -> Result<bool> {
        let lo = self.link("lo")?;
        let mut message = of_link(lo.index, ROOT_HANDLE, TcHandle::ROOT);
        message.attributes = vec![TcAttribute::Kind(kind.into())];
        let message = RouteNetlinkMessage::NewQueueDiscipline(message);
        let request = Request::new(format!("ask for the qdisc {kind}"), Mode::Create, message);
        match self.execute(request) {
            Err(err) if err.is(Errno::ENOENT) || err.is(Errno::EOPNOTSUPP) => Ok(false),
            // EEXIST: an administrator has put another qdisc there.
            Err(err) if !err.is(Errno::EINVAL) && !err.is(Errno::EEXIST) => Err(err),
            _ => Ok(true),
        }
    }
}

pub(super) fn read(message: &Message<'_>) -> std::result::Result<Option<Qdisc>, Malformed> {
    if message.kind != RTM_NEWQDISC {
        return Ok(None);
    }
    let major = u32_at(message.body, 8).map_or(0, |handle| TcHandle::from(handle).major);
    let mut qdisc = Qdisc { kind: String::new(), major, tbf: None, default_class: None };
    for attribute in Attributes::behind(message.body, TCMSG) {
        match attribute? {
            (TCA_KIND, value) => qdisc.kind = text(value),
            (TCA_OPTIONS, value) if qdisc.kind == "tbf" => qdisc.tbf = Some(Tbf::read(value)?),
            (TCA_OPTIONS, value) if qdisc.kind == "htb" => qdisc.default_class = htb::default_class(value)?,
            _ => {}
        }
    }
    Ok(Some(qdisc))
}

/// Whether `message` is about link `index`.
pub(super) fn is_of(message: &wire::Message<'_>, index: u32) -> bool {
    u32_at(message.body, 4) == Some(index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{Change, set};
    use crate::testing::in_netns;

    #[test]
    fn numbers_of_a_bucket() {
        // 8 Mbit/s, 100 kB: 0.1 s, and 25 ms of the rate beside the burst.
        assert_eq!(
            Tbf::new(1_000_000, 100_000, 25),
            Tbf { rate: 1_000_000, limit: 125_000, buffer: 1_562_500 }
        );
        assert_eq!(Tbf::new(1_000_000, 100_000, 25).burst(), 100_000);
        // Whole microseconds: 333 of 333.3.
        assert_eq!(Tbf::new(3_000_000, 1000, 25).buffer, 333 * 125 / 8);
        let huge = Tbf::new(1000, u64::from(u32::MAX), 25);
        assert_eq!((huge.limit, huge.buffer), (u32::MAX, u32::MAX));
        assert_eq!(Tbf::new(0, 1, 25).buffer, 0);
        assert_eq!(Tbf::new(u64::MAX, u64::MAX, u32::MAX).limit, u32::MAX);
    }

    #[test]
    fn broken_options() {
        for options in [&[8, 0, 1, 0, 0, 0, 0, 0][..], &[8, 0, 4, 0, 0, 0, 0, 0], &[9, 0, 1, 0]] {
            assert!(Tbf::read(options).is_err(), "{options:?}");
        }
    }

    #[test]
    fn what_is_set_is_read() {
        in_netns("qdisc", || {
            let mut netlink = Netlink::open().unwrap();
            let lo = netlink.link("lo").unwrap();
            netlink.execute(set(lo.index, "lo", &Change { up: Some(true), ..Change::default() })).unwrap();
            assert!(netlink.knows_qdisc("tbf").unwrap() && !netlink.knows_qdisc("no-such").unwrap());
            let before = netlink.root_qdisc(lo.index).unwrap();
            assert!(before.is_none_or(|qdisc| qdisc.kind == "noqueue" && qdisc.tbf.is_none()));
            for tbf in [Tbf::new(1_000_000, 100_000, 25), Tbf::new(5 << 32, 1 << 30, 25)] {
                netlink.execute(add_tbf(lo.index, "lo", &tbf)).unwrap();
                let now = netlink.root_qdisc(lo.index).unwrap().unwrap();
                assert_eq!((now.kind.as_str(), now.tbf), ("tbf", Some(tbf)));
                let again = netlink.execute(add_tbf(lo.index, "lo", &tbf)).unwrap_err();
                assert!(again.is(Errno::EEXIST), "{again}");
                assert!(netlink.knows_qdisc("tbf").unwrap());
                netlink.execute(del_root(lo.index, "lo")).unwrap();
            }
            assert!(netlink.execute(del_root(lo.index, "lo")).is_err());
            assert!(netlink.root_qdisc(12345).unwrap_err().is(Errno::ENODEV));
            assert_eq!(netlink.ingress_qdisc(lo.index).unwrap(), None);
            netlink.execute(add_ingress(lo.index, "lo")).unwrap();
            assert_eq!(netlink.ingress_qdisc(lo.index).unwrap().unwrap().kind, "ingress");
            netlink.execute(del_ingress(lo.index, "lo")).unwrap();
        });
    }
}
