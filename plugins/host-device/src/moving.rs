//! Moves the device into the pod and back.
//!
//! One message moves it into the pod, renames it, and writes the old name into its alias, as the Go plugin does. The
//! kernel moves first, even if the name is taken. So undo and DEL look in both namespaces, and identify the device by
//! its record ([`DeviceRecord::is`]).
//!
//! On the way back it is renamed in the pod, so that udev never sees the pod's name on the host. Alternative names that
//! the pod gave it and links on top of it are deleted first. The alias is the old name until everything is restored, so
//! that the next verb can continue after a kill.

use std::os::fd::AsFd;

use ipnetwork::IpNetwork;
use nix::errno::Errno;

use cnimble_cni::{Code, Error};
use cnimble_netlink::details::{self, Altnames, Details, altnames};
use cnimble_netlink::link::{self, Change, Filter, Link};
use cnimble_netlink::{self as netlink, IfPresent as _, NetNs, Netlink, Request, addr, sysctl};

use crate::place::DeviceNamespace;
use crate::record::DeviceRecord;

/// The kinds of links on top of the device that stay in the pod if the device is moved. On the host the kernel would
/// then refuse to add the device to a bridge or a bond (EBUSY).
const ON_TOP: [&str; 6] = ["ipvlan", "ipvtap", "macsec", "macvlan", "macvtap", "vlan"];

/// Moves the link into the pod as `name`, and writes its old name into its alias. It is down afterwards. After EEXIST,
/// for a name that is taken in the pod, it may have been moved or not.
pub(crate) fn into_pod(host: &mut Netlink, pod: &NetNs, link: &Link, name: &str) -> netlink::Result<()> {
    let change =
        Change { netns: Some(pod.as_fd()), name: Some(name), alias: Some(&link.name), ..Change::default() };
    host.execute(link::set(link.index, &link.name, &change))
}

/// Moves the device out of the namespace `pod`, if it is there, and restores it on the host. Returns true if the device
/// is on the host afterwards, and false if it was found nowhere. `None` looks only on the host.
///
/// Fails with code 102 if another link of the host has its name.
pub(crate) fn home(record: &DeviceRecord, pod: Option<&NetNs>) -> Result<bool, Error> {
    let mut host = DeviceNamespace::host()?;
    let mut origin = DeviceNamespaceKind::Host;
    if let Some(pod) = pod {
        let mut pod = DeviceNamespace::pod(pod)?;
        if let Some(link) = pod.find_device(record)? {
            origin = out_of_pod(&mut pod.netlink, &mut host.netlink, &link, record)?;
        }
    }
    match host.find_device(record)? {
        Some(link) => restore(&mut host.netlink, &link, record, origin).map(|()| true),
        None => {
            if origin == DeviceNamespaceKind::Pod {
                delete_impostor(&mut host.netlink, record)?;
            }
            Ok(false)
        }
    }
}

/// Deletes a link that has come out of the pod in the device's place. After the device was found by its index, and
/// before it is moved, the pod can give the index to another link.
///
/// The name was free on the host before, and the message that moved the link has written the alias. So both identify
/// it. Nothing is deleted if the device is hardware.
fn delete_impostor(host: &mut Netlink, record: &DeviceRecord) -> Result<(), Error> {
    let Some(link) = host.find_link(&record.name)? else { return Ok(()) };
    if record.kind.is_empty() || link.alias != record.name || link.name != record.name {
        return Ok(());
    }
    log::warn!("{} came from the pod in place of the device, and is deleted", link.name);
    Ok(host.execute(link::del(link.index, &link.name)).if_present().map(drop)?)
}

/// The namespace in which the device was found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DeviceNamespaceKind {
    Pod,
    Host,
}

