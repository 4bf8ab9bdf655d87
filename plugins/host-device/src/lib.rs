//! The CNI plugin `host-device`: a device of the host, a network card for example, moves into a pod, and
//! home again.
//!
//! ADD, in order, each step with its undo:
//!
//! 1. the device is found (`find`, `sysfs`); one that a driver leaves to a program (DPDK) isn't moved;
//! 2. what it is like is written into a file (`record`);
//! 3. it is moved, and named CNI_IFNAME (`moving`);
//! 4. addresses from IPAM, if there is one;
//! 5. addresses, up, routes; the addresses are announced.
//!
//! DEL brings it home from the pod, or finds it on the host where the kernel has put it when the pod died,
//! and makes it what it was.

mod config;
mod find;
mod moving;
mod record;
mod sysfs;

use std::path::Path;

use nix::errno::Errno;

use cnimble_cni::{Attachment, CniResult, Code, Error, Interface, names, owner};
use cnimble_netlink::link::Link;
use cnimble_netlink::{NetNs, Netlink, netns};
use cnimble_plugin::interface::{alone, check, completed, pair, pod, remove, usable_netlink};
use cnimble_plugin::{Call, Caps, Command, Plugin, delegate};

use config::Config;
use record::{Record, Records};

/// Where the interface stands in the result.
const POD_INTERFACE: u32 = 0;

/// The plugin.
pub static PLUGIN: &dyn Plugin = &HostDevice;

struct HostDevice;

impl Plugin for HostDevice {
    fn name(&self) -> &'static str {
        "host-device"
    }

    fn needs(&self) -> Caps {
        Caps::NET_ADMIN.and(Caps::SYS_ADMIN)
    }

    fn read_config(&self, call: &Call) -> Result<(), Error> {
        Config::read(&call.config).map(drop)
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let config = Config::read(&call.config)?;
        let netns = call.open_netns()?;
        let moved = match find::is_for_programs(&config)? {
            true => None,
            false => Some(move_in(call, &netns, &config)?),
        };
        let mut result = match &config.ipam {
            None => CniResult::default(),
            Some(ipam) => {
                let result = delegate::add(call, ipam)?;
                if result.ips.is_empty() {
                    return Err(Error::new(Code::DELEGATE, "IPAM plugin returned missing IP config")
                        .details(format!("IPAM plugin {ipam}")));
                }
                result
            }
        };
        for ip in &mut result.ips {
            ip.interface = Some(POD_INTERFACE);
        }
        let mut interface =
            Interface { name: call.ifname.clone(), sandbox: call.netns.clone(), ..Interface::default() };
        if let Some((link, mut inside)) = moved {
            interface.mac = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
            call.step(&format!("configure {} in the pod", call.ifname), || {
                alone::configure(call, &netns, &mut inside, &link, &result, true)
            })?;
        }
        Ok(completed(result, vec![interface], config.dns))
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        let device = give_back(call, &Records(config::data_dir(&call.config)?));
        let lease = delegate::release(call, &device, Command::Del);
        remove::all([device, lease])
    }

    fn check(&self, call: &Call, prev: &CniResult) -> Result<(), Error> {
        let config = Config::read(&call.config)?;
        if !find::is_for_programs(&config)? {
            let mut inside = Netlink::open_in(&call.open_netns()?)?;
            let link = check::find(&mut inside, &call.ifname, &format!("in {}", call.netns))?;
            let is_moved = match Records(config.data_dir).read(&call.owner())? {
                Some(record) => record.is(&link),
                // By the Go plugin.
                None => !link.alias.is_empty(),
            };
            if !is_moved {
                let what = format!("interface {} isn't the device that was moved into the pod", link.name);
                return Err(Error::check(what));
            }
            let ours = check::of_this_interface(call, prev);
            check::pod(call, &mut inside, &ours, &link.kind, true)?;
            check::addresses(&mut inside, &link, &ours)?;
            check::routes(&mut inside, &link, &pod::routes(link.index, &ours), "in the pod")?;
        }
        match &config.ipam {
            Some(ipam) => delegate::call(call, ipam, Command::Check),
            None => Ok(()),
        }
    }

    fn gc(&self, call: &Call, valid: &[Attachment]) -> Result<(), Error> {
        let records = Records(config::data_dir(&call.config)?);
        let is_stale = owner::stale(&call.config.name, valid);
        let stale = records.all(|file| file.strip_suffix(".json").is_some_and(&is_stale));
        let devices = stale.and_then(|stale| {
            let devices = stale.iter().map(|record| collect(&records, record));
            remove::all(devices.chain([records.tidy(&is_stale)]))
        });
        let leases = delegate::release(call, &devices, Command::Gc);
        remove::all([devices, leases])
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        let config = Config::read(&call.config)?;
        let mut host = usable_netlink()?;
        let there = find::is_for_programs(&config).and_then(|program| {
            if program { Ok(()) } else { find::link(&mut host, &config.wanted).map(drop) }
        });
        if let Err(err) = there {
            // A pod that has it is no fault of the network's.
            let network = cnimble_cni::hash16(&call.config.name) + "-";
            if Records(config.data_dir).all(|file| file.starts_with(&network))?.is_empty() {
                return Err(Error { code: Code::NOT_AVAILABLE, ..err });
            }
        }
        match &config.ipam {
            Some(ipam) => delegate::call(call, ipam, Command::Status),
            None => Ok(()),
        }
    }
}

