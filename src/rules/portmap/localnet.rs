//! `route_localnet` on the link towards a pod.
//!
//! Other pods behind the same link may rely on it by the time that a mapping goes. So the links
//! where it was switched on are noted in a set beside the mappings, and it is switched off when
//! the last mapping of the host goes, and with it the guard.

use std::net::IpAddr;

use crate::net::{Netlink, sysctl};
use crate::spec::Error;

/// What was switched on.
#[derive(Debug)]
pub(super) struct Opened {
    /// The link's name.
    pub(super) link: String,
}

/// Lets packets of 127.0.0.0/8 leave by the link towards the pod; `None` if they could before,
/// or if there is no such link. `note` is told before.
pub(super) fn open(
    pod: IpAddr,
    note: impl FnOnce(&str) -> Result<(), Error>,
) -> Result<Option<Opened>, Error> {
    let Some(link) = towards(pod)? else {
        log::warn!("no route leads to {pod}: localhost won't reach its ports");
        return Ok(None);
    };
    if sysctl::read(&key(&link))? == "1" {
        return Ok(None);
    }
    note(&link)?;
    sysctl::write(&key(&link), "1")?;
    Ok(Some(Opened { link }))
}

/// Switches it on or off, on a link that may be gone.
pub(super) fn set(link: &str, on: bool) -> crate::net::Result<()> {
    match sysctl::write(&key(link), if on { "1" } else { "0" }) {
        Err(err) if !err.is_missing() => Err(err),
        _ => Ok(()),
    }
}

/// The link towards the pod, if it is on there.
pub(super) fn opened(pod: IpAddr) -> Result<Option<String>, Error> {
    let Some(link) = towards(pod)? else { return Ok(None) };
    Ok((sysctl::read(&key(&link))? == "1").then_some(link))
}

/// It is on.
pub(super) fn check(pod: IpAddr) -> Result<(), Error> {
    if let Some(link) = towards(pod)? {
        let key = key(&link);
        let now = sysctl::read(&key)?;
        if now != "1" {
            return Err(Error::check(format!("{key} is {now}: localhost can't reach {pod}")));
        }
    }
    Ok(())
}

fn key(link: &str) -> String {
    format!("net/ipv4/conf/{link}/route_localnet")
}

/// The name of the link towards the pod.
fn towards(pod: IpAddr) -> Result<Option<String>, Error> {
    let mut host = Netlink::open()?;
    let Some(index) = host.link_towards(pod)? else { return Ok(None) };
    Ok(Some(host.link_at(index)?.name))
}
