//! The differences between the host and the wanted state of an attachment, each as an error with code 103.

use cnimble_cni::{CniResult, Error, Owner};
use cnimble_netlink::link::Link;
use cnimble_netlink::port::Vlan;
use cnimble_netlink::port_state::PortState;
use cnimble_netlink::{Netlink, sysctl};
use cnimble_plugin::interface::check;

use crate::config::{Config, vlan_gateway_name};
use crate::context::Context;
use crate::{gateway, port};

/// Checks that the link of this name is a bridge and is up. Checks promiscuous mode and the filtering of VLANs only if
/// the configuration asks for them. The MTU and the uplink are not compared here.
///
/// `accept_ra` is compared only in an examination (doctor, guard). The Go plugins' CHECK does not ask for it, and must
/// not fail after a change of plugins.
pub(crate) fn check_bridge(host: &mut Netlink, config: &Config, is_examined: bool) -> Result<(), Error> {
    let bridge = check::find_link(host, &config.bridge, "on the host")?;
    if bridge.kind != "bridge" {
        return Err(Error::check(format!("interface {} is not a bridge", bridge.name)));
    }
    if !bridge.up {
        return Err(Error::check(format!("bridge {} is down", bridge.name)));
    }
    if config.promisc && !bridge.promisc {
        return Err(Error::check(format!("bridge {} is not in promiscuous mode", bridge.name)));
    }
    if config.uses_vlans() && !bridge.vlan_filtering {
        return Err(Error::check(format!("bridge {} doesn't filter vlans", bridge.name)));
    }
    if is_examined && let Some(accept_ra) = bridge.accept_ra.filter(|accept_ra| *accept_ra != 0) {
        return Err(Error::check(format!("bridge {} has accept_ra {accept_ra}, expected 0", bridge.name)));
    }
    Ok(())
}

/// Fails with code 103 if `port` has another master than `bridge`, or none.
pub(crate) fn is_port(port: &Link, bridge: &Link) -> Result<(), Error> {
    if port.master == Some(bridge.index) {
        Ok(())
    } else {
        Err(Error::check(format!("{} is not a port of {}", port.name, bridge.name)))
    }
}

/// Checks hairpin mode and isolation of the port. Isolation that the configuration does not ask for is no difference.
pub(crate) fn check_flags(port: &Link, config: &Config) -> Result<(), Error> {
    let flags = port.port.unwrap_or_default();
    if flags.hairpin != config.hairpin {
        return Err(Error::check(format!(
            "port {} has hairpin {}, expected {}",
            port.name, flags.hairpin, config.hairpin
        )));
    }
    // The plugin firewall isolates ports as well, so an isolated port is accepted in any case.
    if config.isolated && !flags.isolated {
        return Err(Error::check(format!("port {} has isolated false, expected true", port.name)));
    }
    Ok(())
}

/// Checks that the bridge forwards the pod's frames, learns from them, and sends the pod frames to unknown receivers.
/// The kernel disables a port without a carrier, as while the pod's end is down. Such a state is no difference.
pub(crate) fn check_frames(port: &Link) -> Result<(), Error> {
    let Some(frames) = port.frames else { return Ok(()) };
    let difference = if frames.state == PortState::Disabled && port.up && port.carrier {
        "state disabled, expected forwarding"
    } else if !frames.learning {
        "learning off, expected on"
    } else if !frames.flood {
        "flood off, expected on"
    } else {
        return Ok(());
    };
    Err(Error::check(format!("port {} has {difference}", port.name)))
}

