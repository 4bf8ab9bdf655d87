//! The host's end of the veth pair, whose traffic is limited.

use nix::errno::Errno;

use cnimble_cni::{CniResult, Error};
use cnimble_netlink::link::Link;
use cnimble_netlink::{IfPresent, Netlink, tc::qdisc};
use cnimble_plugin::Call;

use crate::root;

/// Returns the host's end of CNI_IFNAME, if the host proves that it is the attachment's ([`Netlink::host_end`]). As
/// with the Go plugin, prevResult has to list it. Fails with code 7 if there is no such link.
pub(crate) fn host_end(call: &Call, host: &mut Netlink, prev: &CniResult) -> Result<Link, Error> {
    let netns = call.open_netns()?;
    let Some(pod) = Netlink::open_in(&netns)?.find_link(&call.ifname)? else {
        return Err(no_peer(call, "the interface is missing"));
    };
    if pod.kind != "veth" {
        return Err(no_peer(call, "it is not a veth"));
    }
    let on_host = prev.interfaces.iter().filter(|listed| listed.sandbox.is_empty());
    let known: Vec<&str> = on_host.map(|listed| listed.name.as_str()).collect();
    host.host_end(&call.owner(), &known, &pod, &netns)?
        .filter(|end| known.contains(&end.name.as_str()))
        .ok_or_else(|| no_peer(call, "prevResult has no interface on the host that is its other end"))
}

/// Returns the error for an interface without a host's end, with code 7 and the reason.
fn no_peer(call: &Call, why: &str) -> Error {
    Error::config(format!("interface {} in {} has no peer to limit", call.ifname, call.netns)).details(why)
}

/// Removes the limit and the redirection of the host's end among the interfaces in prevResult. Does nothing without a
/// prevResult. The link is known by its alias, or because it redirects to our `ifb`. The name alone is no proof:
/// prevResult may be outdated, and another pod may have the name.
pub(crate) fn clear(call: &Call, host: &mut Netlink, ifb: Option<&Link>) -> Result<(), Error> {
    let Some(prev) = &call.config.prev_result else { return Ok(()) };
    let outside = prev.interfaces.iter().filter(|listed| listed.sandbox.is_empty());
    for listed in outside.filter(|listed| ifb.is_none_or(|ifb| ifb.name != listed.name)) {
        let Some(link) = host.find_link(&listed.name)?.filter(|link| link.kind == "veth") else { continue };
        let sends = match ifb {
            Some(ifb) => host.redirects(link.index)?.contains(&ifb.index),
            None => false,
        };
        if !sends && !call.owner().owns(&link.alias) {
            continue;
        }
        // The pod's namespace may be removed concurrently. The kernel then answers EINVAL for a qdisc that is gone.
        let gone = [Errno::EINVAL];
        let root = host.root_qdisc(link.index).if_present()?.flatten();
        if root.is_some_and(|qdisc| root::is_limit(&qdisc)) {
            host.execute(qdisc::del_root(link.index, &link.name)).default_for(&gone).if_present()?;
        }
        if sends {
            host.execute(qdisc::del_ingress(link.index, &link.name)).default_for(&gone).if_present()?;
        }
    }
    Ok(())
}
