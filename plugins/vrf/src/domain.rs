//! The VRF: made in the pod, and removed with its last port.

use std::collections::BTreeSet;

use nix::errno::Errno;

use cnimble_cni::{Code, Error};
use cnimble_netlink::kind::{self, Kind, NewLink};
use cnimble_netlink::link::{Filter, Link};
use cnimble_netlink::{self as netlink, IfPresent, Netlink};
use cnimble_plugin::Call;
use cnimble_plugin::interface::{alone, remove};

use super::config::Config;

/// The link group that marks a VRF of this plugin from its creation on.
const GROUP: u32 = u32::from_be_bytes(*b"cnib");

/// The alias of VRFs of earlier versions, which set it some time after the creation.
const ALIAS: &str = "cnimble: removed with its last port";

/// The most attempts to choose a free table.
const CHOICES: usize = 32;

/// The tables default, main and local (rtnetlink(7)), which are not for a VRF.
const KERNELS: std::ops::RangeInclusive<u32> = 253..=255;

/// A VRF with any table.
pub(crate) const ANY: Kind = Kind::Vrf(kind::Vrf { table: 0 });

/// A VRF and its routing table.
#[derive(Debug)]
pub(crate) struct Vrf {
    pub(crate) link: Link,
    pub(crate) table: u32,
}

/// Finds the VRF of this name. `None` if no link has it. Fails with code 102 if another kind of link has it.
pub(crate) fn find_named_vrf(inside: &mut Netlink, name: &str) -> Result<Option<Vrf>, Error> {
    let Some(link) = inside.find_link(name)? else { return Ok(None) };
    let not_one = Error::new(Code::CONFLICT, format!("\"{name}\" already exists but is not a VRF"));
    Vrf::from_link(link).map(Some).ok_or(not_one)
}

/// Returns the VRF that `port` is a port of. `None` without a port, without a master, or if the master is no VRF.
pub(crate) fn of_port(inside: &mut Netlink, port: Option<&Link>) -> Result<Option<Vrf>, Error> {
    let Some(master) = port.and_then(|port| port.master) else { return Ok(None) };
    Ok(inside.link_at(master).if_present()?.and_then(Vrf::from_link))
}

/// Finds the VRF of this name for a removal. `None` if no link has it, or another kind of link.
pub(crate) fn find_vrf(inside: &mut Netlink, name: &str) -> Result<Option<Vrf>, Error> {
    Ok(inside.find_link(name)?.and_then(Vrf::from_link))
}

/// Finds the VRF, or makes it, up, with its undo. An existing VRF is returned as it is, even if it is down. The undo
/// removes the VRF only if it is ours and has no port.
///
/// Fails with code 102 if the VRF has another table than configured, or if another link has its name. Fails with code
/// 11 if concurrent ADDs took each table that was chosen.
pub(crate) fn ensure(call: &Call, inside: &mut Netlink, config: &Config) -> Result<Vrf, Error> {
    if let Some(found) = find_named_vrf(inside, &config.name)? {
        return matching(found, config);
    }
    // The undo is pushed first, because a lost answer does not tell whether the VRF was made.
    let (home, name) = (call.open_netns()?, config.name.clone());
    call.undo.push(format!("remove VRF {name}"), move || {
        let mut inside = Netlink::open_in(&home)?;
        match find_vrf(&mut inside, &name)? {
            Some(vrf) if vrf.is_ours() => remove_if_empty(&mut inside, &vrf),
            _ => Ok(()),
        }
    });
    match config.table {
        Some(table) => make_vrf(inside, config, table).or_else(|err| instead(inside, config, err)),
        None => make_with_a_free_table(inside, config),
    }
}