/// Checks that the port still receives nothing itself (`group_fwd_mask`), and that it still ignores router
/// advertisements.
///
/// The Go plugins and earlier versions of this one set no mask. Their ports are accepted: those of the Go plugins have
/// no alias, and those of earlier versions have the host's default of `accept_ra`. So a missing mask is a difference
/// only if the port has our alias and an `accept_ra` of 0 that is not that default.
pub(crate) fn check_closed(port: &Link, owner: &Owner) -> Result<(), Error> {
    let closed = port.port.unwrap_or_default().closed;
    let Some(accept_ra) = port.accept_ra else { return Ok(()) };
    if closed && accept_ra != 0 {
        let what = format!("port {} has accept_ra {accept_ra}, expected 0", port.name);
        return Err(Error::check(what));
    }
    let was_closed = owner.owns(&port.alias) && accept_ra == 0;
    if !closed && was_closed && sysctl::read("net/ipv6/conf/default/accept_ra")? != "0" {
        let what = format!("port {} is open to reserved addresses", port.name);
        return Err(Error::check(what).details("its group_fwd_mask should be 0xfffd"));
    }
    Ok(())
}

/// Checks that the port is in all `wanted` VLANs, each up to the last ID of its range. Further VLANs are accepted.
pub(crate) fn check_vlans(host: &mut Netlink, wanted: &[(Vlan, u16)], port: &Link) -> Result<(), Error> {
    if wanted.is_empty() {
        return Ok(());
    }
    let present = host.vlans(port.index)?;
    for (vlan, last) in wanted {
        for id in vlan.id..=*last {
            if !present.contains(&Vlan { id, ..*vlan }) {
                return Err(Error::check(format!("port {} is not in vlan {id}", port.name)));
            }
        }
    }
    Ok(())
}

/// Checks that the VLAN's gateway interface is up and leads into the VLAN, and returns it.
fn check_vlan_gateway(host: &mut Netlink, bridge: &Link, vlan: u16) -> Result<Link, Error> {
    let gateway = check::find_link(host, &vlan_gateway_name(&bridge.name, vlan), "on the host")?;
    if !gateway.up {
        return Err(Error::check(format!("{} is down", gateway.name)));
    }
    // The administrator may have made another kind of interface with that name, which has no port on the bridge.
    if gateway.kind == "veth" {
        let port = gateway
            .peer
            .and_then(|index| host.link_at(index).ok())
            .filter(|port| port.peer == Some(gateway.index) && port.master == Some(bridge.index))
            .ok_or_else(|| Error::check(format!("{} doesn't lead to {}", gateway.name, bridge.name)))?;
        check_vlans(host, &[port::untagged(vlan)], &port)?;
    }
    Ok(gateway)
}

/// Checks that the gateways' addresses are on the bridge, or on the VLAN's gateway interface, with any prefix length.
/// Checks that this link has the MAC that `prev` gives it. The host's routes to the pods are compared only in an
/// examination, because the Go plugins' CHECK does not ask for them.
pub(crate) fn check_gateways(cx: &mut Context<'_>, bridge: &Link, prev: &CniResult) -> Result<(), Error> {
    let (call, host) = (cx.call, &mut cx.host);
    let link = match cx.config.vlan {
        Some(vlan) => check_vlan_gateway(host, bridge, vlan)?,
        // A repair may have changed the bridge, so an examination reads it again.
        None if call.is_examined() => host.link_at(bridge.index)?,
        None => bridge.clone(),
    };
    // The pods have this MAC in their neighbour tables. It is not compared for a bridge that is no gateway, which may
    // follow its ports.
    if let Some(known) = prev.interfaces.iter().find(|i| i.sandbox.is_empty() && i.name == link.name) {
        check::same_mac(&link, known)?;
    }
    let present = host.addrs(link.index)?;
    for gateway in prev.ips.iter().filter_map(|ip| ip.gateway) {
        if !present.iter().any(|addr| addr.net.ip() == gateway) {
            return Err(Error::check(format!("{} lacks the gateway address {gateway}", link.name)));
        }
    }
    // The kernel removes the routes of a link that is down, and another item reports that state.
    if !call.is_examined() || !link.up {
        return Ok(());
    }
    check::routes(host, &link, &gateway::routes_to_pods(&present, &link, prev), "on the host")
}
