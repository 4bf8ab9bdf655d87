//! The host's ends of veth pairs. The alias of each names its owner ([`cnimble_cni::Owner`]).

use cnimble_cni::owner::tag;
use cnimble_netlink::link::Link;

use super::{Judge, Orphan};

pub const KIND: &str = "veth";

/// Returns whether a link is a veth whose other end is in another namespace.
pub fn leads_to_a_pod(link: &Link) -> bool {
    link.kind == KIND && link.peer_netnsid.is_some()
}

/// Returns the verdict on a veth of ours if its other end never reached a pod, else `None`. Other pairs need none,
/// because the kernel removes them with the pod's namespace.
pub(super) fn orphan(judge: &impl Judge, link: &Link) -> Option<Orphan> {
    tag(&link.alias).filter(|_| judge.both_ends_here(link))?;
    let doubt = judge.lives(&link.alias).then(|| "its pod may live".to_owned());
    Some(Orphan { why: "its other end is on the host, too, and not in a pod", doubt })
}
