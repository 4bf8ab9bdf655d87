//! The shim of `hostShim` (macvlan, ipvlan): a link on the host by which the host reaches one pod. Its alias names the
//! owner.

use cnimble_cni::owner::tag;
use cnimble_netlink::link::Link;

use super::{Judge, Orphan};

pub const KINDS: [&str; 2] = ["macvlan", "ipvlan"];

const PREFIX: &str = "shim";
const DIGITS: usize = 11;

/// Returns whether a link is a shim, by kind, name and alias. The name matters because interfaces of pods have such an
/// alias, too.
pub fn is_shim(link: &Link) -> bool {
    let is_name = link
        .name
        .strip_prefix(PREFIX)
        .is_some_and(|hash| hash.len() == DIGITS && hash.bytes().all(|byte| byte.is_ascii_hexdigit()));
    is_name && KINDS.contains(&link.kind.as_str()) && tag(&link.alias).is_some()
}

/// Returns the verdict on a shim whose pod is gone, else `None`. The kernel removes the pod's own interface with its
/// namespace, but not the shim.
pub(super) fn orphan(judge: &impl Judge, link: &Link) -> Option<Orphan> {
    if !is_shim(link) || judge.lives(&link.alias) {
        return None;
    }
    Some(Orphan {
        why: "it leads the host to a pod, and nothing shows that the pod lives",
        doubt: judge.doubt(),
    })
}
