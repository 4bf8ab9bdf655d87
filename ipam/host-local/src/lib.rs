//! The CNI IPAM plugin host-local: addresses from ranges, leases on disk. The disk is compatible with the Go plugin to
//! the byte. [`cnimble_leases`] has ranges, configuration and store. An ADD (`add`) reads present leases (`ledger`),
//! chooses addresses (`allocate`), and writes them with their undo (`journal`).
//!
//! It differs from the Go plugin in these points:
//! - One lock and one reading of the directory serve a whole ADD. It decides everything before it writes anything.
//! - Lease files appear whole or not at all, and broken ones are healed ([`cnimble_leases::files`]).
//! - Leases from before this boot are taken back if the set is full or their address is requested
//!   ([`cnimble_leases::boot`]).
//! - A gateway's address is never given out. On a bridge, neither is that of the network or the broadcast.
//! - A pod may get the address again that it had (`memory`).
//! - GC and STATUS do what the specification says.

mod add;
mod allocate;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod journal;
mod ledger;
mod memory;
mod resolv;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use cnimble_cni::{Attachment, CniResult, Code, Error, Owner};
use cnimble_leases::boot::Boot;
use cnimble_leases::config::{self, Config};
use cnimble_leases::holder::Holder;
use cnimble_leases::store::{self, Directory, Store, StoreError};
use cnimble_plugin::interface::remove;
use cnimble_plugin::{Call, Caps, Place, Plugin, Role};

pub use add::{Source, add_from};
use ledger::Ledger;
use memory::Memory;
pub use resolv::read as read_resolv_conf;

pub static PLUGIN: &dyn Plugin = &HostLocal;

struct HostLocal;

impl Plugin for HostLocal {
    fn name(&self) -> &'static str {
        "host-local"
    }

    fn role(&self) -> Role {
        Role::Helper
    }

    fn needs(&self) -> Caps {
        Caps::NONE
    }

    fn read_config(&self, call: &Call) -> Result<(), Error> {
        config::store_path(&call.config)?;
        let config = Config::read(&call.config, &call.args()?)?;
        #[cfg(feature = "fuzzing")]
        fuzzing::config(&config);
        drop(config);
        Ok(())
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let config = Config::read(&call.config, &call.args()?)?;
        add::add(call, config)
    }

    /// Releases all leases of the attachment, also those outside the present ranges. `keepFor` remembers only those
    /// that prevResult has. A failed ADD has no prevResult, and its address may be another host's.
    fn del(&self, call: &Call) -> Result<(), Error> {
        let (path, keep_for) = config::store_path_and_keep_for(&call.config)?;
        let Some(store) = Store::lock(&path)? else {
            return Ok(());
        };
        let attachment = call.attachment();
        let added = added(call);
        let mut leases = store.leases_of(&attachment.container_id, &added)?;
        if leases.addresses_of(&attachment).is_empty() && !leases.are_all() {
            // A stale index must not leave leases, so all of them are read. A DEL without any lease is rare.
            leases = store.leases()?;
        }
        store.sweep(&leases);
        let own = leases.addresses_of(&attachment);
        if let Some(memory) = Memory::from_call(call, keep_for) {
            let known: Vec<IpAddr> = own.iter().copied().filter(|ip| added.contains(ip)).collect();
            memory.save_addresses(&store, &known);
        }
        release(&store, own.clone(), leases.hidden(|ip| added.contains(&ip)))?;
        store.update_index(&leases, &attachment.container_id, &[], &own);
        Ok(())
    }

    fn checks_prev_result(&self) -> bool {
        false
    }

    fn check(&self, call: &Call, _prev: &CniResult) -> Result<(), Error> {
        let config = Config::read(&call.config, &call.args()?)?;
        call.wants(Place::Host, &mut (), |()| check(call, &config), |()| add::give_again(call, &config))
    }

    /// Releases leases without a valid attachment, also damaged ones. A lease in the old form, without an interface, is
    /// valid if its container is.
    ///
    /// A lease whose veth still exists stays. The main plugin has kept that veth because another program has
    /// overwritten its alias.
    ///
    /// A lease that can't be read stays, and so does what is no regular file. Nobody knows whether its owner lives. One
    /// that can't be read makes GC fail with code 5, after it has released the others.
    fn gc(&self, call: &Call, valid: &[Attachment]) -> Result<(), Error> {
        let path = config::store_path(&call.config)?;
        let Some(store) = Store::lock(&path)? else {
            return Ok(());
        };
        let mut leases = store.leases()?;
        store.sweep(&leases);
        let hidden = leases.hidden(|_| true);
        let valid: std::collections::HashSet<&Attachment> = valid.iter().collect();
        let ids: std::collections::HashSet<&str> =
            valid.iter().map(|valid| valid.container_id.as_str()).collect();
        let stale = leases.list.iter().filter(|lease| match &lease.owner {
            Holder::Attachment(owner) => !valid.contains(owner),
            Holder::Container(id) => !ids.contains(id.as_str()),
            Holder::Broken => true,
            Holder::Unknown => false,
        });
        let stale: Vec<_> = stale.collect();
        let named = stale.iter().filter_map(|lease| match &lease.owner {
            Holder::Attachment(owner) => Some(owner.clone()),
            _ => None,
        });
        let named = named.map(|attachment| Owner { network: call.config.name.clone(), attachment });
        let living: std::collections::HashSet<Attachment> =
            remove::unmarked(named.collect())?.into_iter().map(|owner| owner.attachment).collect();
        let is_living = |owner: &Holder| matches!(owner, Holder::Attachment(owner) if living.contains(owner));
        let (kept, stale): (Vec<_>, Vec<_>) = stale.into_iter().partition(|lease| is_living(&lease.owner));
        for lease in kept {
            log::warn!(
                "the lease of {} stays: its veth is there, with an alias that names no attachment",
                lease.ip
            );
        }
        let stale: Vec<IpAddr> = stale.into_iter().map(|lease| lease.ip).collect();
        let number = stale.len();
        release(&store, stale, hidden)?;
        store.forget_index(&leases, number);
        Ok(())
    }

    /// Checks that a lease could be written, without leaving a trace, and that `resolvConf` can be read. With
    /// `notReadyWhenFull`, also checks that every range set has an address left. Fails with code 50.
    ///
    /// Otherwise a full range is no failure. A runtime would report the whole node as not ready, although the next DEL
    /// makes room (see README.md).
    fn status(&self, call: &Call) -> Result<(), Error> {
        let unavailable = |err: Error| err.with_code(Code::NOT_AVAILABLE);
        if config::awaits_ranges(&call.config)? {
            let path = config::store_path(&call.config)?;
            return store::probe_writing(&path).map_err(|err| unavailable(err.into()));
        }
        let config = Config::read(&call.config, &call.args()?)?;
        store::probe_writing(&config.store).map_err(|err| unavailable(err.into()))?;
        if let Some(path) = &config.resolv_conf {
            resolv::read(path).map_err(unavailable)?;
        }
        let Some(dir) = Directory::open(&config.store).map_err(|err| unavailable(err.into()))? else {
            return Ok(());
        };
        if !config.not_ready_when_full {
            return Ok(());
        }
        let leases = dir.leases().map_err(|err| unavailable(err.into()))?;
        let boot = Boot::current();
        allocate::has_room(&config.sets, &Ledger::new(&dir, &leases, None, &boot))
            .map_err(|err| unavailable(add::no_address(&err, &config)))
    }
}

