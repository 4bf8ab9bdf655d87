//! The CNI plugin `host-device`: moves a device of the host, for example a network card, into a pod and back.
//!
//! ADD takes these steps in order, each with its undo:
//! 1. Find the device (`find`, `sysfs`). A device that its driver leaves to a program (DPDK) is not moved.
//! 2. Write its state into a file (`record`).
//! 3. Move it and name it CNI_IFNAME (`moving`).
//! 4. Get addresses from IPAM, if the network has an IPAM plugin.
//! 5. Add the addresses, set it up, add the routes, and announce the addresses.
//!
//! DEL moves the device back from the pod and restores its state. If the pod has died, DEL finds the device where the
//! kernel has put it. A link that is not proven to be the device stays (`identity`). While a verb moves or restores a
//! device, it holds that device's lock (`store::RecordStore::lock_device`).

mod config;
mod find;
mod identity;
mod moving;
mod place;
mod record;
mod seen;
mod store;
mod sysfs;

use std::path::{Path, PathBuf};

use nix::errno::Errno;

use cnimble_cni::{Attachment, CniResult, Code, Error, Interface, Owner, names, owner};
use cnimble_netlink::link::Link;
use cnimble_netlink::{NetNs, Netlink, netns};
use cnimble_plugin::interface::{alone, check, completed, pair, pod, remove, usable_netlink};
use cnimble_plugin::{Call, Command, Plugin, Role, delegate};

use config::{Config, DeviceSelector};
use place::DeviceNamespace;
use record::DeviceRecord;
use seen::DeviceProof;
use store::RecordStore;

pub static PLUGIN: &dyn Plugin = &HostDevice;

struct HostDevice;

impl Plugin for HostDevice {
    fn name(&self) -> &'static str {
        "host-device"
    }

    fn role(&self) -> Role {
        Role::Main
    }

    fn read_config(&self, call: &Call) -> Result<(), Error> {
        Config::read(&call.config).map(drop)
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let config = Config::read(&call.config)?;
        let netns = call.open_netns()?;
        let moved =
            if find::is_for_programs(&config)? { None } else { Some(move_in(call, &netns, &config)?) };
        let result = delegate::add_ipam(call)?;
        let mut interface = Interface::new(call.ifname.as_str(), "", call.netns.as_str());
        if let Some((link, mut inside)) = moved {
            interface.mac = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
            call.step(&format!("configure {} in the pod", call.ifname), || {
                alone::configure(call, &netns, &mut inside, &link, &result, true)
            })?;
        }
        Ok(completed(result, vec![interface], config.dns))
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        let device = give_back(call, &RecordStore(config::data_dir(&call.config)?));
        let lease = delegate::release(call, &device, Command::Del);
        remove::all([device, lease])
    }

    fn check(&self, call: &Call, prev: &CniResult) -> Result<(), Error> {
        let config = Config::read(&call.config)?;
        let own =
            if find::is_for_programs(&config)? { Ok(()) } else { check_device(call, prev, config.data_dir) };
        delegate::check_ipam(call, own)
    }

    /// Moves back the devices of attachments that are not `valid`, and removes what killed verbs have left. Leases stay
    /// if a device could not be moved back.
    fn gc(&self, call: &Call, valid: &[Attachment]) -> Result<(), Error> {
        let records = RecordStore(config::data_dir(&call.config)?);
        let is_stale = owner::stale(&call.config.name, valid);
        let stale = records.all(|file| file.strip_suffix(".json").is_some_and(&is_stale));
        let devices = stale.and_then(|stale| {
            let devices = stale.iter().map(|record| collect(&records, record));
            remove::all(devices.chain([records.tidy(&is_stale)]))
        });
        let leases = delegate::release(call, &devices, Command::Gc);
        remove::all([devices, leases])
    }

    /// Fails with code 50 if the device is neither on the host nor in a pod of this network.
    fn status(&self, call: &Call) -> Result<(), Error> {
        let config = Config::read(&call.config)?;
        let mut host = usable_netlink()?;
        let found = find::is_for_programs(&config).and_then(|program| {
            if program { Ok(()) } else { find::link(&mut host, &config.wanted).map(drop) }
        });
        if let Err(err) = found {
            // A device that is in a pod is no fault of the network, as long as its record proves that.
            let network = cnimble_cni::hash16(&call.config.name) + "-";
            let moved = RecordStore(config.data_dir).all(|file| file.starts_with(&network))?;
            // The kernel deletes a virtual device with the namespace of its pod. Hardware comes back.
            let lives = moved.iter().any(|record| {
                let netns = std::fs::metadata(&record.netns);
                record.kind.is_empty() || !netns.is_err_and(|err| cnimble_os::files::is_absent(&err))
            });
            if !lives {
                return Err(err.with_code(Code::NOT_AVAILABLE));
            }
        }
        delegate::call_ipam(call, Command::Status)
    }
}

