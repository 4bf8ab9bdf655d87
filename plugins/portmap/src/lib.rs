//! The CNI plugin `portmap`: forwards ports of the host into a pod. It follows a plugin that gives the pod its
//! addresses, and returns prevResult unchanged. [`cnimble_rules::portmap`] describes the packets' path. The rules name
//! their owner, so DEL needs no namespace, prevResult or port mappings.

mod config;
mod gone;

use std::net::SocketAddr;

use ipnetwork::IpNetwork;

use cnimble_cni::{Attachment, CniResult, Code, Error, owner};
use cnimble_netlink::listeners::Listener;
use cnimble_netlink::nft::Nft;
use cnimble_netlink::sysctl;
use cnimble_plugin::{Call, Caps, Place, Plugin, Role};
use cnimble_rules::forward::published;
use cnimble_rules::portmap::{self, Forward, Mapping};

use config::Config;

pub static PLUGIN: &dyn Plugin = &Portmap;

struct Portmap;

impl Plugin for Portmap {
    fn name(&self) -> &'static str {
        "portmap"
    }

    fn role(&self) -> Role {
        Role::Chained
    }

    /// The plugin needs CAP_SYS_ADMIN to write `route_localnet` where /proc/sys is mounted read-only.
    fn needs(&self) -> Caps {
        if sysctl::is_mounted_read_only() { Caps::NET_ADMIN.and(Caps::SYS_ADMIN) } else { Caps::NET_ADMIN }
    }

    /// The plugin runs the iptables commands, and nft for conditions.
    fn starts_programs(&self, _call: &Call) -> bool {
        true
    }

    fn read_config(&self, call: &Call) -> Result<(), Error> {
        Config::read(&call.config).map(drop)
    }

    /// Adds the rules and returns prevResult. A pod without port mappings gets none. So does one without an address,
    /// with a warning. Fails with code 7 without a prevResult.
    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let config = Config::read(&call.config)?;
        let prev = call.config.prev_result.as_ref().ok_or_else(|| {
            Error::config("must be called as chained plugin").details(
                "there is no prevResult; hint: put a plugin that gives addresses in front of portmap",
            )
        })?;
        let forward = config.forward(prev, &call.ifname);
        if forward.mappings.is_empty() {
            return Ok(prev.clone());
        }
        if forward.addrs.is_empty() {
            log::warn!("prevResult has no address of {}: no port can lead there", call.ifname);
            return Ok(prev.clone());
        }
        refuse_loopback(&forward)?;
        for mapping in forward.without_target() {
            let address = forward.addrs.iter().map(|net| net.ip().to_string()).collect::<Vec<_>>().join(", ");
            log::warn!("{mapping} leads nowhere: the pod has only {address}, which is of another family");
        }
        call.step("map host ports", || map(call, &mut Nft::new(), &config, &forward))?;
        warn_of_listeners(&forward);
        Ok(prev.clone())
    }

    /// Removes the rules of the attachment. An invalid configuration or a missing prevResult only makes the search
    /// longer.
    fn del(&self, call: &Call) -> Result<(), Error> {
        // An invalid configuration must not prevent the removal.
        let config = Config::read(&call.config).ok();
        let prev = call.config.prev_result.as_ref();
        let forward = config.as_ref().zip(prev).map(|(config, prev)| config.forward(prev, &call.ifname));
        let (mut nft, owner) = (Nft::new(), call.owner());
        let removed = portmap::remove(&mut nft, &owner, forward.as_ref());
        removed.and(refuse(&mut nft, config.as_ref(), &|comment| owner.owns(comment)))
    }

    fn check(&self, call: &Call, prev: &CniResult) -> Result<(), Error> {
        let config = Config::read(&call.config)?;
        let forward = config.forward(prev, &call.ifname);
        if forward.mappings.is_empty() || forward.addrs.is_empty() {
            return Ok(());
        }
        call.wants(
            Place::Rules,
            &mut Nft::new(),
            |nft| {
                portmap::check(nft, &call.owner(), &forward)?;
                portmap::check_exemptions(config.backend, nft, &call.owner(), &forward)?;
                if config.accept_published {
                    published::check(nft, &call.owner(), &forward.addrs)?;
                }
                Ok(())
            },
            |nft| {
                map(call, nft, &config, &forward)?;
                portmap::note_link(nft, &forward)
            },
        )
    }

    fn gc(&self, call: &Call, valid: &[Attachment]) -> Result<(), Error> {
        let (mut nft, network) = (Nft::new(), &call.config.name);
        let config = Config::read(&call.config).ok();
        let removed = portmap::gc(&mut nft, network, valid);
        removed.and(refuse(&mut nft, config.as_ref(), &owner::stale(network, valid)))
    }

    /// Checks the backend. Also checks the nft command if there are conditions in its language, and iptables if
    /// `acceptPublished` needs it.
    fn status(&self, call: &Call) -> Result<(), Error> {
        let config = Config::read(&call.config)?;
        if config.has_nft_conditions() {
            portmap::conditions_status()?;
        }
        if config.accept_published {
            published::status(&mut Nft::new())?;
        }
        portmap::status(config.backend, &mut Nft::new())
    }
}

/// Fails with code 102 for a loopback or unspecified address of the pod, which its author may ask for. Every host has
/// such an address itself. The port would lead to a process of the host that listens on localhost, because kube-proxy
/// lets such packets in (`route_localnet`).
fn refuse_loopback(forward: &Forward) -> Result<(), Error> {
    let mut addresses = forward.addrs.iter().map(IpNetwork::ip);
    match addresses.find(|ip| ip.is_loopback() || ip.is_unspecified()) {
        None => Ok(()),
        Some(ip) => Err(Error::new(Code::CONFLICT, format!("the pod has the address {ip} of the host"))
            .details("no port can lead there; hint: IPAM must give the pod an address of its own")),
    }
}

/// Adds the rules of the port mappings, and with `acceptPublished` those that accept the packets. Both have an undo. A
/// repair calls it as well.
fn map(call: &Call, nft: &mut Nft, config: &Config, forward: &Forward) -> Result<(), Error> {
    let undo = portmap::add(config.backend, nft, &call.owner(), forward, &gone::is_gone)?;
    call.undo.push("remove port mappings", move || undo.run());
    if config.accept_published {
        let undo = published::accept(nft, &call.owner(), &forward.addrs)?;
        call.undo.push("remove rules for published ports", move || undo.run());
    }
    Ok(())
}

/// Removes the rules of `acceptPublished` whose owners `choose` picks by their comments. ADD may have had the key even
/// if the present configuration has not. The rules of iptables-legacy are looked for only with the key, or if the
/// configuration is unreadable (`None`).
fn refuse(nft: &mut Nft, config: Option<&Config>, choose: &dyn Fn(&str) -> bool) -> Result<(), Error> {
    published::remove(nft, choose)?;
    if config.is_none_or(|config| config.accept_published) {
        published::remove_legacy(choose)
    } else {
        Ok(())
    }
}

/// Warns of processes of the host that listen on a mapped port. They get no new connections, because the port leads to
/// the pod. A failure to list them is only logged.
fn warn_of_listeners(forward: &Forward) {
    match portmap::shadowed(forward) {
        Ok(shadowed) => shadowed.iter().for_each(|(Mapping { protocol, .. }, Listener { ip, port, .. })| {
            let at = SocketAddr::new(*ip, *port);
            log::warn!("a process of the host listens on {at}/{protocol}: the port leads to the pod now");
        }),
        Err(err) => log::debug!("{err}"),
    }
}
