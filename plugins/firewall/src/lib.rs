//! The CNI plugin `firewall`, part of a chain: controls which packets the host forwards to and from pods.
//!
//! ADD makes rules for the pod's addresses and its bridge's policy ([`cnimble_rules::forward`]). `isolated` also
//! isolates the pod's port of the bridge (`port`), because without `br_netfilter` packets between ports pass no rules.
//!
//! With nf_tables, DEL needs neither the namespace nor a prevResult. Rules of iptables and sources of firewalld have no
//! owner, so DEL finds them by the addresses in prevResult. A DEL may be called again after the IPAM plugin has
//! released them, so it leaves addresses that another pod has by now.
//!
//! The DEL of the last pod on a bridge removes the bridge's policy. Without a prevResult, DEL finds the bridge by the
//! pod's end on the host. It cannot know whether that is the only one. So each such DEL also removes the policies of
//! all unused bridges from cnimble's own table.

mod config;
mod port;

use std::cell::LazyCell;

use cnimble_cni::{Attachment, CniResult, Error, Version};
use cnimble_netlink::nft::Nft;
use cnimble_plugin::{Call, Caps, Place, Plugin, Role};
use cnimble_rules::forward::{self, Forward, Leaving, Policy};
use cnimble_rules::records;

use config::Config;

pub static PLUGIN: &dyn Plugin = &Firewall;

struct Firewall;

impl Plugin for Firewall {
    fn name(&self) -> &'static str {
        "firewall"
    }

    fn role(&self) -> Role {
        Role::Chained
    }

    fn needs(&self) -> Caps {
        Caps::NET_ADMIN
    }

    /// The plugin runs the iptables commands.
    fn starts_programs(&self, _call: &Call) -> bool {
        true
    }

    /// The plugin takes no version before 0.4.0, which introduced CHECK. Neither does the Go plugin.
    fn versions(&self) -> &'static [Version] {
        &[Version::V0_4_0, Version::V1_0_0, Version::V1_1_0]
    }

    fn read_config(&self, call: &Call) -> Result<(), Error> {
        Config::read(&call.config).map(drop)
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let config = Config::read(&call.config)?;
        let prev = previous(call)?;
        let wanted = config.forward(prev)?;
        if config.policy == Policy::Isolated {
            call.step(&format!("isolate the bridge port of {}", call.ifname), || port::isolate(call, prev))?;
        }
        call.step("set up rules for forwarding", || accept(call, &mut Nft::new(), &config, &wanted))?;
        Ok(prev.clone())
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        // The configuration may have changed since ADD, so it is only a hint. An invalid one counts as the default.
        let config = Config::read(&call.config).unwrap_or_default();
        let prev = call.config.prev_result.as_ref();
        let (known, failed) = match prev.map_or_else(|| port::of_owner(&call.owner()), |_| Ok(None)) {
            Ok(known) => (known, Ok(())),
            Err(err) => (None, Err(err)),
        };
        let interfaces = match (prev, &known) {
            (Some(prev), _) => config::interfaces(prev),
            (None, Some((_, interface))) => vec![interface.clone()],
            (None, None) => Vec::new(),
        };
        let leaving = Leaving {
            configured: config.backend,
            policy: config.policy,
            zone: &config.zone,
            addrs: &prev.map(config::addrs).unwrap_or_default(),
            interfaces: &interfaces,
            knows_interfaces: prev.is_some(),
        };
        // The pod's end on the host still exists: the main plugin removes it after this DEL. So it must not count as a
        // user of the bridge.
        let mut own: Vec<&str> = prev.map(port::outside).unwrap_or_default();
        own.extend(known.as_ref().map(|(end, _)| end.as_str()));
        let (owner, mut nft) = (call.owner(), Nft::new());
        // While the host has the pod's end, the addresses are still the pod's. That saves a look at the records of all
        // pods.
        let others = LazyCell::new(|| {
            let is_there = prev.is_none_or(|prev| port::is_there(prev).unwrap_or(true));
            if is_there { Vec::new() } else { records::addresses_of_others(&call.container_id) }
        });
        let removed = forward::remove(&mut nft, &owner, &leaving, &|ip| others.contains(&ip), |interface| {
            port::is_unused(interface, &own, Some(&owner))
        });
        removed.and(failed)
    }

    fn check(&self, call: &Call, prev: &CniResult) -> Result<(), Error> {
        let config = Config::read(&call.config)?;
        let wanted = config.forward(prev)?;
        call.wants(
            Place::Rules,
            &mut Nft::new(),
            |nft| forward::check(config.backend, nft, &call.owner(), &wanted),
            |nft| accept(call, nft, &config, &wanted),
        )?;
        if config.policy != Policy::Isolated {
            return Ok(());
        }
        call.wants(Place::Host, &mut (), |()| port::check(prev), |()| port::isolate(call, prev))
    }

    fn gc(&self, call: &Call, valid: &[Attachment]) -> Result<(), Error> {
        forward::gc(&mut Nft::new(), &call.config.name, valid, |interface| {
            port::is_unused(interface, &[], None)
        })
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        let config = Config::read(&call.config)?;
        forward::status(config.backend, &config.admin, &mut Nft::new())
    }
}

/// Chooses a backend and adds the rules of `wanted`, with their undo. A repair calls it as well.
fn accept(call: &Call, nft: &mut Nft, config: &Config, wanted: &Forward) -> Result<(), Error> {
    let chosen = forward::choose(config.backend, &config.admin, nft)?;
    let undo = forward::add(chosen, nft, &call.owner(), wanted)?;
    call.undo.push("remove rules for forwarding", move || undo.run());
    Ok(())
}

/// Returns prevResult. Fails with code 7 without one, because firewall works on the interface of another plugin.
fn previous(call: &Call) -> Result<&CniResult, Error> {
    call.config.prev_result.as_ref().ok_or_else(|| {
        Error::config("missing prevResult from earlier plugin")
            .details("firewall works on another plugin's interface; hint: put one in front of it")
    })
}
