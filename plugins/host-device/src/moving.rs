//! The device on its way: into the pod, and home.
//!
//! One message moves it in, gives it its name in the pod, and writes the old one into its alias,
//! where the Go plugin looks for it. The kernel moves first and names then: if the name is taken, the
//! device has been moved all the same. So undo and DEL look in both namespaces, and
//! know the device by its marks ([`Record::is`]).
//!
//! On the way home it is renamed in the pod, so that it never has the pod's name on the host, where
//! udev would see it.

use std::os::fd::AsFd;

use nix::errno::Errno;

use cnimble_cni::{Code, Error};
use cnimble_netlink::link::{self, Change, Filter, Link};
use cnimble_netlink::{self as netlink, NetNs, Netlink, addr};

use crate::record::Record;

/// Moves the host's `link` into the pod, where it gets this name; its own becomes its alias.
///
/// # Errors
/// The kernel's; of EEXIST isn't known whether it has been moved.
pub(crate) fn into_pod(host: &mut Netlink, pod: &NetNs, link: &Link, name: &str) -> netlink::Result<()> {
    let change =
        Change { netns: Some(pod.as_fd()), name: Some(name), alias: Some(&link.name), ..Change::default() };
    host.execute(link::set(link.index, &link.name, &change))
}

/// Brings the device home, if it is in the pod, and makes it what it was. Returns whether there was one,
/// there or on the host.
///
/// # Errors
/// Code 102 if another link of the host has its name; the kernel's.
pub(crate) fn home(record: &Record, pod: Option<&NetNs>) -> Result<bool, Error> {
    let mut host = Netlink::open()?;
    let mut moved = None;
    if let Some(pod) = pod {
        let mut inside = Netlink::open_in(pod)?;
        if let Some(link) = inside.links(&Filter::default())?.into_iter().find(|link| record.is(link)) {
            out_of_pod(&mut inside, &mut host, &link, record)?;
            moved = Some(link);
        }
    }
    // A pod may have changed every mark: what has just come is known by what it was there.
    let is_it = |link: &Link| {
        let came = |was: &Link| (&was.kind, &was.alias, was.mac) == (&link.kind, &link.alias, link.mac);
        record.is(link) || moved.as_ref().is_some_and(came)
    };
    let found = match host.find_link(&record.name)?.filter(&is_it) {
        Some(link) => Some(link),
        None => host.links(&Filter::default())?.into_iter().find(is_it),
    };
    match found {
        Some(link) => restore(&mut host, &link, record, moved.is_some()).map(|()| true),
        None => Ok(false),
    }
}

/// The device is in the pod.
pub(crate) fn is_in(record: &Record, pod: &NetNs) -> Result<bool, Error> {
    Ok(Netlink::open_in(pod)?.links(&Filter::default())?.iter().any(|link| record.is(link)))
}

/// The device as it is on the host, if it is there.
pub(crate) fn on_host(record: &Record, host: &mut Netlink) -> Result<bool, Error> {
    Ok(host.links(&Filter::default())?.iter().any(|link| record.is(link)))
}

/// Moves the device to the host, under its name there.
fn out_of_pod(inside: &mut Netlink, host: &mut Netlink, link: &Link, record: &Record) -> Result<(), Error> {
    if host.find_link(&record.name)?.is_some() {
        return Err(name_taken(record));
    }
    let own = NetNs::current()?;
    let set = |change: &Change<'_>| link::set(link.index, &link.name, change);
    // Older kernels rename only what is down.
    let down = set(&Change { up: Some(false), ..Change::default() });
    let rename = set(&Change { name: Some(&record.name), ..Change::default() });
    let go = Change { netns: Some(own.as_fd()), ..Change::default() };
    let Err(first) = inside.execute_all(vec![down, rename, set(&go)]) else { return Ok(()) };
    match inside.link_at(link.index) {
        // The name is taken in the pod; the host gives it.
        Err(err) if err.is(Errno::ENODEV) => return Ok(()),
        answer => drop(answer?),
    }
    // Both names may be taken, each in one of the two namespaces: the kernel takes the one that is free there.
    let err = match first.is(Errno::EEXIST) {
        true => match inside.execute(set(&Change { name: Some(&record.name), ..go })) {
            Ok(()) => return Ok(()),
            Err(err) => err,
        },
        false => first,
    };
    // As it was, so that the pod goes on until the next DEL.
    let back = [
        Change { name: Some(&link.name), ..Change::default() },
        Change { up: Some(link.up), ..Change::default() },
    ];
    let failed = inside.execute_all(back.iter().map(set).collect()).err();
    let err = match err.is(Errno::EEXIST) {
        true => name_taken(record),
        false => err.into(),
    };
    Err(failed.into_iter().fold(err, |err, left| err.details(format!("left behind: {left}"))))
}

fn name_taken(record: &Record) -> Error {
    Error::new(Code::CONFLICT, format!("the name {} of the device is taken on the host", record.name))
        .details("rename the link that has it, and call DEL again")
}

/// Makes the host's `link` what the record tells. The alias comes last: as long as it is the old name, there is
/// something left to do.
fn restore(host: &mut Netlink, link: &Link, record: &Record, moved: bool) -> Result<(), Error> {
    let named = link.name == record.name;
    if !moved && named && link.alias != record.name {
        // It hasn't been away, or has been put back.
        return Ok(());
    }
    if !named && host.find_link(&record.name)?.is_some() {
        return Err(name_taken(record));
    }
    let set = |change: Change<'_>| link::set(link.index, &record.name, &change);
    let present = if moved { Vec::new() } else { host.addrs(link.index)? };
    let missing = |net: &ipnetwork::IpNetwork| !present.iter().any(|addr| addr.net == *net);
    let (four, six): (Vec<_>, Vec<_>) =
        record.addresses().into_iter().filter(missing).partition(ipnetwork::IpNetwork::is_ipv4);
    let mut requests = Vec::new();
    if !named {
        requests.push(set(Change { up: Some(false), ..Change::default() }));
        requests.push(set(Change { name: Some(&record.name), ..Change::default() }));
    }
    let mtu = Some(record.mtu).filter(|mtu| *mtu != link.mtu && *mtu != 0);
    let mac = record.mac().filter(|mac| link.mac != Some(*mac));
    if mtu.is_some() || mac.is_some() {
        requests.push(set(Change { mtu, mac, ..Change::default() }));
    }
    requests.extend(four.into_iter().map(|net| addr::add(link.index, &record.name, net, false)));
    if link.up != record.up || !named {
        requests.push(set(Change { up: Some(record.up), ..Change::default() }));
    }
    if !requests.is_empty() {
        host.execute_all(requests)?;
    }
    for net in six {
        match host.execute(addr::add(link.index, &record.name, net, false)) {
            // IPv6 is off for new interfaces, and this one is new again.
            Err(err) if err.is(Errno::EACCES) => log::warn!("{err}"),
            Err(err) if !err.is(Errno::EEXIST) => return Err(err.into()),
            _ => {}
        }
    }
    if link.alias != record.alias {
        host.execute(set(Change { alias: Some(&record.alias), ..Change::default() }))?;
    }
    Ok(())
}