/// Fails with code 103 unless the attachment has a lease, and one for every address of `prevResult` in the ranges of
/// `config`. A lease that can't be read is no difference, so it is an error of its own.
pub fn check(call: &Call, config: &Config) -> Result<(), Error> {
    let attachment = call.attachment();
    let ours = in_ranges(call, config);
    let (mut own, mut unread) = (Vec::new(), Vec::new());
    if let Some(dir) = Directory::open(&config.store)? {
        let has = |ip: &IpAddr| dir.owner(*ip).is_some_and(|owner| owner.is(&attachment));
        if !ours.is_empty() && ours.iter().all(has) {
            return Ok(());
        }
        // All leases are read, because one in the old form names no interface, and an earlier range may have been
        // another.
        let mut leases = dir.leases()?;
        own = leases.addresses_of(&attachment);
        unread = leases.hidden(|ip| ours.contains(&ip));
    }
    let missing = || {
        Error::check(format!("host-local: Failed to find address added by container {}", call.container_id))
    };
    let unleased = ours.iter().find(|ip| !own.contains(ip));
    if (own.is_empty() || unleased.is_some())
        && let Some(err) = unread.into_iter().next()
    {
        return Err(err.into());
    }
    if own.is_empty() {
        return Err(missing().details(format!("no lease in {}", config.store.display())));
    }
    match unleased {
        None => Ok(()),
        Some(ip) => {
            Err(missing()
                .details(format!("{ip} of the result has no lease of it in {}", config.store.display())))
        }
    }
}

/// Returns the addresses of `prevResult` that are in the ranges of `config`.
fn in_ranges(call: &Call, config: &Config) -> Vec<IpAddr> {
    let mut added = added(call);
    added.retain(|ip| config.sets.iter().any(|set| set.range_of(*ip).is_some()));
    added
}

/// Returns all addresses of `prevResult`, or none without one.
fn added(call: &Call) -> Vec<IpAddr> {
    let ips = call.config.prev_result.iter().flat_map(|result| &result.ips);
    ips.map(|ip| ip.address.ip()).collect()
}

/// Removes the leases of `ips`. Continues after failures. Fails with code 5, with all that could not be removed and
/// with `hidden`, the errors of files that may be leases.
fn release(store: &Store, ips: Vec<IpAddr>, hidden: Vec<StoreError>) -> Result<(), Error> {
    let failed = ips.into_iter().filter_map(|ip| store.remove(ip).err());
    let failures: Vec<String> = failed.chain(hidden).map(|err| err.to_string()).collect();
    if failures.is_empty() {
        return Ok(());
    }
    Err(Error::new(Code::IO, failures.join("; ")))
}
