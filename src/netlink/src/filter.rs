//! Filters of packets: `tc filter`. Those of a link's qdisc `ingress` that send everything to
//! another link, and ([`super::sort`]) those that sort by a network.

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{
    TcAction, TcActionAttribute, TcActionMirror, TcActionMirrorOption, TcActionOption, TcActionType,
    TcAttribute, TcFilterU32, TcFilterU32Option, TcHandle, TcMirror, TcMirrorActionType, TcOption, TcU32Key,
    TcU32Selector, TcU32SelectorFlags,
};

use super::qdisc::{INGRESS_HANDLE, TCA_KIND, TCA_OPTIONS, TCMSG, is_of, of_link};
use super::request::{Mode, encode};
use super::wire::{Attributes, Malformed, Message, text, u32_at};
use super::{Netlink, Request, Result};

const RTM_NEWTFILTER: u16 = 44;
/// `TCA_U32_SEL`
pub(super) const U32_SEL: u16 = 5;
/// ETH_P_ALL, in network byte order as the kernel wants it, and priority 1.
const ALL_FIRST: u32 = (1 << 16) | (3_u16.to_be() as u32);

/// `tc filter add dev LINK ingress protocol all prio 1 u32 match u8 0 0 action mirred egress
/// redirect dev TARGET`: all that `index` receives is sent out of `target` instead. The link
/// must have qdisc `ingress`.
///
/// u32 is in every kernel that limits traffic; `matchall` would say it shorter, but some
/// minimal ones lack it.
pub fn redirect(index: u32, name: &str, target: u32) -> Request {
    let mut mirror = TcMirror::default();
    mirror.generic.action = TcActionType::Stolen;
    mirror.eaction = TcMirrorActionType::EgressRedir;
    mirror.ifindex = target;
    let mut action = TcAction::default();
    action.attributes = vec![
        TcActionAttribute::Kind(TcActionMirror::KIND.into()),
        TcActionAttribute::Options(vec![TcActionOption::Mirror(TcActionMirrorOption::Parms(mirror))]),
    ];
    // One key with an empty mask, which all packets match.
    let mut selector = TcU32Selector::default();
    selector.flags = TcU32SelectorFlags::Terminal;
    selector.nkeys = 1;
    selector.keys = vec![TcU32Key::default()];
    let options = [
        TcFilterU32Option::ClassId(TcHandle { major: 1, minor: 1 }),
        TcFilterU32Option::Selector(selector),
        TcFilterU32Option::Action(vec![action]),
    ];
    let mut message = of_link(index, TcHandle::UNSPEC, INGRESS_HANDLE);
    message.header.info = ALL_FIRST;
    message.attributes = vec![
        TcAttribute::Kind(TcFilterU32::KIND.into()),
        TcAttribute::Options(options.into_iter().map(TcOption::U32).collect()),
    ];
    let what = format!("redirect what {name} receives to link {target}");
    Request::new(what, Mode::Create, RouteNetlinkMessage::NewTrafficFilter(message))
}

impl Netlink {
    /// The links that u32 filters of a link's qdisc `ingress` redirect to, in order.
    ///
    /// # Errors
    /// The kernel's; EINVAL or ENOENT if there is no such qdisc is an empty list.
    pub fn redirects(&mut self, index: u32) -> Result<Vec<u32>> {
        self.filters(index, INGRESS_HANDLE, read)
    }

    /// Whether all filters of a link's qdisc `ingress` redirect to links that are gone: then
    /// what it receives is lost. So are those of which there are none.
    ///
    /// # Errors
    /// The kernel's.
    pub fn redirects_nowhere(&mut self, index: u32) -> Result<bool> {
        for what in self.filters(index, INGRESS_HANDLE, |message| Ok(Some(effect(message)?)))? {
            match what {
                Effect::Nothing | Effect::Redirect(0) => {}
                Effect::Other => return Ok(false),
                Effect::Redirect(target) => match self.link_at(target) {
                    Err(err) if err.is_missing() => {}
                    found => return found.map(|_| false),
                },
            }
        }
        Ok(true)
    }

