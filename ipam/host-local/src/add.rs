//! ADD: reads the leases, decides, and writes, all under one lock.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use cnimble_cni::{CniResult, Code, Error, IpConfig};
use cnimble_leases::boot::Boot;
use cnimble_leases::config::Config;
use cnimble_leases::range::RangeSet;
use cnimble_leases::store::{Store, StoreError};
use cnimble_leases::{files, holder};
use cnimble_plugin::{Call, signal};

use crate::allocate::{self, AllocateError, Choice, Holders};
use crate::journal::Journal;
use crate::ledger::Ledger;
use crate::memory::Memory;
use crate::resolv;

/// A source of the range sets of an ADD.
pub trait Source {
    /// Returns the sets. The caller holds the lock of the leases. The error becomes that of ADD.
    fn sets(&self) -> Result<Vec<RangeSet>, Error>;

    /// Learns that no address of this set is left, before ADD fails. The number counts from the first of
    /// [`Source::sets`].
    fn is_full(&self, _set: usize) {}

    /// The number of the first set of [`Source::sets`] among all sets of the network. It is in the name of the file
    /// with the latest address of a set.
    fn first(&self) -> usize {
        0
    }
}

/// Chooses one address of each range set and writes the leases, with their undo. The sets are those of `source` in
/// place of the configuration's. Fails with code 101 if an address is not available, or with the error of `source`.
pub fn add_from(call: &Call, config: Config, source: &dyn Source) -> Result<CniResult, Error> {
    add_with(call, config, Some(source))
}

/// Does what [`add_from`] does, with the range sets of the configuration.
pub(crate) fn add(call: &Call, config: Config) -> Result<CniResult, Error> {
    add_with(call, config, None)
}

/// Does the work of [`add`] and [`add_from`].
fn add_with(call: &Call, mut config: Config, source: Option<&dyn Source>) -> Result<CniResult, Error> {
    let dns = match &config.resolv_conf {
        Some(path) => resolv::read(path)?,
        None => Default::default(),
    };
    let attachment = call.attachment();
    let content = holder::content(&attachment);
    if content.len() > files::LIMIT {
        // Lease files are read only up to this size, so the lease would not be found again.
        return Err(Error::new(Code::INVALID_ENVIRONMENT, "CNI_CONTAINERID is too long for a lease")
            .details(format!(
                "with the interface it has {} bytes, at most {}",
                content.len(),
                files::LIMIT
            )));
    }
    let journal = undo(call, &config);

    let store = Store::lock_or_create(&config.store, &journal)?;
    if let Some(source) = source {
        config.sets = source.sets()?;
    }
    let leases = store.leases_of(&attachment.container_id, &[])?;
    store.sweep(&leases);
    let boot = Boot::current();
    let mut ledger = Ledger::new(&store, &leases, Some(&attachment), &boot);
    ledger.first = source.map_or(0, Source::first);
    ledger.kept =
        Memory::from_call(call, config.keep_for).map(|memory| memory.recall(&store)).unwrap_or_default();
    let choices =
        allocate::choose(&config.sets, &config.requested, &call.container_id, &ledger).map_err(|err| {
            if let (Some(source), AllocateError::Full { set, .. }) = (source, &err) {
                source.is_full(*set);
            }
            no_address(&err, &config)
        })?;

    signal::check()?;
    let removed = write(&store, &journal, &ledger, &choices, &content)?;
    // The index does not have the previous owner of a reclaimed lease. So it is updated only if all leases were read.
    if leases.are_all() || removed.is_empty() {
        let given: Vec<IpAddr> = choices.iter().map(|choice| choice.ip).collect();
        store.update_index(&leases, &attachment.container_id, &given, &removed);
    }

    let ips = choices.iter().map(ip_config).collect::<Result<_, _>>()?;
    Ok(CniResult::ipam(ips, config.routes, dns))
}

/// Writes the missing leases of the addresses in prevResult again, for a repair. An address that another attachment has
/// by now stays its own.
pub(crate) fn give_again(call: &Call, config: &Config) -> Result<(), Error> {
    let attachment = call.attachment();
    let journal = undo(call, config);
    let store = Store::lock_or_create(&config.store, &journal)?;
    let leases = store.leases_of(&attachment.container_id, &[])?;
    let (content, boot) = (holder::content(&attachment), Boot::current());
    let mut given = super::in_ranges(call, config);
    given.retain(|ip| store.owner(*ip).is_none());
    for ip in &given {
        journal.write_lease(&store, *ip, &content, &boot)?;
    }
    store.update_index(&leases, &attachment.container_id, &given, &[]);
    Ok(())
}

/// Pushes the undo of the leases, and returns the journal that it reverts. It is pushed before the first change, so
/// that no change lacks it. It runs after all other undo actions, because the interface must go first.
fn undo(call: &Call, config: &Config) -> Journal {
    let journal = Journal::default();
    let (undo, path) = (journal.clone(), config.store.clone());
    let what = format!("release addresses of {} ({}) in {}", call.container_id, call.ifname, path.display());
    call.undo.push_last(what, move || undo.revert(&path));
    journal
}

/// Writes the leases of the `choices`, after removing old ones in their place. Also removes leases that the attachment
/// has from an earlier boot. Returns the addresses of all removed leases.
///
/// Each lease moves the turn of its range set on to its address (`last_reserved_ip.N`), so that the next pod gets a
/// later one. An address that was remembered (`keepFor`) does not move it.
fn write(
    store: &Store,
    journal: &Journal,
    ledger: &Ledger<'_>,
    choices: &[Choice<'_>],
    content: &[u8],
) -> Result<Vec<IpAddr>, StoreError> {
    let mut removed = Vec::new();
    // Container IDs may return after a reboot. The attachment would own what it left in an earlier boot, because the
    // lease names it.
    for ip in ledger.own().iter().filter(|ip| ledger.is_void(**ip)) {
        journal.remove(store, *ip, ledger.boot)?;
        removed.push(*ip);
    }
    for (set, choice) in choices.iter().enumerate() {
        if ledger.is_occupied(choice.ip) {
            log::info!("taking back {} in {}", choice.ip, store.path().display());
            journal.remove(store, choice.ip, ledger.boot)?;
            removed.push(choice.ip);
        }
        if !journal.write_lease(store, choice.ip, content, ledger.boot)? {
            return Err(StoreError::Unsettled(store.path().join(choice.ip.to_string())));
        }
        // The turn continues behind the latest address that was not remembered, so it reaches other remembered
        // addresses last.
        if !ledger.kept.contains(&choice.ip) {
            journal.move_on(store, ledger.first + set, choice.ip)?;
        }
    }
    Ok(removed)
}

/// Returns the address in the form of a result, with the prefix length of its subnet and the gateway of its range.
fn ip_config(choice: &Choice<'_>) -> Result<IpConfig, Error> {
    let address = IpNetwork::new(choice.ip, choice.range.subnet.prefix())
        .map_err(|err| Error::new(Code::INTERNAL, format!("{}: {err}", choice.ip)))?;
    Ok(IpConfig::new(address, Some(choice.range.gateway)))
}

/// Returns the error of an allocation, with code 101 and the leases' directory.
pub(crate) fn no_address(err: &AllocateError, config: &Config) -> Error {
    Error::new(Code::NO_ADDRESS, err.to_string()).details(format!("leases are in {}", config.store.display()))
}