/// Fails with code 103 if the pod's interface is not the recorded device, or not as the result has it. A device of the
/// Go plugin has no record, and is recognized by any alias.
fn check_device(call: &Call, prev: &CniResult, data_dir: PathBuf) -> Result<(), Error> {
    let mut pod = DeviceNamespace::pod(&call.open_netns()?)?;
    let link = check::find_link(&mut pod.netlink, &call.ifname, &format!("in {}", call.netns))?;
    let is_moved = match RecordStore(data_dir).read(&call.owner())? {
        Some(record) => pod.find_device(&record)?.is_some_and(|device| device.index == link.index),
        // Without a record the Go plugin has moved the device. It writes the old name into the alias.
        None => !link.alias.is_empty(),
    };
    if !is_moved {
        return Err(Error::check(format!(
            "interface {} isn't the device that was moved into the pod",
            link.name
        )));
    }
    let (ours, inside) = (check::of_this_interface(call, prev), &mut pod.netlink);
    check::pod(call, inside, &ours, &link.kind, true)?;
    check::addresses(inside, &link, &ours)?;
    check::routes(inside, &link, &pod::routes(link.index, &ours), "in the pod")
}

/// Records the device and moves it into the pod, with its undo. Returns it with a socket in the pod.
///
/// Fails with code 100 if the device is missing, and with code 102 if the name is taken in the pod. Code 11 means that
/// the device was renamed while this ADD waited for its lock.
fn move_in(call: &Call, netns: &NetNs, config: &Config) -> Result<(Link, Netlink), Error> {
    let (owner, records) = (call.owner(), RecordStore(config.data_dir.clone()));
    records.make_directory()?;
    let mut host = DeviceNamespace::host()?;
    end_earlier(&owner, netns, &records)?;
    let name = match &config.wanted {
        // The key may have an alternative name. The lock is for the name that the kernel reports.
        DeviceSelector::Name(name) => {
            host.netlink.find_link(name)?.map_or_else(|| name.clone(), |link| link.name)
        }
        other => find::link_or_returned(&mut host, other, &records)?.link.name,
    };
    let _held = records.lock_device(&name)?;
    let seen = find::link_or_returned(&mut host, &config.wanted, &records)?;
    let link = &seen.link;
    if link.name != name {
        return Err(Error::new(Code::TRY_AGAIN_LATER, format!("device {name} was renamed meanwhile")));
    }
    // The move sets the device down and loses its addresses. That must not happen only to find the name taken.
    let mut inside = Netlink::open_in(netns)?;
    if inside.find_link(&call.ifname)?.is_some() {
        return Err(pair::pod_name_taken(call));
    }
    let (details, addrs) = (host.netlink.details(link.index)?, host.netlink.addrs(link.index)?);
    let record = DeviceRecord::from_device(&owner, &call.netns, &seen, &addrs).with_settings(details);
    let (home, kept, undone) = (call.open_netns()?, record.clone(), records.clone());
    call.undo.push(format!("bring device {name} home"), move || {
        let _held = undone.lock_device(&kept.name)?;
        moving::home(&kept, Some(&home))?;
        undone.remove(&owner)
    });
    call.step("remember the device", || records.write(&record))?;
    call.step("move the device", || {
        moving::into_pod(&mut host.netlink, netns, link, &call.ifname).map_err(|err| match err.errno {
            Errno::EEXIST => pair::pod_name_taken(call),
            _ => err.into(),
        })
    })?;
    let link = inside.link(&call.ifname)?;
    Ok((link, inside))
}

/// Moves back the device of an earlier ADD of the same attachment, which was killed or not followed by DEL. The new
/// record replaces the old one later. Fails with code 102 if that device is still in the pod.
fn end_earlier(owner: &Owner, netns: &NetNs, records: &RecordStore) -> Result<(), Error> {
    let Some(record) = records.read(owner)? else { return Ok(()) };
    let _held = records.lock_device(&record.name)?;
    if DeviceNamespace::pod(netns)?.find_device(&record)?.is_some() {
        let what = format!("device {} is in the pod already, as {}", record.name, record.ifname);
        return Err(Error::new(Code::CONFLICT, what).details("call DEL first"));
    }
    moving::home(&record, None)?;
    Ok(())
}

/// Moves the attachment's device to the host, restores it, and removes the record. Without a record, looks for a device
/// of the Go plugin ([`adopt`]). Succeeds if there is nothing to move.
fn give_back(call: &Call, records: &RecordStore) -> Result<(), Error> {
    let netns = call.find_netns()?;
    if let Some(record) = records.read(&call.owner())? {
        let _held = records.lock_device(&record.name)?;
        // Another DEL or a GC may have moved the device before this one got the lock.
        return match records.read(&call.owner())? {
            Some(record) => bring_home(call, netns.as_ref(), records, &record),
            None => Ok(()),
        };
    }
    // A file that is no record has no use, so it is removed.
    records.remove(&call.owner())?;
    let wanted = Config::read(&call.config).ok().map(|config| config.wanted);
    // Dropping this lock removes the lock file that a killed ADD has left.
    let _held = match &wanted {
        Some(DeviceSelector::Name(name)) => records.lock_device(name)?,
        _ => None,
    };
    match (netns, wanted) {
        (Some(netns), Some(wanted)) => adopt(call, &netns, &wanted, records),
        _ => Ok(()),
    }
}