/// Makes the VRF with a table that no other VRF has. If two are made with the same table, the one with the lower index
/// keeps it, and the other ADD chooses again. Returns the VRF of a concurrent ADD if that has taken the name
/// ([`instead`]). Fails with code 11 after [`CHOICES`] attempts.
fn make_with_a_free_table(inside: &mut Netlink, config: &Config) -> Result<Vrf, Error> {
    for _ in 0..CHOICES {
        let table = free_table(&all(inside)?)?;
        match make_vrf(inside, config, table) {
            Ok(vrf) => {
                let vrfs = all(inside)?;
                if !vrfs.iter().any(|other| other.table == table && other.link.index < vrf.link.index) {
                    return Ok(vrf);
                }
                remove_if_empty(inside, &vrf)?;
            }
            // With net.vrf.strict_mode the kernel refuses a second VRF with the same table.
            Err(err) if err.is(Errno::EBUSY) => {}
            Err(err) => return instead(inside, config, err),
        }
    }
    Err(Error::new(Code::TRY_AGAIN_LATER, format!("VRF {} found no table that stayed free", config.name))
        .details(format!("{CHOICES} times, another VRF was made with the same one at the same time")))
}

/// Returns the VRF that a concurrent ADD has made, if that is why the creation failed with `err`. Any other failure is
/// explained and returned.
fn instead(inside: &mut Netlink, config: &Config, err: netlink::Error) -> Result<Vrf, Error> {
    match err.errno {
        Errno::EEXIST => matching(find_named_vrf(inside, &config.name)?.ok_or(err)?, config),
        Errno::EOPNOTSUPP => Err(alone::unknown_kind(ANY, Code::KERNEL).details(err.to_string())),
        _ => Err(err.into()),
    }
}

/// Makes the VRF in one message, so that it is never visible without its mark, or down.
fn make_vrf(inside: &mut Netlink, config: &Config, table: u32) -> Result<Vrf, netlink::Error> {
    let kind = Kind::Vrf(kind::Vrf { table });
    let new = NewLink { group: Some(GROUP), up: true, ..NewLink::new(&config.name, kind) };
    let link = inside.create_link(kind::add(&new))?;
    Ok(Vrf { link, table })
}

/// Returns the existing VRF. Fails with code 102 if another table is configured.
fn matching(found: Vrf, config: &Config) -> Result<Vrf, Error> {
    match config.table {
        Some(table) if table != found.table => {
            let (name, now) = (&config.name, found.table);
            Err(Error::new(Code::CONFLICT, format!("VRF {name} already exists with another routing table"))
                .details(format!("it has {now}, the configuration {table}")))
        }
        _ => Ok(found),
    }
}

/// Lists the VRFs of the namespace.
fn all(inside: &mut Netlink) -> Result<Vec<Vrf>, Error> {
    let links = inside.links(&Filter { master: None, kind: Some("vrf") })?;
    Ok(links.into_iter().filter_map(Vrf::from_link).collect())
}

/// Returns the lowest number that is no VRF's table and none of the kernel's. It may have routes.
fn free_table(vrfs: &[Vrf]) -> Result<u32, Error> {
    let taken: BTreeSet<u32> = vrfs.iter().map(|vrf| vrf.table).collect();
    let free = (1..=u32::MAX).find(|table| !taken.contains(table) && !KERNELS.contains(table));
    free.ok_or_else(|| Error::new(Code::CONFLICT, "every routing table is some VRF's"))
}

/// Removes the VRF if it has no ports. A VRF with ports stays, and a missing one is no error. Fails if the kernel
/// refuses.
pub(crate) fn remove_if_empty(inside: &mut Netlink, vrf: &Vrf) -> Result<(), Error> {
    if !inside.links(&Filter { master: Some(vrf.link.index), kind: None })?.is_empty() {
        return Ok(());
    }
    remove::delete(inside, &vrf.link)
}

impl Vrf {
    /// Returns the link as a VRF, or `None` if it is of another kind.
    fn from_link(link: Link) -> Option<Vrf> {
        match link.settings {
            Some(Kind::Vrf(settings)) => Some(Vrf { link, table: settings.table }),
            _ => None,
        }
    }

    /// Returns true if this plugin has made the VRF, so that it is removed with its last port.
    pub(crate) fn is_ours(&self) -> bool {
        self.link.group == GROUP || self.link.alias == ALIAS
    }
}

/// Returns true if the error of [`crate::port::set_master`] says that the VRF was removed meanwhile, with its last
/// port.
pub(crate) fn has_gone(err: &netlink::Error) -> bool {
    matches!(err.errno, Errno::ENODEV | Errno::EINVAL)
}