/// Moves the device into the pod. Returns it with a socket inside.
fn move_in(call: &Call, netns: &NetNs, config: &Config) -> Result<(Link, Netlink), Error> {
    let (owner, records) = (call.owner(), Records(config.data_dir.clone()));
    let mut host = Netlink::open()?;
    let mut inside = Netlink::open_in(netns)?;
    // Left by an ADD that was killed, or that DEL didn't follow.
    if let Some(record) = records.read(&owner)? {
        if moving::is_in(&record, netns)? {
            let what = format!("device {} is in the pod already, as {}", record.name, record.ifname);
            return Err(Error::new(Code::CONFLICT, what).details("call DEL first"));
        }
        moving::home(&record, None)?;
    }
    let link = find::link_or_returned(&mut host, &config.wanted, &records)?;
    // The move takes the device down and its addresses away: not for a name that is taken.
    if inside.find_link(&call.ifname)?.is_some() {
        return Err(pair::pod_name_taken(call));
    }
    let record = Record::of(&owner, &call.netns, &link, &host.addrs(link.index)?);
    let (home, kept, undone) = (call.open_netns()?, record.clone(), records.clone());
    call.undo.push(format!("bring device {} home", link.name), move || {
        moving::home(&kept, Some(&home))?;
        undone.remove(&owner)
    });
    call.step("remember the device", || records.write(&record))?;
    call.step("move the device", || {
        moving::into_pod(&mut host, netns, &link, &call.ifname).map_err(|err| match err.errno {
            Errno::EEXIST => pair::pod_name_taken(call),
            _ => err.into(),
        })
    })?;
    let link = inside.link(&call.ifname)?;
    Ok((link, inside))
}

/// DEL of the device: home, from wherever it is.
fn give_back(call: &Call, records: &Records) -> Result<(), Error> {
    let netns = call.find_netns()?;
    let _alone = records.hold(&call.owner())?;
    let record = match (records.read(&call.owner())?, &netns) {
        (Some(record), _) => Some(record),
        (None, Some(netns)) => adopt(call, netns, records)?,
        (None, None) => None,
    };
    let Some(record) = record else {
        // A file that can't be read isn't needed.
        records.remove(&call.owner())?;
        return without_our_addresses(call, netns.as_ref());
    };
    let mut found = moving::home(&record, netns.as_ref())?;
    if !found && record.netns != call.netns {
        found = match find_netns(Path::new(&record.netns))? {
            Some(netns) => moving::home(&record, Some(&netns))?,
            None => false,
        };
    }
    if !found {
        without_our_addresses(call, netns.as_ref())?;
    }
    forget(records, &record, found)
}

/// GC of a device: home, from its namespace or from any that is pinned by a mount.
fn collect(records: &Records, record: &Record) -> Result<(), Error> {
    let _alone = records.hold(&record.owner())?;
    // A DEL may have come since the look.
    let Some(record) = &records.read(&record.owner())? else { return Ok(()) };
    let netns = find_netns(Path::new(&record.netns))?;
    let mut found = moving::home(record, netns.as_ref())?;
    for path in if found { Vec::new() } else { netns::pinned() } {
        if let Some(netns) = find_netns(&path)?
            && moving::is_in(record, &netns)?
        {
            found = moving::home(record, Some(&netns))?;
            break;
        }
    }
    forget(records, record, found)
}

/// Removes the record of a device that is home, or that the kernel has destroyed with the namespace. Hardware
/// comes back when the kernel is done with the namespace, which may be later than DEL: then the next ADD, DEL
/// or GC goes by the record.
fn forget(records: &Records, record: &Record, found: bool) -> Result<(), Error> {
    if found || !record.kind.is_empty() {
        return records.remove(&record.owner());
    }
    log::warn!("device {} is neither in the pod nor on the host", record.name);
    Ok(())
}

/// A device that the Go plugin has moved into the pod: its old name is its alias. It gets a record, so that a DEL
/// that is killed can be called again.
fn adopt(call: &Call, netns: &NetNs, records: &Records) -> Result<Option<Record>, Error> {
    let Some(link) = Netlink::open_in(netns)?.find_link(&call.ifname)? else { return Ok(None) };
    let told = call.config.prev_result.iter().flat_map(|prev| &prev.interfaces);
    let mut told = told.filter(|told| told.name == call.ifname && !told.sandbox.is_empty());
    let is_name = names::interface_problem(&link.alias).is_none() && owner::tag(&link.alias).is_none();
    if !is_name || told.any(|told| check::same_mac(&link, told).is_err()) {
        log::warn!("{} in {} isn't a device that was added; left alone", call.ifname, call.netns);
        return Ok(None);
    }
    let name = link.alias.clone();
    // The Go plugin doesn't tell whether it was up.
    let was = Link { name, alias: String::new(), up: false, ..link };
    let record = Record::of(&call.owner(), &call.netns, &was, &[]);
    records.write(&record)?;
    Ok(Some(record))
}

/// An error if an interface in the pod has an address that prevResult tells: one that is in use is not free.
fn without_our_addresses(call: &Call, netns: Option<&NetNs>) -> Result<(), Error> {
    let (Some(netns), Some(prev)) = (netns, &call.config.prev_result) else { return Ok(()) };
    let told = check::of_this_interface(call, prev);
    if told.ips.is_empty() {
        return Ok(());
    }
    let present = Netlink::open_in(netns)?.all_addrs()?;
    remove::not_in_use(call, &told.ips, &present, "another interface than the device that was added")
}

/// The namespace at a path, unless it is our own.
fn find_netns(path: &Path) -> Result<Option<NetNs>, Error> {
    Ok(NetNs::current()?.find_another(path)?)
}
