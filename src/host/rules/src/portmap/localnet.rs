//! `route_localnet` on the link towards the pod. Other pods behind the link may rely on it when a mapping goes. So a
//! set notes these links, and the switch and the guard go with the last mapping of the host.
//!
//! A flush of the ruleset loses the notes, but the value still tells: any number but 0 is on, and others write 1.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use nix::errno::Errno;

use cnimble_cni::Error;
use cnimble_netlink::link::Filter;
use cnimble_netlink::{IfPresent, Netlink, sysctl};

const OFF: &str = "0";
/// The value that other programs write to switch it on.
const ON: &str = "1";
/// The value that we write to switch it on. It tells ours from that of others.
const OURS: &str = "2";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notes {
    Kept,
    Lost,
}

/// Lets packets of 127.0.0.0/8 leave by the link towards the pod. Calls `note` before it does, and if the notes are
/// lost. `opened` is the link to close again: a note stays behind where /proc/sys is read-only.
pub(super) fn open(
    pod: IpAddr,
    notes: Notes,
    note: impl FnOnce(&str) -> Result<(), Error>,
    opened: &mut Option<String>,
) -> Result<(), Error> {
    let Some(link) = towards_or_warn(pod)? else { return Ok(()) };
    match value(&link)?.as_str() {
        OFF => {
            note(&link)?;
            Ok(reopen(opened.insert(link))?)
        }
        OURS if notes == Notes::Lost => note(&link),
        _ => Ok(()),
    }
}

/// Switches it on for mappings without a note. It stays on after them.
pub(super) fn open_for_good(pod: IpAddr) -> Result<(), Error> {
    let Some(link) = towards_or_warn(pod)? else { return Ok(()) };
    if [OFF, OURS].contains(&value(&link)?.as_str()) {
        sysctl::write(&key(&link), ON)?;
    }
    Ok(())
}

pub(super) fn reopen(link: &str) -> cnimble_netlink::Result<()> {
    let written = match mark(link) {
        Ok(false) => sysctl::write(&key(link), ON),
        marked => marked.map(drop),
    };
    written.if_present().map(drop)
}

/// Writes [`OURS`]. Returns false for a kernel that wants a 0 or a 1.
fn mark(link: &str) -> cnimble_netlink::Result<bool> {
    match sysctl::write(&key(link), OURS) {
        Err(err) if err.is(Errno::EINVAL) || err.is(Errno::ERANGE) => Ok(false),
        written => written.map(|()| true),
    }
}

/// Returns whether it was on by us.
pub(super) fn close(link: &str) -> cnimble_netlink::Result<bool> {
    if is_ours(link)? { sysctl::write(&key(link), OFF).map(|()| true) } else { Ok(false) }
}

/// Switches it off on a link with a note, and returns whether it was on by us. A kernel that takes only 0 or 1 has no
/// value of ours, so the note alone tells.
pub(super) fn close_noted(link: &str) -> cnimble_netlink::Result<bool> {
    let is_on = value(link).if_present()?.is_some_and(|value| value == ON);
    if !is_on {
        return close(link);
    }
    if mark(link)? {
        // The kernel would have told ours, so it is on by another program.
        return sysctl::write(&key(link), ON).map(|()| false);
    }
    sysctl::write(&key(link), OFF).map(|()| true)
}

/// False if the link is gone.
fn is_ours(link: &str) -> cnimble_netlink::Result<bool> {
    Ok(value(link).if_present()?.is_some_and(|value| value == OURS))
}

/// Returns the links on which we have switched it on. Links to one pod alone are left out, because the kernel removes
/// them with the pod.
pub(super) fn opened() -> cnimble_netlink::Result<Vec<String>> {
    let mut opened = Vec::new();
    for link in Netlink::open()?.links(&Filter::default())? {
        if link.kind != "veth" && is_ours(&link.name)? {
            opened.push(link.name);
        }
    }
    Ok(opened)
}

/// Links where it may be on by us for a pod with these addresses. All if unknown.
pub(super) fn opened_for(pod: Option<&[IpNetwork]>) -> cnimble_netlink::Result<Vec<String>> {
    let Some(addrs) = pod else { return opened() };
    let mut links = Vec::new();
    for pod in addrs.iter().filter(|pod| pod.is_ipv4()) {
        links.extend(opened_towards(pod.ip())?);
    }
    Ok(links)
}

pub(super) fn opened_towards(pod: IpAddr) -> cnimble_netlink::Result<Option<String>> {
    let Some(link) = towards(pod)? else { return Ok(None) };
    Ok(is_ours(&link)?.then_some(link))
}

pub(super) fn check(pod: IpAddr) -> Result<(), Error> {
    if let Some(link) = towards(pod)?
        && value(&link)? == OFF
    {
        let key = key(&link);
        return Err(Error::check(format!("{key} is {OFF}: localhost can't reach {pod}")));
    }
    Ok(())
}

fn key(link: &str) -> String {
    format!("net/ipv4/conf/{link}/route_localnet")
}

fn value(link: &str) -> cnimble_netlink::Result<String> {
    sysctl::read(&key(link))
}

fn towards_or_warn(pod: IpAddr) -> cnimble_netlink::Result<Option<String>> {
    let link = towards(pod)?;
    if link.is_none() {
        log::warn!("no route leads to {pod}: localhost won't reach its ports");
    }
    Ok(link)
}

pub(super) fn towards(pod: IpAddr) -> cnimble_netlink::Result<Option<String>> {
    let mut host = Netlink::open()?;
    let Some(index) = host.link_towards(pod)? else { return Ok(None) };
    Ok(Some(host.link_at(index)?.name))
}
