//! The CNI plugin `tuning`, part of a chain: sets sysctls in the pod's namespace and attributes of its interface.
//!
//! ADD takes these steps in order, each with its undo:
//! 1. Set the sysctls. They are below `net/` and on the administrator's list, if there is one (`allowlist`).
//! 2. Write a file with the interface's present settings (`backup`).
//! 3. Set hardware address, promiscuous mode, MTU, all-multicast and queue length.
//!
//! DEL restores the settings from the file if the interface exists, because the namespace may stay in use (`podman
//! network disconnect`). Sysctls stay, as with the Go plugin. The kernel removes the interface's with it, and programs
//! in the pod may have changed the others.

mod allowlist;
mod backup;
mod config;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod settings;

use std::path::Path;

use nix::errno::Errno;

use cnimble_cni::mtu::ipv6_problem;
use cnimble_cni::{Attachment, CniResult, Code, Error, IpNetwork};
use cnimble_netlink::link::{self, Change, Link};
use cnimble_netlink::{NetNs, Netlink, sysctl};
use cnimble_plugin::interface::find_own;
use cnimble_plugin::{Call, Place, Plugin, Role};

use backup::Backup;
use config::{Config, Sysctl};
use settings::Difference;

pub static PLUGIN: &dyn Plugin = &Tuning;

struct Tuning;

impl Plugin for Tuning {
    fn name(&self) -> &'static str {
        "tuning"
    }

    fn role(&self) -> Role {
        Role::Chained
    }

    fn read_config(&self, call: &Call) -> Result<(), Error> {
        let config = Config::read(call, &call.ifname)?;
        #[cfg(feature = "fuzzing")]
        fuzzing::config(&config);
        drop(config);
        Ok(())
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let config = Config::read(call, &call.ifname)?;
        allowlist::check(&config.sysctls, Path::new(allowlist::FILE))?;
        let mut result = call.previous()?.clone();
        let netns = call.open_netns()?;
        for sysctl in &config.sysctls {
            call.step(&format!("set {} in the pod", sysctl.key), || set(call, &netns, sysctl))?;
        }
        if !config.settings.is_empty() {
            call.step(&format!("change interface {}", call.ifname), || change(call, &netns, &config))?;
            warn_of_lost_addresses(call, &config, &result);
        }
        for interface in &mut result.interfaces {
            if interface.name == call.ifname && !interface.sandbox.is_empty() {
                if let Some(mac) = config.settings.mac {
                    interface.mac = mac.to_string();
                }
                // Only results of version 1.1.0 have the field, so it is changed only if it is set.
                if interface.mtu.is_some() && config.settings.mtu.is_some() {
                    interface.mtu = config.settings.mtu;
                }
            }
        }
        Ok(result)
    }

    /// Restores the settings from the backup and removes it. A setting that cannot be restored only causes a warning,
    /// because the next plugin deletes the interface. Needs no valid configuration but that of `dataDir`.
    fn del(&self, call: &Call) -> Result<(), Error> {
        // The other keys may have changed since ADD, so only `dataDir` is read.
        let file = backup::file(&config::data_dir(&call.config)?, &call.attachment());
        if let Some(bytes) = backup::read_what_is_left(&file)?
            && let Err(err) = restore(call, &bytes)
        {
            log::warn!("{} in {} could not be restored: {err}", call.ifname, call.netns);
        }
        backup::remove(&file, &call.config.name)
    }

    fn check(&self, call: &Call, _prev: &CniResult) -> Result<(), Error> {
        let config = Config::read(call, &call.ifname)?;
        let netns = call.open_netns()?;
        let mut inside = Netlink::open_in(&netns)?;
        // The interface comes first: without it the files of its sysctls are missing, too, and an error about one of
        // them would hide the cause. The settings from before ADD stay in their file.
        call.wants(
            Place::Pod,
            &mut inside,
            |inside| check_settings(call, &config, inside),
            |inside| {
                let now = find_link(call, inside)?;
                let changes = config.settings.differences(&now);
                let changes = changes.into_iter().map(|of| link::set(now.index, &now.name, &of.change));
                Ok(inside.execute_all(changes.collect())?)
            },
        )?;
        for sysctl in &config.sysctls {
            call.wants(
                Place::Pod,
                &mut (),
                |()| netns.enter(|| check_sysctl(sysctl))?,
                |()| {
                    // The list may have become shorter since ADD, and a repair must not set what it refuses.
                    allowlist::check(std::slice::from_ref(sysctl), Path::new(allowlist::FILE))?;
                    set(call, &netns, sysctl)
                },
            )?;
        }
        Ok(())
    }

    /// Removes the backups of attachments that are not `valid`, without restoring their settings.
    fn gc(&self, call: &Call, valid: &[Attachment]) -> Result<(), Error> {
        backup::gc(&config::data_dir(&call.config)?, &call.config.name, valid)
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        // STATUS has no interface. A configuration that is valid for one name is valid for any.
        let config = Config::read(call, "eth0")?;
        allowlist::check(&config.sysctls, Path::new(allowlist::FILE)).map_err(unusable)?;
        if config.settings.is_empty() {
            return Ok(());
        }
        backup::usable(&config.data_dir).map_err(unusable)
    }
}

/// Returns the error of STATUS that `err` causes, with code 50.
fn unusable(err: Error) -> Error {
    Error::new(Code::NOT_AVAILABLE, "tuning can't be done").details(err.msg).details(err.details)
}