/// Moves the device back from the namespace `netns` of the pod, or from the namespace of its ADD. Then removes the
/// record.
///
/// If a namespace lives without the device, the pod has destroyed or hidden it. Then the record stays, so that no later
/// DEL takes something else for the device. GC removes the record of a virtual device, and hardware keeps it until it
/// comes back. The outcome is `Ok` in either case.
fn bring_home(
    call: &Call,
    netns: Option<&NetNs>,
    records: &RecordStore,
    record: &DeviceRecord,
) -> Result<(), Error> {
    let mut found = moving::home(record, netns)?;
    let mut lives = netns.is_some();
    if !found
        && record.netns != call.netns
        && let Some(netns) = find_netns(Path::new(&record.netns))?
    {
        lives = true;
        found = moving::home(record, Some(&netns))?;
    }
    if found {
        return records.remove(&record.owner());
    }
    if !lives {
        return forget(records, record);
    }
    log::warn!(
        "device {} is neither in the pod nor on the host, and nothing was moved; \
         it may be in a namespace that the pod has made, and {}",
        record.name,
        match record.kind.as_str() {
            "" => "the next ADD, DEL or GC restores it when the kernel gives it back",
            _ => "ends with that one",
        }
    );
    Ok(())
}

/// Moves back the device of one record for GC, from its namespace or from any that a mount pins. A device that is
/// nowhere is forgotten ([`forget`]).
fn collect(records: &RecordStore, record: &DeviceRecord) -> Result<(), Error> {
    let _held = records.lock_device(&record.name)?;
    // A DEL may have removed the record before this GC got the lock.
    let Some(record) = &records.read(&record.owner())? else { return Ok(()) };
    let netns = find_netns(Path::new(&record.netns))?;
    let mut found = moving::home(record, netns.as_ref())?;
    for path in if found { Vec::new() } else { netns::pinned() } {
        if let Some(netns) = find_netns(&path)?
            && DeviceNamespace::pod(&netns)?.find_device(record)?.is_some()
        {
            found = moving::home(record, Some(&netns))?;
            break;
        }
    }
    if found { records.remove(&record.owner()) } else { forget(records, record) }
}

/// Removes the record of a virtual device, which the kernel destroys with its namespace. Keeps the record of hardware,
/// which the kernel returns, perhaps after DEL. The next ADD, DEL or GC then restores it by the record.
fn forget(records: &RecordStore, record: &DeviceRecord) -> Result<(), Error> {
    if !record.kind.is_empty() {
        return records.remove(&record.owner());
    }
    log::warn!("device {} is neither in the pod nor on the host", record.name);
    Ok(())
}

/// Moves back a device that the Go plugin moved. Its old name is its alias, which a pod can write. So the configuration
/// has to name the device, and the host has to lack it. Any other interface is left alone with a warning.
///
/// The device gets a record first, so that a killed DEL can be repeated.
fn adopt(call: &Call, netns: &NetNs, wanted: &DeviceSelector, records: &RecordStore) -> Result<(), Error> {
    let mut pod = DeviceNamespace::pod(netns)?;
    let Some(link) = pod.netlink.find_link(&call.ifname)? else { return Ok(()) };
    let Some(seen) = pod.read_properties(link)? else { return Ok(()) };
    let link = &seen.link;
    let is_name = names::new_interface_problem(&link.alias).is_none() && owner::tag(&link.alias).is_none();
    let is_wanted = match wanted {
        DeviceSelector::Name(name) => link.alias == *name,
        DeviceSelector::Mac(mac) => link.mac == Some(*mac),
        DeviceSelector::KernelPath(_) | DeviceSelector::Pci(_) | DeviceSelector::Id(_) => {
            // The plugin tuning, later in the chain, has already restored the MAC, so that prevResult has another one.
            link.kind.is_empty() && (!remove::is_another(call, link) || seen.has_permanent_mac())
        }
    };
    let loopback = seen.details.as_ref().is_some_and(|details| details.loopback);
    if !is_name || !is_wanted || loopback || find::link(&mut Netlink::open()?, wanted).is_ok() {
        log::warn!(
            "nothing shows that {} in {} is a device that was added; left alone",
            call.ifname,
            call.netns
        );
        return Ok(());
    }
    // The Go plugin does not record whether the device was up.
    let was = Link { name: link.alias.clone(), alias: String::new(), up: false, ..link.clone() };
    let record =
        DeviceRecord::from_device(&call.owner(), &call.netns, &DeviceProof { link: was, ..seen }, &[]);
    records.make_directory().and_then(|()| records.write(&record)).unwrap_or_else(|err| log::warn!("{err}"));
    let _held = records.lock_device(&record.name)?;
    moving::home(&record, Some(netns))?;
    records.remove(&record.owner())
}

/// Opens the namespace at `path`. `None` if no namespace is there, or if it is the plugin's own.
fn find_netns(path: &Path) -> Result<Option<NetNs>, Error> {
    Ok(NetNs::current()?.find_another(path)?)
}
