//! The device that a configuration means, on the host.

use std::path::Path;

use cnimble_cni::{Code, Error};
use cnimble_netlink::Netlink;
use cnimble_netlink::link::{Filter, Link};

use crate::config::{Config, Wanted};
use crate::moving;
use crate::record::{LOOPBACK, Records};
use crate::sysfs::Sysfs;

/// sysfs, which shows the interfaces of the namespace that it was mounted in.
pub(crate) fn sysfs() -> Sysfs<'static> {
    Sysfs(Path::new("/sys"))
}

/// Whether a driver leaves the device to a program: then it has no interface, and there is nothing to move.
///
/// # Errors
/// Code 100 if it is missing.
pub(crate) fn is_for_programs(config: &Config) -> Result<bool, Error> {
    config.bus_id.as_ref().map_or(Ok(false), |id| sysfs().is_for_programs(id))
}

/// The device's interface.
///
/// # Errors
/// Code 100 if it isn't on the host; the kernel's.
pub(crate) fn link(host: &mut Netlink, wanted: &Wanted) -> Result<Link, Error> {
    let missing = |what: String, key: &str| {
        Error::new(Code::KERNEL, format!("device \"{what}\" is missing on the host"))
            .details(format!("the configuration's key {key} names it; it may be in a pod"))
    };
    let found = match wanted {
        Wanted::Name(name) => host.find_link(name)?.ok_or_else(|| missing(name.clone(), "device"))?,
        Wanted::Mac(mac) => {
            let mut links = host.links(&Filter::default())?.into_iter();
            links.find(|link| link.mac == Some(*mac)).ok_or_else(|| missing(mac.to_string(), "hwaddr"))?
        }
        of_sysfs => host.link(&sysfs().interface(of_sysfs)?)?,
    };
    if found.name == LOOPBACK {
        return Err(Error::config("device: lo can't be moved").details("each namespace has its own"));
    }
    Ok(found)
}

/// The same; one that the kernel has given back under another name, when its pod died, gets its own again.
///
/// # Errors
/// As those of [`link`].
pub(crate) fn link_or_returned(
    host: &mut Netlink,
    wanted: &Wanted,
    records: &Records,
) -> Result<Link, Error> {
    let found = link(host, wanted);
    let (Err(err), Wanted::Name(name)) = (&found, wanted) else { return found };
    if err.code != Code::KERNEL {
        return found;
    }
    for record in records.all(|_| true)?.into_iter().filter(|record| record.name == *name) {
        if moving::on_host(&record, host)? && moving::home(&record, None)? {
            records.remove(&record.owner())?;
            return link(host, wanted);
        }
    }
    found
}
