//! Redirection of what a link receives: `tc filter … action mirred egress redirect` (linux/tc_act/tc_mirred.h).

use super::filter::{self, Effect, FIRST_ACTION, Key, U32};
use super::{Handle, header_with, struct_of, write_kind};
use crate::request::Mode;
use crate::uapi::pkt_cls::{
    TC_ACT_STOLEN, TCA_ACT_KIND, TCA_ACT_OPTIONS, TCA_EGRESS_REDIR, TCA_INGRESS_REDIR, TCA_MIRRED_PARMS,
    TCA_U32_ACT, TCA_U32_CLASSID, TCA_U32_SEL,
};
use crate::uapi::rtnetlink::RTM_NEWTFILTER;
use crate::{IfPresent as _, Netlink, Request, Result};

const ALL: u16 = libc::ETH_P_ALL as u16;

/// `tc filter add dev LINK ingress protocol all prio 1 u32 match u8 0 0 action mirred egress redirect dev TARGET`:
/// sends all packets that `index` receives out of `target` instead. The link must have the qdisc `ingress`. `name` is
/// the name of link `index`, for messages.
pub fn add(index: u32, name: &str, target: u32) -> Request {
    new_filter(format!("redirect what {name} receives to link {target}"), index, TCA_EGRESS_REDIR, target)
}

/// Makes `target` receive all packets that `index` receives: [`add`] with `action mirred ingress redirect`.
pub fn add_receiver(index: u32, name: &str, target: u32) -> Request {
    new_filter(format!("let link {target} receive what {name} receives"), index, TCA_INGRESS_REDIR, target)
}

/// Adds a u32 filter for all packets. `action` is one of the constants TCA_*_REDIR of linux/tc_act/tc_mirred.h.
fn new_filter(what: String, index: u32, action: u32, target: u32) -> Request {
    let header = header_with(index, Handle::UNSPEC, Handle::AT_INGRESS, filter::info(1, ALL));
    // `struct tc_mirred`: index, capabilities, action, two counters; then its own two.
    let mirred = struct_of(&[0, 0, TC_ACT_STOLEN, 0, 0, action, target]);
    Request::written(what, Mode::Create, RTM_NEWTFILTER, &header, |w| {
        write_kind(w, U32, |w| {
            w.u32_ne(TCA_U32_CLASSID, Handle::new(1, 1).0);
            w.bytes(TCA_U32_SEL, &filter::selector(&[Key::default()]));
            w.nest_unflagged(TCA_U32_ACT, |w| {
                w.nest_unflagged(FIRST_ACTION, |w| {
                    w.text(TCA_ACT_KIND, "mirred");
                    w.nest(TCA_ACT_OPTIONS, |w| w.bytes(TCA_MIRRED_PARMS, &mirred));
                });
            });
        });
    })
}

impl Netlink {
    /// Returns the indexes of the links that u32 filters of a link's qdisc `ingress` pass packets to, in the filters'
    /// order. It is 0 for a target that has been deleted. The list is empty if there is no link or no such qdisc.
    ///
    /// # Errors
    /// Fails if the kernel refuses to list the filters, other than for a missing qdisc (EINVAL, ENOENT).
    pub fn redirects(&mut self, index: u32) -> Result<Vec<u32>> {
        self.filters(index, Handle::AT_INGRESS, filter::redirection)
    }

    /// Returns true if all filters of a link's qdisc `ingress` redirect to deleted links, so that received packets are
    /// lost. It is also true without filters, and if there is no link or no such qdisc. Any filter of another kind
    /// makes it false.
    pub fn redirects_nowhere(&mut self, index: u32) -> Result<bool> {
        for what in self.filters(index, Handle::AT_INGRESS, |message| Ok(Some(filter::effect(message)?)))? {
            match what {
                Effect::Nothing | Effect::Redirect(0) => {}
                Effect::Redirect(target) if self.link_at(target).if_present()?.is_none() => {}
                Effect::Other | Effect::Redirect(_) => return Ok(false),
            }
        }
        Ok(true)
    }
}
