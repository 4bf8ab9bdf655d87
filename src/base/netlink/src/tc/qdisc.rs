//! Queueing disciplines of a link: `tc qdisc`. This module looks up those that limit traffic. It makes and removes
//! `ingress`, to which filters for received packets are attached.

use nix::errno::Errno;

use super::tbf::Tbf;
use super::{Handle, handle_of, header, htb, kind_and_options};
use crate::request::Mode;
use crate::uapi::netlink::{NLM_F_ACK, NLM_F_ECHO, NLM_F_REQUEST};
use crate::uapi::rtnetlink::{RTM_DELQDISC, RTM_GETQDISC, RTM_NEWQDISC, TCA_KIND};
use crate::wire::{self, Message, Parsed};
use crate::{Netlink, Request, Result};

/// A qdisc of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qdisc {
    /// The kind of the qdisc: `tbf`, `noqueue`, …
    pub kind: String,
    /// The major number of its handle; 0 if the kernel has put it there by itself.
    pub major: u16,
    /// The parameters of a token bucket, for the kind `tbf`.
    pub tbf: Option<Tbf>,
    /// The class of packets that no filter matches, for the kind `htb`. `None` if it is none of [`htb::Class`].
    pub default_class: Option<htb::Class>,
}

/// `tc qdisc add dev LINK ingress`. The kernel refuses it with EEXIST if there is one. In this module `name` is the
/// link's name, for messages.
pub fn add_ingress(index: u32, name: &str) -> Request {
    let header = header(index, Handle::AT_INGRESS, Handle::INGRESS);
    let what = format!("add qdisc ingress to {name}");
    Request::written(what, Mode::Create, RTM_NEWQDISC, &header, |w| w.text(TCA_KIND, "ingress"))
}

/// `tc qdisc del dev LINK root`, which also removes the classes and filters.
pub fn del_root(index: u32, name: &str) -> Request {
    let header = header(index, Handle::UNSPEC, Handle::ROOT);
    let what = format!("delete the root qdisc of {name}");
    Request::written(what, Mode::Change, RTM_DELQDISC, &header, |_| {})
}

/// `tc qdisc del dev LINK ingress`, with its filters.
pub fn del_ingress(index: u32, name: &str) -> Request {
    let header = header(index, Handle::AT_INGRESS, Handle::INGRESS);
    let what = format!("delete qdisc ingress of {name}");
    Request::written(what, Mode::Change, RTM_DELQDISC, &header, |_| {})
}

impl Netlink {
    /// `tc qdisc show dev LINK root`. Returns `None` if the kernel reports none.
    ///
    /// # Errors
    /// Fails with ENODEV if the link is gone.
    pub fn root_qdisc(&mut self, index: u32) -> Result<Option<Qdisc>> {
        self.qdisc_at(index, Handle::ROOT)
    }

    /// `tc qdisc show dev LINK ingress`. Its kind is `ingress` or `clsact`. Returns `None` if the link has neither.
    ///
    /// # Errors
    /// Fails with ENODEV if the link is gone.
    pub fn ingress_qdisc(&mut self, index: u32) -> Result<Option<Qdisc>> {
        self.qdisc_at(index, Handle::INGRESS)
    }

    fn qdisc_at(&mut self, index: u32, parent: Handle) -> Result<Option<Qdisc>> {
        // Kernels before 6.8 answer only to listeners, unless an echo is asked for.
        let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_ECHO;
        let message = wire::message(RTM_GETQDISC, flags, &header(index, Handle::UNSPEC, parent), |_| {});
        self.find(&format!("look up a qdisc of link {index}"), message, &[Errno::ENOENT], read)
    }

    /// Returns true if the kernel has a kind of qdisc that cannot do without options (`tbf`, `htb`). It asks for one on
    /// lo without them. A kernel that knows the kind refuses that with EINVAL, so nothing changes. A kind that needs no
    /// options would be added to lo.
    ///
    /// # Errors
    /// Fails if the kernel refuses it for another reason, such as with EPERM.
    pub fn knows_qdisc(&mut self, kind: &str) -> Result<bool> {
        let lo = self.link("lo")?;
        let header = header(lo.index, Handle::AT_ROOT, Handle::ROOT);
        let what = format!("ask for the qdisc {kind}");
        match self.execute(Request::written(what, Mode::Create, RTM_NEWQDISC, &header, |w| {
            w.text(TCA_KIND, kind);
        })) {
            Err(err) if err.is(Errno::ENOENT) || err.is(Errno::EOPNOTSUPP) => Ok(false),
            // EEXIST: an administrator has put another qdisc there.
            Err(err) if !err.is(Errno::EINVAL) && !err.is(Errno::EEXIST) => Err(err),
            _ => Ok(true),
        }
    }
}

/// Reads the qdisc in an RTM_NEWQDISC. `None` for other messages.
pub(crate) fn read(message: &Message<'_>) -> Parsed<Option<Qdisc>> {
    if message.kind != RTM_NEWQDISC {
        return Ok(None);
    }
    let (kind, options) = kind_and_options(message)?;
    let major = handle_of(message).map_or(0, Handle::major);
    let mut qdisc = Qdisc { kind, major, tbf: None, default_class: None };
    match (qdisc.kind.as_str(), options) {
        ("tbf", Some(options)) => qdisc.tbf = Some(Tbf::read(options)?),
        ("htb", Some(options)) => qdisc.default_class = htb::default_class(options)?,
        _ => {}
    }
    Ok(Some(qdisc))
}