/// Moves the device from the pod to the host, down and with its recorded name. Returns `Pod`.
///
/// Returns `Host` for a link that the kernel cannot move, such as a bridge. It cannot be a device of the host, so it is
/// left alone with a warning. Fails with code 102 if the name is taken on the host. After a failure, the interface
/// works in the pod until the next DEL.
fn out_of_pod(
    inside: &mut Netlink,
    host: &mut Netlink,
    link: &Link,
    record: &DeviceRecord,
) -> Result<DeviceNamespaceKind, Error> {
    if host.find_link(&record.name)?.is_some() {
        return Err(name_taken(record));
    }
    let own = NetNs::current()?;
    let name = link.name.as_str();
    let now = inside.details(link.index)?;
    remove_foreign(inside, link, record, &now)?;
    let mut requests = on_top(inside, link)?;
    // The settings precede the move: when a link without ARP arrives, IPv6 switches its address detection off for good.
    requests.extend(settings(link.index, record, &now));
    // Older kernels do not rename a link that is up.
    requests.push(link::set(link.index, name, &Change { up: Some(false), ..Change::default() }));
    requests.push(link::set(link.index, name, &Change { name: Some(&record.name), ..Change::default() }));
    // The move gives the device its old index if that is free on the host.
    let index = Some(record.index).filter(|index| *index != link.index);
    let index = index.filter(|index| host.link_at(*index).is_err_and(|err| err.is_missing()));
    let go = Change { netns: Some(own.as_fd()), index, alias: Some(&record.name), ..Change::default() };
    requests.push(link::set(link.index, name, &go));
    let Err(first) = inside.execute_all(requests) else { return Ok(DeviceNamespaceKind::Pod) };
    // The name is taken in the pod, so the rename has failed. The move has set the name on the host.
    if inside.link_at(link.index).if_present()?.is_none() {
        return Ok(DeviceNamespaceKind::Pod);
    }
    // The old name may be taken in the pod and the pod's name on the host. One message for both makes the kernel use
    // the name that is free there. Another link may also have taken one of the device's own alternative names.
    let err = if first.is(Errno::EEXIST) {
        let rest: Vec<_> = now.altnames.into_iter().filter(|name| !record.is_foreign(name)).collect();
        let mut again = vec![link::set(link.index, name, &Change { name: Some(&record.name), ..go })];
        if !rest.is_empty() {
            again.insert(0, altnames(link.index, name, Altnames::Remove, &rest));
        }
        match inside.execute_all(again) {
            Ok(()) => return Ok(DeviceNamespaceKind::Pod),
            Err(err) => err,
        }
    } else {
        first
    };
    // The device gets its name and state back, so that the pod works until the next DEL.
    let back =
        [Change { name: Some(name), ..Change::default() }, Change { up: Some(link.up), ..Change::default() }];
    let requests = back.iter().map(|change| link::set(link.index, name, change)).collect();
    let failed = inside.execute_all(requests).err();
    let err = match err.errno {
        Errno::EINVAL => {
            log::warn!("{name} in the pod can't be moved to the host ({err}); left alone");
            return Ok(DeviceNamespaceKind::Host);
        }
        Errno::EEXIST => name_taken(record),
        _ => err.into(),
    };
    Err(failed.into_iter().fold(err, |err, left| err.details(format!("left behind: {left}"))))
}

/// Removes alternative names that the device did not have before ADD. Linux 5.10 knows a pod's alternative name only in
/// the namespace where it was set. Elsewhere it stays, with a warning.
fn remove_foreign(
    netlink: &mut Netlink,
    link: &Link,
    record: &DeviceRecord,
    now: &Details,
) -> Result<(), Error> {
    let foreign: Vec<_> = now.altnames.iter().filter(|name| record.is_foreign(name)).cloned().collect();
    if foreign.is_empty() {
        return Ok(());
    }
    match netlink.execute(altnames(link.index, &link.name, Altnames::Remove, &foreign)) {
        Err(err) if err.is(Errno::ENOENT) => {
            log::warn!("device {} isn't all that it was: {err}", record.name);
            Ok(())
        }
        removed => Ok(removed?),
    }
}

/// Returns the requests that delete the pod's links on top of the device ([`ON_TOP`]). The caller sends them before the
/// move.
fn on_top(inside: &mut Netlink, link: &Link) -> Result<Vec<Request>, Error> {
    let all = inside.links(&Filter::default())?;
    let on_top = all.iter().filter(|other| {
        other.peer == Some(link.index)
            && other.peer_netnsid.is_none()
            && ON_TOP.contains(&other.kind.as_str())
    });
    Ok(on_top.map(|other| link::del(other.index, &other.name)).collect())
}

/// Returns the error for a name that another link of the host has, with code 102.
fn name_taken(record: &DeviceRecord) -> Error {
    Error::new(Code::CONFLICT, format!("the name {} of the device is taken on the host", record.name))
        .details("rename the link that has it, and call DEL again")
}

