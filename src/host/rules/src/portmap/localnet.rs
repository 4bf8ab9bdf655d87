//! Switches `route_localnet` on for the link towards a pod, and off again.
//!
//! Several pods may be behind one link (a bridge), so it must stay on while one of them needs it. A set notes the links
//! on which we have switched it on. The last mapping of the host switches it off on all of them, and removes the guard.
//!
//! A flush of the ruleset loses the notes. The value still tells: for the kernel every number but 0 is on, other
//! programs write 1, and we write 2.

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

/// Whether the notes may have been lost with the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notes {
    Kept,
    Lost,
}

/// Switches `route_localnet` on for the link towards the pod, if it is off. Calls `note` with the link before that, and
/// also if it is on by us and the notes are lost. Without a route to the pod it only warns.
///
/// `opened` gets the link before the write. So an undo removes the note even if the write fails, as on a read-only
/// /proc/sys.
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

/// Switches it on without a note, with the value of other programs. So no later DEL switches it off. Replaces our own
/// value, too. Without a route to the pod it only warns.
pub(super) fn open_for_good(pod: IpAddr) -> Result<(), Error> {
    let Some(link) = towards_or_warn(pod)? else { return Ok(()) };
    if [OFF, OURS].contains(&value(&link)?.as_str()) {
        sysctl::write(&key(&link), ON)?;
    }
    Ok(())
}

/// Switches it on for a noted link: with our value, or with 1 if the kernel takes no other. A link that has gone is no
/// error.
pub(super) fn reopen(link: &str) -> cnimble_netlink::Result<()> {
    let written = match mark(link) {
        Ok(false) => sysctl::write(&key(link), ON),
        marked => marked.map(drop),
    };
    written.if_present().map(drop)
}

/// Writes [`OURS`]. Returns false if the kernel takes only 0 or 1.
fn mark(link: &str) -> cnimble_netlink::Result<bool> {
    match sysctl::write(&key(link), OURS) {
        Err(err) if err.is(Errno::EINVAL) || err.is(Errno::ERANGE) => Ok(false),
        written => written.map(|()| true),
    }
}

/// Switches it off if the value is ours, and returns whether it was. A link that is missing at the look is no error.
/// One that goes before the write is.
pub(super) fn close(link: &str) -> cnimble_netlink::Result<bool> {
    if is_ours(link)? { sysctl::write(&key(link), OFF).map(|()| true) } else { Ok(false) }
}

/// Switches it off on a link with a note, and returns whether it was on by us. If the link has our value, it was.
///
/// If it reads 1, the kernel is asked whether it takes our value. If so, the 1 is another program's: it is written
/// back, and stays. If the kernel takes only 0 or 1, no value can tell, so the note alone decides, and it is switched
/// off.
pub(super) fn close_noted(link: &str) -> cnimble_netlink::Result<bool> {
    let is_on = value(link).if_present()?.is_some_and(|value| value == ON);
    if !is_on {
        return close(link);
    }
    if mark(link)? {
        // This kernel takes our value, so the 1 is another program's.
        return sysctl::write(&key(link), ON).map(|()| false);
    }
    sysctl::write(&key(link), OFF).map(|()| true)
}

/// Returns whether it is on with our value. False if the link has gone.
fn is_ours(link: &str) -> cnimble_netlink::Result<bool> {
    Ok(value(link).if_present()?.is_some_and(|value| value == OURS))
}

/// Returns the links on which it is on with our value, except veth links. Such a link leads to one pod, and the kernel
/// removes it with the pod.
pub(super) fn opened() -> cnimble_netlink::Result<Vec<String>> {
    let mut opened = Vec::new();
    for link in Netlink::open()?.links(&Filter::default())? {
        if link.kind != "veth" && is_ours(&link.name)? {
            opened.push(link.name);
        }
    }
    Ok(opened)
}

/// Returns the links on which it is on with our value, of those towards a pod with these addresses. If they are
/// unknown, returns all of [`opened`].
pub(super) fn opened_for(pod: Option<&[IpNetwork]>) -> cnimble_netlink::Result<Vec<String>> {
    let Some(addrs) = pod else { return opened() };
    let mut links = Vec::new();
    for pod in addrs.iter().filter(|pod| pod.is_ipv4()) {
        links.extend(opened_towards(pod.ip())?);
    }
    Ok(links)
}

/// Returns the link towards a pod if it is on there with our value.
pub(super) fn opened_towards(pod: IpAddr) -> cnimble_netlink::Result<Option<String>> {
    let Some(link) = towards(pod)? else { return Ok(None) };
    Ok(is_ours(&link)?.then_some(link))
}

/// Fails with code 103 if it is off for the link towards the pod. Without a route to the pod nothing is checked.
pub(super) fn check(pod: IpAddr) -> Result<(), Error> {
    if let Some(link) = towards(pod)?
        && value(&link)? == OFF
    {
        let key = key(&link);
        return Err(Error::check(format!("{key} is {OFF}: localhost can't reach {pod}")));
    }
    Ok(())
}

/// Returns the path of the sysctl below /proc/sys.
fn key(link: &str) -> String {
    format!("net/ipv4/conf/{link}/route_localnet")
}

/// Reads the sysctl, without the line's end. A missing link is an error (ENOENT).
fn value(link: &str) -> cnimble_netlink::Result<String> {
    sysctl::read(&key(link))
}

/// Does what [`towards`] does, and warns if there is no route.
fn towards_or_warn(pod: IpAddr) -> cnimble_netlink::Result<Option<String>> {
    let link = towards(pod)?;
    if link.is_none() {
        log::warn!("no route leads to {pod}: localhost won't reach its ports");
    }
    Ok(link)
}

/// Returns the name of the link by which the host reaches an address, or `None` without a route.
pub(super) fn towards(pod: IpAddr) -> cnimble_netlink::Result<Option<String>> {
    let mut host = Netlink::open()?;
    let Some(index) = host.link_towards(pod)? else { return Ok(None) };
    Ok(Some(host.link_at(index)?.name))
}
