//! The CNI plugin `tap`: a tap device in the pod, for a virtual machine that runs there (`ip tuntap add eth0 mode
//! tap`).
//!
//! ADD takes these steps in order, each with its undo:
//! 1. Make the device in the pod (`make`).
//! 2. Set its hardware address, its MTU and its bridge.
//! 3. Get addresses from IPAM, unless it is a layer 2 network.
//! 4. Add the addresses, set the device up and add the routes.

mod config;
mod make;

use cnimble_cni::{Attachment, CniResult, Code, Error, json};
use cnimble_netlink::kind::{Kind, TapSettings};
use cnimble_netlink::link::{self, Change, Link, Mac};
use cnimble_netlink::{Netlink, tap};
use cnimble_plugin::interface::{alone, check, completed, remove, unusable, usable_netlink};
use cnimble_plugin::{Call, Command, Plugin, Role, delegate};

use config::Config;

/// A tap with any settings, for the verbs that remove one.
const ANY: Kind = Kind::Tap(TapSettings { owner: None, group: None, multi_queue: false });

pub static PLUGIN: &dyn Plugin = &TapDevice;

struct TapDevice;

impl Plugin for TapDevice {
    fn name(&self) -> &'static str {
        "tap"
    }

    fn role(&self) -> Role {
        Role::Main
    }

    /// ADD runs `ip` for an SELinux context, which applies to the next program that is executed.
    fn starts_programs(&self, call: &Call) -> bool {
        call.command == Command::Add && json::get(call.config.document(), "selinuxContext").is_some()
    }

    fn read_config(&self, call: &Call) -> Result<(), Error> {
        Config::read(&call.config)?.requested_mac(call).map(drop)
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let config = Config::read(&call.config)?;
        let mac = config.requested_mac(call)?;
        let netns = call.open_netns()?;
        let what = format!("make tap {} in the pod", call.ifname);
        let (made, mut inside) = call.step(&what, || make::create(call, &netns, &config))?;
        let link = call.step(&what, || set(&mut inside, &made, &config, mac))?;
        let result = delegate::add_ipam(call)?;
        call.step(&format!("configure {} in the pod", call.ifname), || {
            alone::configure(call, &netns, &mut inside, &link, &result, false)
        })?;
        Ok(completed(result, vec![alone::described(call, &link)], config.dns))
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        let interface = alone::delete(call, ANY);
        let lease = delegate::release(call, &interface, Command::Del);
        remove::all([interface, lease])
    }

    fn check(&self, call: &Call, prev: &CniResult) -> Result<(), Error> {
        let config = Config::read(&call.config)?;
        let own = check_device(call, &config, prev);
        delegate::check_ipam(call, own)
    }

    fn gc(&self, call: &Call, valid: &[Attachment]) -> Result<(), Error> {
        let interfaces = alone::stale(call, ANY, valid);
        let leases = delegate::release(call, &interfaces, Command::Gc);
        remove::all([interfaces, leases])
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        Config::read(&call.config)?;
        usable_netlink()?;
        tap::usable().map_err(|err| unusable("/dev/net/tun", &err))?;
        delegate::call_ipam(call, Command::Status)
    }
}

/// Fails with code 103 if the device, its MTU or its bridge is not as configured.
fn check_device(call: &Call, config: &Config, prev: &CniResult) -> Result<(), Error> {
    let (link, mut inside) = alone::check(call, config.kind(), prev)?;
    check::mtu(&link, config.mtu)?;
    let Some(name) = &config.bridge else { return Ok(()) };
    let bridge = inside.find_link(name)?;
    if bridge.is_some_and(|bridge| link.master == Some(bridge.index)) {
        Ok(())
    } else {
        Err(Error::check(format!("interface {} is no port of bridge {name} in the pod", link.name)))
    }
}

/// Sets the MAC address, the MTU and the bridge, which ioctl(2) cannot set when it makes the device. Returns the link
/// as it is afterwards. Fails with code 100 if the bridge is missing in the pod, and with code 102 if it is no bridge.
fn set(inside: &mut Netlink, tap: &Link, config: &Config, mac: Option<Mac>) -> Result<Link, Error> {
    let master = match &config.bridge {
        None => None,
        Some(name) => {
            let bridge = inside.find_link(name)?.ok_or_else(|| {
                Error::new(Code::KERNEL, format!("bridge \"{name}\" is missing in the pod"))
            })?;
            if bridge.kind != "bridge" {
                let what = format!("\"{name}\" in the pod already exists but is not a bridge");
                return Err(Error::new(Code::CONFLICT, what));
            }
            Some(bridge.index)
        }
    };
    if mac.is_none() && config.mtu.is_none() && master.is_none() {
        return Ok(tap.clone());
    }
    let change = Change { mac, mtu: config.mtu, master, ..Change::default() };
    inside.execute(link::set(tap.index, &tap.name, &change))?;
    Ok(Link { mac: mac.or(tap.mac), mtu: config.mtu.unwrap_or(tap.mtu), ..tap.clone() })
}
