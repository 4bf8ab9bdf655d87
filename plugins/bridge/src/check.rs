//! CHECK: host, pod and rules are as ADD left them.

use cnimble_cni::{CniResult, Error, Owner};
use cnimble_netlink::link::Link;
use cnimble_netlink::nft::Nft;
use cnimble_netlink::port::Vlan;
use cnimble_netlink::{Netlink, sysctl};
use cnimble_plugin::Call;
use cnimble_plugin::interface::{check, pod};
use cnimble_rules::{apart, masquerade, spoof};

use crate::config::{Config, vlan_gateway_name};
use crate::vlan;

/// Checks everything but the lease, which IPAM checks.
pub(crate) fn attachment(call: &Call, config: &Config, prev: &CniResult) -> Result<(), Error> {
    let netns = call.open_netns()?;
    let mut host = Netlink::open()?;
    let mut inside = Netlink::open_in(&netns)?;

    let bridge = check_bridge(&mut host, config, prev)?;
    // The result's MTU, not the configuration's: tuning may have come behind us in the chain.
    let pod = check::pod(call, &mut inside, prev, "veth", config.container_up)?;
    let port = check_port(&mut host, config, prev, &bridge, &pod)?;
    check_closed(&port, &call.owner())?;
    check_vlans(&mut host, &vlan::wanted(config), &port)?;
    if config.container_up {
        check::addresses(&mut inside, &pod, prev)?;
        check::routes(&mut inside, &pod, &pod::routes(pod.index, prev), "in the pod")?;
    }
    check_gateways(&mut host, config, &bridge, prev)?;

    let mut nft = Nft::new();
    if config.ip_masq && config.layer3() {
        let addrs = config.ip_masq_families.of(prev.ips.iter().map(|ip| ip.address));
        masquerade::check(&mut nft, &call.owner(), &addrs)?;
    }
    if config.mac_spoof_check
        && let Some(mac) = pod.mac
    {
        spoof::check(&mut nft, &call.owner(), &port.name, mac)?;
    }
    // The Go plugins' ports, which have no alias, are not kept apart.
    if config.isolated && config.layer3() && call.owner().owns(&port.alias) {
        apart::check(&mut nft, &call.owner(), &port.name, &crate::addresses(prev))?;
    }
    Ok(())
}

fn check_bridge(host: &mut Netlink, config: &Config, prev: &CniResult) -> Result<Link, Error> {
    let bridge = check::find(host, &config.bridge, "on the host")?;
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
    // Pods know the MAC of their gateway. The MAC of any other bridge may follow its ports, as with
    // the Go plugins.
    if config.is_gateway
        && let Some(told) = prev.interfaces.iter().find(|i| i.sandbox.is_empty() && i.name == bridge.name)
    {
        check::same_mac(&bridge, told)?;
    }
    Ok(bridge)
}

fn check_port(
    host: &mut Netlink,
    config: &Config,
    prev: &CniResult,
    bridge: &Link,
    pod: &Link,
) -> Result<Link, Error> {
    let port = check::host_end(host, pod)?;
    if port.master != Some(bridge.index) {
        return Err(Error::check(format!("{} is not a port of {}", port.name, bridge.name)));
    }
    check::host_state(&port, prev)?;
    let flags = port.port.unwrap_or_default();
    if flags.hairpin != config.hairpin {
        return Err(Error::check(format!(
            "port {} has hairpin {}, expected {}",
            port.name, flags.hairpin, config.hairpin
        )));
    }
    // The plugin firewall isolates ports, too.
    if config.isolated && !flags.isolated {
        return Err(Error::check(format!("port {} has isolated false, expected true", port.name)));
    }
    Ok(port)
}

/// The port is as closed as ADD left it. One that was never closed has no mask: the Go plugins',
/// which has no alias, and an earlier version's, which has the host's default for `accept_ra`.
fn check_closed(port: &Link, owner: &Owner) -> Result<(), Error> {
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

fn check_vlans(host: &mut Netlink, wanted: &[(Vlan, u16)], port: &Link) -> Result<(), Error> {
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

/// The interface that holds the gateway addresses of a vlan is up and leads into it.
fn check_vlan_gateway(host: &mut Netlink, bridge: &Link, vlan: u16) -> Result<Link, Error> {
    let gateway = check::find(host, &vlan_gateway_name(&bridge.name, vlan), "on the host")?;
    if !gateway.up {
        return Err(Error::check(format!("{} is down", gateway.name)));
    }
    // The administrator may have made another kind of interface of that name.
    if gateway.kind == "veth" {
        let port = gateway
            .peer
            .and_then(|index| host.link_at(index).ok())
            .filter(|port| port.peer == Some(gateway.index) && port.master == Some(bridge.index))
            .ok_or_else(|| Error::check(format!("{} doesn't lead to {}", gateway.name, bridge.name)))?;
        check_vlans(host, &[vlan::untagged(vlan)], &port)?;
    }
    Ok(gateway)
}

/// The gateway addresses are on the bridge, or on the vlan's interface.
fn check_gateways(host: &mut Netlink, config: &Config, bridge: &Link, prev: &CniResult) -> Result<(), Error> {
    if !config.is_gateway {
        return Ok(());
    }
    let link = match config.vlan {
        Some(vlan) => check_vlan_gateway(host, bridge, vlan)?,
        None => bridge.clone(),
    };
    let present = host.addrs(link.index)?;
    for gateway in prev.ips.iter().filter_map(|ip| ip.gateway) {
        if !present.iter().any(|addr| addr.net.ip() == gateway) {
            return Err(Error::check(format!("{} lacks the gateway address {gateway}", link.name)));
        }
    }
    Ok(())
}