    /// What `read` makes of the filters of one of a link's qdiscs, in order.
    pub(super) fn filters<T>(
        &mut self,
        index: u32,
        parent: TcHandle,
        read: impl Fn(&Message<'_>) -> std::result::Result<Option<T>, Malformed>,
    ) -> Result<Vec<T>> {
        let message = RouteNetlinkMessage::GetTrafficFilter(of_link(index, TcHandle::UNSPEC, parent));
        let message = encode(message, NLM_F_REQUEST | NLM_F_DUMP);
        let found = self.dump_raw("list filters", &message, |message| {
            if is_of(message, index) { read(message) } else { Ok(None) }
        });
        match found {
            Err(err) if err.is_missing() || err.is(nix::errno::Errno::EINVAL) => Ok(Vec::new()),
            found => found,
        }
    }
}

/// What a filter does.
enum Effect {
    /// It is only the frame around others: u32 lists its hash tables, too.
    Nothing,
    /// All goes to this link, or to one that has gone (0).
    Redirect(u32),
    Other,
}

fn effect(message: &Message<'_>) -> std::result::Result<Effect, Malformed> {
    if let Some(target) = read(message)? {
        return Ok(Effect::Redirect(target));
    }
    let (mut kind, mut options) = (String::new(), None);
    for attribute in Attributes::behind(message.body, TCMSG) {
        match attribute? {
            (TCA_KIND, value) => kind = text(value),
            (TCA_OPTIONS, value) => options = Some(value),
            _ => {}
        }
    }
    let selects = match options {
        Some(options) => nested(Attributes::new(options), U32_SEL)?.is_some(),
        None => false,
    };
    Ok(if kind == "u32" && !selects { Effect::Nothing } else { Effect::Other })
}

/// The target of the first redirection in a filter: options, actions, the first one's options,
/// parameters. Filters without one, and those of other kinds, have none.
pub(super) fn read(message: &Message<'_>) -> std::result::Result<Option<u32>, Malformed> {
    const U32_ACT: u16 = 7;
    const FIRST: u16 = 1;
    const ACT_OPTIONS: u16 = 2;
    const MIRRED_PARMS: u16 = 2;
    /// In `struct tc_mirred`, behind the five fields of every action and `eaction`.
    const IFINDEX: usize = 24;
    if message.kind != RTM_NEWTFILTER {
        return Ok(None);
    }
    let mut inner = nested(Attributes::behind(message.body, TCMSG), TCA_OPTIONS)?;
    for kind in [U32_ACT, FIRST, ACT_OPTIONS, MIRRED_PARMS] {
        inner = match inner {
            Some(bytes) => nested(Attributes::new(bytes), kind)?,
            None => return Ok(None),
        };
    }
    Ok(inner.and_then(|parameters| u32_at(parameters, IFINDEX)))
}

pub(super) fn nested(
    attributes: Attributes<'_>,
    wanted: u16,
) -> std::result::Result<Option<&[u8]>, Malformed> {
    for attribute in attributes {
        let (kind, value) = attribute?;
        if kind == wanted {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::in_netns;
    use crate::{ifb, qdisc};

    #[test]
    fn what_is_redirected_is_read() {
        in_netns("filter", || {
            let mut netlink = Netlink::open().unwrap();
            let lo = netlink.link("lo").unwrap().index;
            assert!(netlink.knows_kind(crate::kind::Kind::Ifb).unwrap());
            let new = ifb::NewIfb { name: "b0", mtu: 1400, txqlen: 7 };
            let made = netlink.create_link(ifb::add(&new)).unwrap();
            assert_eq!((made.kind.as_str(), made.mtu, made.txqlen, made.up), ("ifb", 1400, 7, true));
            assert!(netlink.redirects(lo).unwrap().is_empty());
            assert!(netlink.execute(redirect(lo, "lo", made.index)).is_err());
            netlink.execute(qdisc::add_ingress(lo, "lo")).unwrap();
            assert!(netlink.redirects(lo).unwrap().is_empty());
            assert!(netlink.redirects_nowhere(lo).unwrap());
            netlink.execute(redirect(lo, "lo", made.index)).unwrap();
            assert_eq!(netlink.redirects(lo).unwrap(), [made.index]);
            assert!(!netlink.redirects_nowhere(lo).unwrap());
            assert!(netlink.redirects(made.index).unwrap().is_empty());
            assert!(netlink.execute(redirect(lo, "lo", 12345)).is_err());
            netlink.execute(crate::link::del(made.index, "b0")).unwrap();
            assert!(netlink.redirects_nowhere(lo).unwrap());
        });
    }
}
