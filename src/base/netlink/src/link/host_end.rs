//! The host's end of a pod's veth pair, and the proof that it belongs to an attachment.
//!
//! A repair, CHECK and DEL change the host's end, so a wrong one is another pod's port or the node's uplink. The root of
//! a pod chooses everything that its namespace tells about its links: names, indices, MACs, aliases. It also chooses
//! the index of a link's peer (`ip link add eth0 index P type veth peer name x index U netns NESTED`). So nothing that
//! is read in a pod selects a link of the host. A pod cannot change what the host tells about its own links:
//!
//! - A link's *alias* is written by a process with CAP_NET_ADMIN in the user namespace that owns the link's network
//!   namespace. So a pod writes aliases in its own namespaces only. The kernel ignores an alias in a request that makes
//!   a link.
//! - The *peer's index* (IFLA_LINK) and the *number of the peer's namespace* (IFLA_LINK_NETNSID) come from the kernel's
//!   own pointers. If a pod moves its end into another namespace, the host's link tells of that one.
//! - The *numbers of namespaces* (RTM_GETNSID) belong to the host's namespace. The kernel assigns them, and a process
//!   needs CAP_NET_ADMIN there to do so. A number stays with its namespace as long as that is open.
//! - A link comes into the host's namespace only by a process with CAP_NET_ADMIN there. For a pod `ip link set … netns`
//!   and `ip link add … netns` fail with EPERM (tried on Linux 6.18 and 7.2, tests/hostile/identity). Should a kernel
//!   not check the peer of a new veth, a pod could make one there if it sees a process of the host. That link has no
//!   alias and leads into the pod, so as its host's end it gains nothing.

use std::os::fd::{AsFd, AsRawFd};

use cnimble_cni::{Owner, owner};

use crate::link::{Filter, Link};
use crate::uapi::net_namespace::{NETNSA_FD, NETNSA_NSID};
use crate::uapi::netlink::NLM_F_REQUEST;
use crate::uapi::rtnetlink::{RTGENMSG, RTM_GETNSID, RTM_NEWNSID};
use crate::wire::{self, Attributes, Message, Parsed, u32_ne};
use crate::{IfPresent as _, NetNs, Netlink, Result};

impl Link {
    /// Whether the other end of this veth is the link `index` of the namespace with this number, as
    /// [`Netlink::number_of`] returns it. The number must be one of the namespace that this link is in.
    pub fn leads_to(&self, index: u32, number: Option<i32>) -> bool {
        self.kind == "veth" && self.peer == Some(index) && number.is_some() && self.peer_netnsid == number
    }
}

impl Netlink {
    /// Returns the number that the namespace has in this one (RTM_GETNSID, rtnetlink(7)), or `None` if it has none. The
    /// kernel gives it one when it describes a link that leads there, so the link has to be looked up first.
    ///
    /// # Errors
    /// Fails if the kernel refuses the look-up.
    pub fn number_of(&mut self, netns: &NetNs) -> Result<Option<i32>> {
        let fd = netns.as_fd().as_raw_fd().cast_unsigned();
        let message = wire::message(RTM_GETNSID, NLM_F_REQUEST, &[0; RTGENMSG], |w| w.u32_ne(NETNSA_FD, fd));
        self.get("ask for the number of a network namespace", message, read)
    }

    /// Returns the link of this namespace that is the other end of `link`, a veth in `netns`. The index that `link`
    /// tells is only where to look, because it may be any. The link here has to lead to `link`. `None` if there is no
    /// such link, or if both ends are in `netns`.
    ///
    /// # Errors
    /// Fails if the kernel refuses a look-up.
    pub fn other_end(&mut self, link: &Link, netns: &NetNs) -> Result<Option<Link>> {
        let Some(index) = link.peer.filter(|_| link.kind == "veth" && link.peer_netnsid.is_some()) else {
            return Ok(None);
        };
        let Some(end) = self.link_at(index).if_present()? else { return Ok(None) };
        if end.peer != Some(link.index) {
            return Ok(None);
        }
        let number = self.number_of(netns)?;
        Ok(Some(end).filter(|end| end.leads_to(link.index, number)))
    }

    /// Finds the host's end of an attachment whose interface is `pod` in `netns`, if the host proves it. `known` are
    /// the names of links on the host in the result of its ADD. `None` if no link has a proof.
    ///
    /// The link is a veth, and its peer has the index of `pod`. It has one of these proofs, which no pod can forge (see
    /// the text of this module):
    ///
    /// 1. Its alias names the attachment, under any name. ADD wrote the alias.
    /// 2. It has one of the `known` names, and its peer is in `netns`. Pods of the Go plugins have no alias. If it has
    ///    one, that names the same container: a plugin that delegates passes on the name of another network.
    ///
    /// # Errors
    /// Fails if the kernel refuses a look-up.
    pub fn host_end(
        &mut self,
        owner: &Owner,
        known: &[&str],
        pod: &Link,
        netns: &NetNs,
    ) -> Result<Option<Link>> {
        // The result lists a bridge before its port, so the last name is tried first.
        for name in known.iter().rev() {
            let Some(link) = self.find_link(name)?.filter(|link| may_lead_to(link, pod)) else { continue };
            if owner.owns(&link.alias) {
                return Ok(Some(link));
            }
            let is_anothers = owner::tag(&link.alias).is_some()
                && !Owner::is_of_container(&link.alias, &owner.attachment.container_id);
            if !is_anothers && link.leads_to(pod.index, self.number_of(netns)?) {
                return Ok(Some(link));
            }
        }
        // It may have been renamed.
        let veths = self.links(&Filter { master: None, kind: Some("veth") })?;
        Ok(veths.into_iter().find(|link| owner.owns(&link.alias) && may_lead_to(link, pod)))
    }
}

/// Returns whether a link is a veth whose other end is in another namespace and has the index of the pod's interface.
fn may_lead_to(link: &Link, pod: &Link) -> bool {
    link.kind == "veth" && link.peer_netnsid.is_some() && link.peer == Some(pod.index)
}

/// Reads the number in an RTM_NEWNSID. `None` if the namespace has none, which the kernel tells as -1.
pub(crate) fn read(message: &Message<'_>) -> Parsed<Option<i32>> {
    if message.kind != RTM_NEWNSID {
        return Ok(None);
    }
    let number = Attributes::behind(message.body, RTGENMSG).find(NETNSA_NSID)?;
    Ok(number.and_then(|value| u32_ne(value, 0)).map(u32::cast_signed).filter(|number| *number >= 0))
}