/// Gives the device on the host its recorded name, MTU, MAC address, settings, addresses and alias. The alias comes
/// last. As long as it is the old name, the work is incomplete.
///
/// Does nothing if the device was not moved or is restored already. Fails with code 102 if another link has its name.
fn restore(
    host: &mut Netlink,
    link: &Link,
    record: &DeviceRecord,
    origin: DeviceNamespaceKind,
) -> Result<(), Error> {
    let named = link.name == record.name;
    let begun = origin == DeviceNamespaceKind::Pod || link.alias == record.name;
    // Its name and alias show that it was not moved, or is restored. Hardware is an exception: the kernel returns it
    // down, with any alias that the pod has written.
    if !begun && named && (link.up || !record.kind.is_empty()) {
        return Ok(());
    }
    let (index, name) = (link.index, record.name.as_str());
    let mut requests = Vec::new();
    if link.alias != record.name {
        requests.push(link::set(index, name, &Change { alias: Some(name), ..Change::default() }));
    }
    let now = host.details(index)?;
    remove_foreign(host, link, record, &now)?;
    if !named {
        if host.find_link(name)?.is_some_and(|other| other.index != index) {
            return Err(name_taken(record));
        }
        requests.push(link::set(index, name, &Change { up: Some(false), ..Change::default() }));
        requests.push(link::set(index, name, &Change { name: Some(name), ..Change::default() }));
    }
    let mtu = Some(record.mtu).filter(|mtu| *mtu != link.mtu && *mtu != 0);
    let mac = record.mac().filter(|mac| link.mac != Some(*mac));
    if mtu.is_some() || mac.is_some() {
        requests.push(link::set(index, name, &Change { mtu, mac, ..Change::default() }));
    }
    if !requests.is_empty() {
        host.execute_all(requests)?;
    }
    restore_settings(host, index, record, now)?;
    restore_addresses(host, link, record, origin)?;
    if record.alias != record.name {
        host.execute(link::set(index, name, &Change { alias: Some(&record.alias), ..Change::default() }))?;
    }
    Ok(())
}

/// Returns the request for the recorded settings, or `None` if those of `now` do not differ or none were recorded.
fn settings(index: u32, record: &DeviceRecord, now: &Details) -> Option<Request> {
    let was = record.settings.as_ref()?;
    details::set(index, &record.name, now, was.flags, &was.values)
}

/// Restores the recorded settings and alternative names. A value that the kernel refuses is only logged, so it does not
/// stop the others. Does nothing for a record without settings.
fn restore_settings(
    host: &mut Netlink,
    index: u32,
    record: &DeviceRecord,
    mut now: Details,
) -> Result<(), Error> {
    let Some(was) = &record.settings else { return Ok(()) };
    let without_arp = now.without_arp();
    // Setting the GSO limit also sets that of IPv4, so a second round may find a difference.
    for _ in 0..2 {
        let Some(request) = settings(index, record, &now) else { break };
        warn_if_failed(record, host.execute(request));
        now = host.details(index)?;
    }
    if without_arp && !now.without_arp() {
        // The device gets the detection of a new link back, which it lost without ARP (see [`out_of_pod`]).
        let default = sysctl::read("net/ipv6/conf/default/accept_dad");
        let key = format!("net/ipv6/conf/{}/accept_dad", record.name);
        warn_if_failed(record, default.and_then(|value| sysctl::write(&key, &value)));
    }
    for name in was.altnames.iter().filter(|name| !now.altnames.contains(name)) {
        warn_if_failed(
            record,
            host.execute(altnames(index, &record.name, Altnames::Add, std::slice::from_ref(name))),
        );
    }
    Ok(())
}

/// Logs the error of a setting that cannot be restored.
fn warn_if_failed(record: &DeviceRecord, outcome: netlink::Result<()>) {
    if let Err(err) = outcome {
        log::warn!("device {} isn't all that it was: {err}", record.name);
    }
}

/// Adds the recorded addresses that the device lacks and restores whether it is up. A move removes all addresses. IPv6
/// addresses are added last, because the kernel removes them from a device that is set down.
fn restore_addresses(
    host: &mut Netlink,
    link: &Link,
    record: &DeviceRecord,
    origin: DeviceNamespaceKind,
) -> Result<(), Error> {
    let present = match origin {
        DeviceNamespaceKind::Pod => Vec::new(),
        DeviceNamespaceKind::Host => host.addrs(link.index)?,
    };
    let missing = record.addresses().into_iter().filter(|net| !present.iter().any(|addr| addr.net == *net));
    let (four, six): (Vec<_>, Vec<_>) = missing.partition(IpNetwork::is_ipv4);
    let mut requests: Vec<_> =
        four.into_iter().map(|net| addr::add_probed(link.index, &record.name, net)).collect();
    if link.up != record.up || link.name != record.name {
        let change = Change { up: Some(record.up), ..Change::default() };
        requests.push(link::set(link.index, &record.name, &change));
    }
    if !requests.is_empty() {
        host.execute_all(requests)?;
    }
    for net in six {
        match host.execute(addr::add_probed(link.index, &record.name, net)) {
            // IPv6 is off on this host for new interfaces, as this one is after the move.
            Err(err) if err.is(Errno::EACCES) => log::warn!("{err}"),
            Err(err) if !err.is(Errno::EEXIST) => return Err(err.into()),
            _ => {}
        }
    }
    Ok(())
}
