//! The CNI plugin `vrf`, part of a chain: makes the pod's interface a port of a VRF (virtual routing and forwarding)
//! with its own routing table. Interfaces of several networks may be in one VRF.
//!
//! ADD takes these steps in order, each with its undo:
//! 1. Make the VRF in the pod if it is missing, up and marked as ours in one message (`domain`).
//! 2. Make the interface its port, and restore its IPv6 addresses and its routes (`port`).

mod config;
mod domain;
mod port;

use std::rc::Rc;

use cnimble_cni::{Attachment, CniResult, Code, Error, Version};
use cnimble_netlink::link::Link;
use cnimble_netlink::{IfPresent as _, Netlink};
use cnimble_plugin::interface::alone;
use cnimble_plugin::interface::find_own;
use cnimble_plugin::interface::pinned::in_pinned;
use cnimble_plugin::{Call, Plugin, Role};

use config::Config;
use port::Belongings;

/// Tries while concurrent DELs remove the VRF with its last port.
const ATTEMPTS: usize = 5;

pub static PLUGIN: &dyn Plugin = &Vrf;

struct Vrf;

impl Plugin for Vrf {
    fn name(&self) -> &'static str {
        "vrf"
    }

    fn role(&self) -> Role {
        Role::Chained
    }

    fn versions(&self) -> &'static [Version] {
        &[Version::V0_3_1, Version::V0_4_0, Version::V1_0_0, Version::V1_1_0]
    }

    fn read_config(&self, call: &Call) -> Result<(), Error> {
        Config::read(&call.config).map(drop)
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let config = Config::read(&call.config)?;
        let result = call.previous()?.clone();
        let netns = call.open_netns()?;
        let mut inside = Netlink::open_in(&netns)?;
        let link = free_interface(call, &mut inside)?;
        let belongings = Rc::new(Belongings::read(&mut inside, &link, port::MAIN)?);
        port::trust_addresses(call, &netns, &link)?;
        let table = call.step(&format!("join VRF {}", config.name), || {
            join(call, &mut inside, &config, &link, &belongings)
        })?;
        call.step(&format!("put addresses and routes of {} back", link.name), || {
            belongings.put_back(&mut inside, &link, table)
        })?;
        Ok(result)
    }

    /// Takes the attachment's interface out of the VRF, and removes the VRF if it has no port then. Without a valid
    /// configuration, the VRF is the one that the interface is a port of. Does nothing if the namespace is gone.
    fn del(&self, call: &Call) -> Result<(), Error> {
        let Some(netns) = call.find_netns()? else { return Ok(()) };
        let mut inside = Netlink::open_in(&netns)?;
        let port = find_own(call, &mut inside, &netns)?;
        let vrf = match config::name(&call.config) {
            Some(name) => domain::find_vrf(&mut inside, &name)?,
            None => domain::of_port(&mut inside, port.as_ref())?,
        };
        let Some(vrf) = vrf else { return Ok(()) };
        let port = port.filter(|link| link.master == Some(vrf.link.index));
        if let Some(port) = &port {
            port::set_master(&mut inside, port, 0).if_present()?;
        }
        // An empty VRF of another program stays, unless this DEL has taken its last port.
        if port.is_some() || vrf.is_ours() { domain::remove_if_empty(&mut inside, &vrf) } else { Ok(()) }
    }

    fn check(&self, call: &Call, _prev: &CniResult) -> Result<(), Error> {
        let config = Config::read(&call.config)?;
        let netns = call.open_netns()?;
        let mut inside = Netlink::open_in(&netns)?;
        let place = format!("in {}", call.netns);
        let vrf = domain::find_named_vrf(&mut inside, &config.name).map_err(|err| match err.code {
            // Another link has the name. By any other code the link could not be looked up.
            Code::CONFLICT => Error::check(err.msg),
            _ => err,
        })?;
        let vrf = vrf.ok_or_else(|| Error::check(format!("VRF {} is missing {place}", config.name)))?;
        if !vrf.link.up {
            return Err(Error::check(format!("VRF {} is down", config.name)));
        }
        if let Some(table) = config.table.filter(|table| *table != vrf.table) {
            let now = vrf.table;
            return Err(Error::check(format!("VRF {} has table {now}, expected {table}", config.name)));
        }
        let link = inside.find_link(&call.ifname)?;
        if link.is_none_or(|link| link.master != Some(vrf.link.index)) {
            return Err(Error::check(format!("interface {} is no port of VRF {}", call.ifname, config.name)));
        }
        Ok(())
    }

    /// Removes our VRF if it has no ports, in all pinned namespaces. Interfaces are removed by the GC of their own
    /// plugins, which runs before this one.
    fn gc(&self, call: &Call, _valid: &[Attachment]) -> Result<(), Error> {
        let config = Config::read(&call.config)?;
        in_pinned(|inside| match domain::find_vrf(inside, &config.name)? {
            Some(vrf) if vrf.is_ours() => domain::remove_if_empty(inside, &vrf),
            _ => Ok(()),
        })
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        Config::read(&call.config)?;
        alone::status(domain::ANY)
    }
}

/// Returns the pod's interface. Fails with code 100 if it is missing, and with code 102 if it is already a port.
fn free_interface(call: &Call, inside: &mut Netlink) -> Result<Link, Error> {
    let link = inside.find_link(&call.ifname)?.ok_or_else(|| {
        let place = &call.netns;
        Error::new(Code::KERNEL, format!("interface {} is missing in {place}", call.ifname))
    })?;
    match link.master {
        None => Ok(link),
        Some(index) => {
            let master = inside.link_at(index).map_or_else(|_| format!("number {index}"), |link| link.name);
            let what = format!("interface {} has already a master set: {master}", link.name);
            Err(Error::new(Code::CONFLICT, what))
        }
    }
}

/// Makes the interface a port of the VRF, which it finds or makes, and returns the table. Tries again if a concurrent
/// DEL removes the VRF in between. The undo takes the interface out and restores its addresses and routes.
fn join(
    call: &Call,
    inside: &mut Netlink,
    config: &Config,
    link: &Link,
    belongings: &Rc<Belongings>,
) -> Result<u32, Error> {
    let mut attempt = 1;
    loop {
        let vrf = domain::ensure(call, inside, config)?;
        // The undo is pushed first, because a lost answer does not tell whether the change was made.
        let (home, index, kept) = (call.open_netns()?, link.index, Rc::clone(belongings));
        call.undo.push(format!("take {} out of VRF {}", link.name, config.name), move || {
            port::take_out(&mut Netlink::open_in(&home)?, index, &kept)
        });
        match port::set_master(inside, link, vrf.link.index) {
            Ok(()) => return Ok(vrf.table),
            Err(err) if attempt < ATTEMPTS && domain::has_gone(&err) => attempt += 1,
            Err(err) => return Err(err.into()),
        }
    }
}
