//! Switches of the host, with their undo.

use ipnetwork::IpNetwork;

use cnimble_cni::Error;
use cnimble_netlink::link::{Filter, Link};
use cnimble_netlink::{Netlink, sysctl};

use crate::Call;

/// Sets `accept_ra` to 0. A host without IPv6 has no such key.
///
/// # Errors
/// The kernel's.
pub fn ignore_router_advertisements(call: &Call, interface: &str) -> Result<(), Error> {
    let key = format!("net/ipv6/conf/{interface}/accept_ra");
    match sysctl::ensure(&key, "0") {
        Ok(None) => Ok(()),
        Ok(Some(old)) => {
            let name = interface.to_owned();
            call.undo.push(format!("restore {key}"), move || {
                let mut host = Netlink::open()?;
                // It goes with the link if the link was ours, and stays with a bridge that
                // other pods have come to.
                match host.find_link(&name)? {
                    Some(link)
                        if host.links(&Filter { master: Some(link.index), kind: None })?.is_empty() => {}
                    _ => return Ok(()),
                }
                match sysctl::write(&key, &old) {
                    Err(err) if !err.is_missing() => Err(err.into()),
                    _ => Ok(()),
                }
            });
            Ok(())
        }
        Err(err) if err.is_missing() => Ok(()),
        Err(err) => Err(err.into()),
    }
}

/// Sets `accept_ra` to 0 of a link that this ADD has just made, and with which the switch goes
/// again. To be done before the link is up. A host without IPv6 has no such key.
///
/// # Errors
/// The kernel's.
pub fn ignore_router_advertisements_on_new(link: &Link) -> Result<(), Error> {
    if link.accept_ra == Some(0) {
        return Ok(());
    }
    match sysctl::write(&format!("net/ipv6/conf/{}/accept_ra", link.name), "0") {
        Err(err) if !err.is_missing() => Err(err.into()),
        _ => Ok(()),
    }
}

/// Switches forwarding on for the families of `addrs`. It is switched off
/// again only if this pod is the only one on the host: any other, of whatever network, may
/// count on it by then.
///
/// # Errors
/// The kernel's.
pub fn forward(call: &Call, host: &mut Netlink, addrs: &[IpNetwork]) -> Result<(), Error> {
    for (v4, key) in [(true, "net/ipv4/ip_forward"), (false, "net/ipv6/conf/all/forwarding")] {
        // A kernel that doesn't say, or not by netlink, may say it by sysctl.
        if !addrs.iter().any(|addr| addr.is_ipv4() == v4) || host.forwards(v4).unwrap_or(false) {
            continue;
        }
        let Some(old) = sysctl::ensure(key, "1")? else { continue };
        call.undo.push(format!("restore {key}"), move || {
            if pods(&mut Netlink::open()?)? > 1 {
                return Ok(());
            }
            Ok(sysctl::write(key, &old)?)
        });
    }
    Ok(())
}

/// How many pods there are on the host: ports of bridges, and what is named like a pod's veth.
fn pods(host: &mut Netlink) -> Result<usize, Error> {
    let veths = host.links(&Filter { master: None, kind: Some("veth") })?;
    // The other end of a pod's veth is in the pod, that of a vlan's gateway here.
    let both_here = |one: &Link| {
        veths.iter().any(|link| {
            link.master.is_some() != one.master.is_some()
                && Some(link.index) == one.peer
                && link.peer == Some(one.index)
        })
    };
    let is_pod = |link: &&Link| (link.master.is_some() || link.name.starts_with("veth")) && !both_here(link);
    Ok(veths.iter().filter(is_pod).count())
}
