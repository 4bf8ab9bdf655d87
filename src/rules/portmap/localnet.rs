//! `route_localnet` on the link towards a pod.
//!
//! It stays when the mapping goes: others may rely on it by then, and the guard in the packet
//! rules stays as well.

use std::net::IpAddr;

use crate::net::{Netlink, sysctl};
use crate::spec::Error;

/// What was switched on.
#[derive(Debug)]
pub(super) struct Opened {
    key: String,
    old: String,
}

/// Lets packets of 127.0.0.0/8 leave by the link towards the pod; `None` if they could before,
/// or if there is no such link.
pub(super) fn open(pod: IpAddr) -> Result<Option<Opened>, Error> {
    let Some(key) = key(pod)? else {
        log::warn!("no route leads to {pod}: localhost won't reach its ports");
        return Ok(None);
    };
    Ok(sysctl::ensure(&key, "1")?.map(|old| Opened { key, old }))
}

impl Opened {
    /// Switches it back.
    pub(super) fn close(&self) -> Result<(), Error> {
        match sysctl::write(&self.key, &self.old) {
            Err(err) if !err.is_missing() => Err(err.into()),
            _ => Ok(()),
        }
    }
}

/// It is on.
pub(super) fn check(pod: IpAddr) -> Result<(), Error> {
    if let Some(key) = key(pod)? {
        let now = sysctl::read(&key)?;
        if now != "1" {
            return Err(Error::check(format!("{key} is {now}: localhost can't reach {pod}")));
        }
    }
    Ok(())
}

fn key(pod: IpAddr) -> Result<Option<String>, Error> {
    let mut host = Netlink::open()?;
    let Some(index) = host.link_towards(pod)? else { return Ok(None) };
    let link = host.link_at(index)?;
    Ok(Some(format!("net/ipv4/conf/{}/route_localnet", link.name)))
}
