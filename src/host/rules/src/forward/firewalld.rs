//! Forwards with firewalld: the pod's addresses become sources of a zone, as with the Go plugin. firewalld drops other
//! traffic in its own chain, which no other table can overrule.
//!
//! A source names no owner, so GC can't remove it. firewalld loses the sources when it is reloaded or restarted. CHECK
//! reports that.

use std::net::IpAddr;

use cnimble_cni::{Code, Error, cidr};
use cnimble_netlink::nft::{Family, Nft, Table};
use cnimble_os::dbus::{self as dbus, Bus, Method};

use crate::undo::undone;

const NAME: &str = "org.fedoraproject.FirewallD1";
/// The table of firewalld's default backend. New versions have no other backend.
const TABLE: Table<'static> = Table::new(Family::Inet, "firewalld");

/// The beginning of firewalld's error for a source that is in the zone already.
const ALREADY_SET: &str = "ZONE_ALREADY_SET";
/// The beginning of its error for a source that is in another zone.
const CONFLICT: &str = "ZONE_CONFLICT";
/// The beginnings of its errors for a source that is not in the zone, or for an unknown zone.
const GONE: [&str; 3] = ["UNKNOWN_SOURCE", "INVALID_ZONE", CONFLICT];
/// The bus's errors for a name that no program owns.
const NOBODY: [&str; 2] =
    ["org.freedesktop.DBus.Error.ServiceUnknown", "org.freedesktop.DBus.Error.NameHasNoOwner"];

/// The sources that an ADD has added, for its undo.
#[derive(Debug, Default)]
pub(super) struct Made {
    zone: String,
    sources: Vec<String>,
}

fn source(ip: IpAddr) -> String {
    cidr::host(ip).to_string()
}

/// Calls a method of firewalld's zones with a source.
fn zone(bus: &mut Bus, member: &str, zone: &str, source: &str) -> Result<dbus::Answer, dbus::Error> {
    let method = Method {
        destination: NAME,
        path: "/org/fedoraproject/FirewallD1",
        interface: "org.fedoraproject.FirewallD1.zone",
        member,
    };
    bus.call(&method, &[zone, source])
}

/// Returns whether an error means that firewalld or the bus is not running.
fn is_absent(err: &dbus::Error) -> bool {
    match err {
        dbus::Error::Io(_, err) => {
            matches!(err.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused)
        }
        dbus::Error::Refused(name, _) => NOBODY.contains(&name.as_str()),
        dbus::Error::Protocol(_) => false,
    }
}

/// Returns an error with code 5. It says so if firewalld is not running.
fn failed(what: &str, err: &dbus::Error) -> Error {
    let why = if is_absent(err) { "firewalld is not running; " } else { "" };
    Error::new(Code::IO, format!("firewalld: {what}")).details(format!("{why}{err}"))
}

fn connect() -> Result<Bus, Error> {
    Bus::system().map_err(|err| failed("connect", &err))
}

/// Returns whether firewalld's table exists. It shows cheaply that firewalld may be running.
pub(super) fn has_table(nft: &mut Nft) -> Result<bool, Error> {
    Ok(nft.has_table(TABLE)?)
}

/// Returns whether firewalld is running, so that it decides about forwarding. Asks the bus only if firewalld's table
/// exists. If the bus then says no, logs a warning.
pub(crate) fn is_running(nft: &mut Nft) -> Result<bool, Error> {
    if !has_table(nft)? {
        return Ok(false);
    }
    Ok(match running() {
        Ok(()) => true,
        Err(err) => {
            log::warn!("there is a table {TABLE}, but {err}");
            false
        }
    })
}

/// Fails with code 5 unless firewalld is on the bus.
pub(super) fn running() -> Result<(), Error> {
    let owner = Method {
        destination: "org.freedesktop.DBus",
        path: "/org/freedesktop/DBus",
        interface: "org.freedesktop.DBus",
        member: "GetNameOwner",
    };
    connect()?.call(&owner, &[NAME]).map(drop).map_err(|err| failed("look for the service", &err))
}

/// Adds the addresses to a zone. Returns the new ones; others were there before. If it fails half-way, it takes back
/// what it did. Fails with code 102 if an address is in another zone.
pub(super) fn add(zone_name: &str, addrs: &[IpAddr]) -> Result<Made, Error> {
    let mut bus = connect()?;
    let mut made = Made { zone: zone_name.to_owned(), sources: Vec::new() };
    for source in addrs.iter().copied().map(source) {
        match zone(&mut bus, "addSource", zone_name, &source) {
            Ok(_) => made.sources.push(source),
            Err(dbus::Error::Refused(_, text)) if text.starts_with(ALREADY_SET) => {}
            Err(err) => {
                let mut failure = failed(&format!("add {source} to the zone {zone_name}"), &err);
                if matches!(&err, dbus::Error::Refused(_, text) if text.starts_with(CONFLICT)) {
                    failure.code = Code::CONFLICT;
                }
                return Err(undone(failure, revert(&made)));
            }
        }
    }
    Ok(made)
}

/// Removes the sources that an ADD has added.
pub(super) fn revert(made: &Made) -> Result<(), Error> {
    if made.sources.is_empty() { Ok(()) } else { remove_sources(&made.zone, &made.sources) }
}

/// Removes the addresses from a zone. It is no error if firewalld is not running, or does not know the address.
pub(super) fn remove(zone_name: &str, addrs: &[IpAddr]) -> Result<(), Error> {
    let sources: Vec<String> = addrs.iter().copied().map(source).collect();
    if sources.is_empty() { Ok(()) } else { remove_sources(zone_name, &sources) }
}

fn remove_sources(zone_name: &str, sources: &[String]) -> Result<(), Error> {
    let mut bus = match Bus::system() {
        Err(err) if is_absent(&err) => return Ok(()),
        bus => bus.map_err(|err| failed("connect", &err))?,
    };
    let mut outcome = Ok(());
    for source in sources {
        match zone(&mut bus, "removeSource", zone_name, source) {
            Ok(_) => {}
            Err(err) if is_absent(&err) => return Ok(()),
            Err(dbus::Error::Refused(_, text)) if GONE.iter().any(|gone| text.starts_with(gone)) => {}
            Err(err) => {
                let what = format!("remove {source} from the zone {zone_name}");
                outcome = outcome.and(Err(failed(&what, &err)));
            }
        }
    }
    outcome
}

/// Returns the first address that is not in the zone, as a sentence, or `None`. Fails with code 5 if firewalld can't be
/// asked.
pub(super) fn check(zone_name: &str, addrs: &[IpAddr]) -> Result<Option<String>, Error> {
    let mut bus = connect()?;
    for source in addrs.iter().copied().map(source) {
        let asked = zone(&mut bus, "querySource", zone_name, &source);
        let answer =
            asked.map_err(|err| failed(&format!("look for {source} in the zone {zone_name}"), &err))?;
        if answer.truth() != Some(true) {
            return Ok(Some(format!("firewalld: {source} is not in the zone {zone_name}")));
        }
    }
    Ok(None)
}
