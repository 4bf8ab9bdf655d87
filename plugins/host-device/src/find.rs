//! Finds the configured device on the host.

use std::path::Path;

use cnimble_cni::{Code, Error};
use cnimble_netlink::Netlink;
use cnimble_netlink::link::{Filter, Link};

use crate::config::{Config, DeviceSelector};
use crate::identity::LOOPBACK;
use crate::moving;
use crate::place::DeviceNamespace;
use crate::seen::DeviceProof;
use crate::store::RecordStore;
use crate::sysfs::Sysfs;

/// Returns the mounted sysfs. It shows the namespace that it was mounted in, which is the host's for a plugin.
pub(crate) fn sysfs() -> Sysfs<'static> {
    Sysfs(Path::new("/sys"))
}

/// Returns true if the driver of the configured device (`pciBusID`, `runtimeConfig.deviceID`) leaves it to a program,
/// as vfio-pci does. Such a device has no interface. Fails with code 100 if the device is missing or has no driver.
pub(crate) fn is_for_programs(config: &Config) -> Result<bool, Error> {
    config.bus_id.as_ref().map_or(Ok(false), |id| sysfs().is_for_programs(id))
}

/// Finds the configured interface on the host. Fails with code 100 if it is missing, and with code 7 for `lo`, which
/// every namespace has.
pub(crate) fn link(host: &mut Netlink, wanted: &DeviceSelector) -> Result<Link, Error> {
    let found = match wanted {
        DeviceSelector::Name(name) => host.find_link(name)?.ok_or_else(|| missing_device(name, "device"))?,
        DeviceSelector::Mac(mac) => {
            let mut links = host.links(&Filter::default())?.into_iter();
            links
                .find(|link| link.mac == Some(*mac))
                .ok_or_else(|| missing_device(&mac.to_string(), "hwaddr"))?
        }
        of_sysfs => host.link(&sysfs().interface(of_sysfs)?)?,
    };
    if found.name == LOOPBACK {
        return Err(Error::config("device: lo can't be moved").details("each namespace has its own"));
    }
    Ok(found)
}

/// Returns the error for a device that the host lacks, with code 100. `key` is the configuration's key that names it.
fn missing_device(what: &str, key: &str) -> Error {
    Error::new(Code::KERNEL, format!("device \"{what}\" is missing on the host"))
        .details(format!("the configuration's key {key} names it; it may be in a pod"))
}

/// Finds the configured interface as [`link`] does, after restoring it if it still has a record. The kernel returns the
/// device of a dead pod under the pod's name, so it may be missing until then. The record is removed.
///
/// The error of [`link`] is returned if no record helps.
pub(crate) fn link_or_returned(
    host: &mut DeviceNamespace,
    wanted: &DeviceSelector,
    records: &RecordStore,
) -> Result<DeviceProof, Error> {
    let found = see_wanted(host, wanted);
    if found.as_ref().is_err_and(|err| err.code != Code::KERNEL) {
        return found;
    }
    for record in records.all(|_| true)? {
        let is_meant = match (&found, wanted) {
            (Ok(seen), _) => record.is(seen),
            (Err(_), DeviceSelector::Name(name)) => record.name == *name,
            (Err(_), DeviceSelector::Mac(mac)) => record.mac() == Some(*mac),
            (Err(_), _) => false,
        };
        if is_meant {
            let _held = records.lock_device(&record.name)?;
            if moving::home(&record, None)? {
                records.remove(&record.owner())?;
                return see_wanted(host, wanted);
            }
        }
    }
    found
}

/// Finds the configured interface and reads what proves which device it is ([`DeviceNamespace::read_properties`]).
fn see_wanted(host: &mut DeviceNamespace, wanted: &DeviceSelector) -> Result<DeviceProof, Error> {
    let link = link(&mut host.netlink, wanted)?;
    let gone = format!("device {} was removed meanwhile", link.name);
    host.read_properties(link)?.ok_or_else(|| Error::new(Code::KERNEL, gone))
}