/// Warns if the new MTU is too small for IPv6, so that the kernel has removed the IPv6 addresses of the interface. The
/// result keeps them, and IPv4 works on, as with the Go plugin.
fn warn_of_lost_addresses(call: &Call, config: &Config, result: &CniResult) {
    let problem = config.settings.mtu.and_then(ipv6_problem);
    let lost = result.ips.iter().map(|ip| ip.address).filter(IpNetwork::is_ipv6);
    let lost: Vec<String> = lost.map(|address| address.to_string()).collect();
    if let Some(problem) = problem.filter(|_| !lost.is_empty()) {
        log::warn!("mtu: {problem}: {} has lost {}", call.ifname, lost.join(", "));
    }
}

/// Sets a sysctl in the pod. The undo restores the old value, if it was another one and could be read.
fn set(call: &Call, netns: &NetNs, sysctl: &Sysctl) -> Result<(), Error> {
    let (path, value) = (sysctl.path.clone(), sysctl.value.as_str());
    // The value is written even if it is set. `net.ipv6.conf.all.disable_ipv6=0` affects all interfaces, including
    // those with another value.
    let old = netns.enter(|| match sysctl::read(&path) {
        Ok(old) => sysctl::write(&path, value).map(|()| Some(old)),
        // Some sysctls are write-only, and have no old value.
        Err(err) if err.is(Errno::EACCES) || err.is(Errno::EPERM) => {
            sysctl::write(&path, value).map(|()| None)
        }
        Err(err) => Err(err),
    })??;
    if let Some(old) = old.filter(|old| !sysctl::same(old, value)) {
        let namespace = call.netns.clone();
        call.undo.push(format!("put back sysctl {path}"), move || {
            NetNs::open(Path::new(&namespace))?.enter(|| sysctl::write(&path, &old))??;
            Ok(())
        });
    }
    Ok(())
}

/// Returns the interface of the pod. Fails with code 103 if it is missing.
fn find_link(call: &Call, inside: &mut Netlink) -> Result<Link, Error> {
    inside
        .find_link(&call.ifname)?
        .ok_or_else(|| Error::check(format!("interface {} is missing in {}", call.ifname, call.netns)))
}

/// Compares the settings of the pod's interface. Fails with code 103 and the first difference.
fn check_settings(call: &Call, config: &Config, inside: &mut Netlink) -> Result<(), Error> {
    let now = find_link(call, inside)?;
    match config.settings.differences(&now).first() {
        None => Ok(()),
        Some(Difference { words, .. }) => Err(Error::check(format!("interface {} has {words}", now.name))),
    }
}

/// Compares a sysctl in this thread's namespace. Fails with code 103. A sysctl that is write-only counts as set.
fn check_sysctl(sysctl: &Sysctl) -> Result<(), Error> {
    let now = match sysctl::read(&sysctl.path) {
        Ok(now) => now,
        Err(err) if err.is(Errno::EACCES) || err.is(Errno::EPERM) => return Ok(()),
        Err(err) => {
            return Err(Error::check(format!("sysctl {} can't be read", sysctl.key)).details(err.to_string()));
        }
    };
    if sysctl::same(&now, &sysctl.value) {
        return Ok(());
    }
    Err(Error::check(format!("sysctl {} is \"{now}\", expected \"{}\"", sysctl.key, sysctl.value)))
}

/// Writes the backup, and then changes each setting that differs, with its undo. The backup also has settings that do
/// not differ. It is written without any setting, too, so the caller asks first whether there are some.
fn change(call: &Call, netns: &NetNs, config: &Config) -> Result<(), Error> {
    let mut inside = Netlink::open_in(netns)?;
    let now = inside.link(&call.ifname)?;
    let saved = Backup::from_link(&now, &config.settings, &call.config.name);
    let file = backup::file(&config.data_dir, &call.attachment());
    backup::write(&file, &saved, &call.undo)?;
    for Difference { change, inverse, .. } in config.settings.differences(&now) {
        let (index, name, namespace) = (now.index, now.name.clone(), call.netns.clone());
        inside.execute(link::set(index, &name, &change))?;
        call.undo.push(format!("put back the settings of {name}"), move || {
            let netns = NetNs::open(Path::new(&namespace))?;
            Ok(Netlink::open_in(&netns)?.execute(link::set(index, &name, &inverse))?)
        });
    }
    Ok(())
}

/// Restores the settings from the backup `bytes`, one request for each. A refused one does not stop the others, and the
/// first error is returned. Does nothing if the namespace or the attachment's interface is gone. Fails with code 6 if
/// the backup is invalid.
fn restore(call: &Call, bytes: &[u8]) -> Result<(), Error> {
    let saved = Backup::parse(bytes)?;
    let Some(netns) = call.find_netns()? else { return Ok(()) };
    let mut inside = Netlink::open_in(&netns)?;
    let Some(now) = find_own(call, &mut inside, &netns)? else { return Ok(()) };
    let mut outcome = Ok(());
    // The main plugin recognizes an interface of the Go plugins, which has no alias, by the MAC in prevResult. As the
    // MAC changes now, an alias with the owner takes its place.
    let alias =
        (now.alias.is_empty() && !["", "veth"].contains(&now.kind.as_str())).then(|| call.owner().comment());
    for Difference { change, .. } in saved.settings().differences(&now) {
        let alias = alias.as_deref().filter(|_| change.mac.is_some());
        let change = Change { alias, ..change };
        if let Err(err) = inside.execute(link::set(now.index, &now.name, &change)) {
            outcome = outcome.and(Err(Error::from(err)));
        }
    }
    outcome
}
