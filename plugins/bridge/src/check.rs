//! CHECK: host, pod and rules are as ADD left them.

use cnimble::net::link::Link;
use cnimble::net::nft::Nft;
use cnimble::net::port::Vlan;
use cnimble::net::{Netlink, route};
use cnimble::plugin::Call;
use cnimble::rules::{Owner, masquerade, spoof};
use cnimble::spec::{CniResult, Error, Interface};

use crate::config::{Config, vlan_gateway_name};
use crate::{pod, vlan};

/// Checks everything but the lease, which IPAM checks.
pub(crate) fn attachment(call: &Call, config: &Config, owner: &Owner) -> Result<(), Error> {
    let prev =
        call.config.prev_result.as_ref().ok_or_else(|| Error::config("Required prevResult missing"))?;
    let netns = call.open_netns()?;
    let mut host = Netlink::open()?;
    let mut inside = Netlink::open_in(&netns)?;

    let bridge = check_bridge(&mut host, config, prev)?;
    let pod = check_pod(call, &mut inside, config, prev)?;
    let port = check_port(&mut host, config, prev, &bridge, &pod)?;
    check_vlans(&mut host, config, &port)?;
    if config.container_up {
        check_addresses(&mut inside, &pod, prev)?;
        check_routes(&mut inside, &pod, prev)?;
    }
    check_gateways(&mut host, config, &bridge, prev)?;

    let mut nft = Nft::new();
    if config.ip_masq && config.layer3() {
        let addrs: Vec<_> = prev.ips.iter().map(|ip| ip.address).collect();
        masquerade::check(&mut nft, owner, &addrs)?;
    }
    if config.mac_spoof_check
        && let Some(mac) = pod.mac
    {
        spoof::check(&mut nft, owner, &port.name, mac)?;
    }
    Ok(())
}

fn find(netlink: &mut Netlink, name: &str, place: &str) -> Result<Link, Error> {
    netlink.find_link(name)?.ok_or_else(|| Error::check(format!("interface {name} is missing {place}")))
}

fn same_mac(link: &Link, told: &Interface) -> Result<(), Error> {
    let now = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
    if told.mac.is_empty() || now.eq_ignore_ascii_case(&told.mac) {
        return Ok(());
    }
    Err(Error::check(format!("interface {} has MAC {now}, prevResult has {}", link.name, told.mac)))
}

fn check_bridge(host: &mut Netlink, config: &Config, prev: &CniResult) -> Result<Link, Error> {
    let bridge = find(host, &config.bridge, "on the host")?;
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
    if let Some(told) = prev.interfaces.iter().find(|i| i.sandbox.is_empty() && i.name == bridge.name) {
        same_mac(&bridge, told)?;
    }
    Ok(bridge)
}

fn check_pod(call: &Call, inside: &mut Netlink, config: &Config, prev: &CniResult) -> Result<Link, Error> {
    let told = prev
        .interfaces
        .iter()
        .find(|i| i.name == call.ifname && !i.sandbox.is_empty())
        .ok_or_else(|| Error::config(format!("prevResult: no interface {} in a sandbox", call.ifname)))?;
    if told.sandbox != call.netns {
        return Err(Error::config(format!(
            "prevResult: sandbox {} doesn't match CNI_NETNS {}",
            told.sandbox, call.netns
        )));
    }
    let pod = find(inside, &call.ifname, &format!("in {}", call.netns))?;
    if pod.kind != "veth" {
        return Err(Error::check(format!("interface {} in {} is not a veth", pod.name, call.netns)));
    }
    same_mac(&pod, told)?;
    if pod.up != config.container_up {
        let state = if pod.up { "up" } else { "down" };
        return Err(Error::check(format!("interface {} in {} is {state}", pod.name, call.netns)));
    }
    if let Some(mtu) = config.mtu.or(told.mtu)
        && pod.mtu != mtu
    {
        return Err(Error::check(format!("interface {} has MTU {}, expected {mtu}", pod.name, pod.mtu)));
    }
    Ok(pod)
}

fn check_port(
    host: &mut Netlink,
    config: &Config,
    prev: &CniResult,
    bridge: &Link,
    pod: &Link,
) -> Result<Link, Error> {
    let index = pod.peer.ok_or_else(|| Error::check(format!("interface {} has no peer", pod.name)))?;
    let port = host
        .link_at(index)
        .ok()
        .filter(|port| port.kind == "veth" && port.peer == Some(pod.index))
        .ok_or_else(|| Error::check(format!("the host's end of {} is missing", pod.name)))?;
    if port.master != Some(bridge.index) {
        return Err(Error::check(format!("{} is not a port of {}", port.name, bridge.name)));
    }
    if !port.up {
        return Err(Error::check(format!("{} on the host is down", port.name)));
    }
    if let Some(told) = prev.interfaces.iter().find(|i| i.sandbox.is_empty() && i.name == port.name) {
        same_mac(&port, told)?;
    }
    let flags = port.port.unwrap_or_default();
    for (name, now, wanted) in
        [("hairpin", flags.hairpin, config.hairpin), ("isolated", flags.isolated, config.isolated)]
    {
        if now != wanted {
            return Err(Error::check(format!("port {} has {name} {now}, expected {wanted}", port.name)));
        }
    }
    Ok(port)
}

fn check_vlans(host: &mut Netlink, config: &Config, port: &Link) -> Result<(), Error> {
    if !config.uses_vlans() {
        return Ok(());
    }
    let present = host.vlans(port.index)?;
    for (vlan, last) in vlan::wanted(config) {
        for id in vlan.id..=last {
            if !present.contains(&Vlan { id, ..vlan }) {
                return Err(Error::check(format!("port {} is not in vlan {id}", port.name)));
            }
        }
    }
    Ok(())
}

fn check_addresses(inside: &mut Netlink, pod: &Link, prev: &CniResult) -> Result<(), Error> {
    let present = inside.addrs(pod.index)?;
    for ip in &prev.ips {
        if !present.iter().any(|addr| addr.net == ip.address) {
            return Err(Error::check(format!("interface {} lacks address {}", pod.name, ip.address)));
        }
    }
    Ok(())
}

fn check_routes(inside: &mut Netlink, pod: &Link, prev: &CniResult) -> Result<(), Error> {
    let wanted = pod::routes(pod.index, prev);
    let mut tables: Vec<Option<u32>> = wanted.iter().map(|route| route.table).collect();
    tables.sort_unstable();
    tables.dedup();
    let mut present = Vec::new();
    for table in tables {
        present.extend(inside.routes(pod.index, table)?);
    }
    let same = |now: &route::NewRoute, then: &route::NewRoute| {
        now.dst == then.dst
            && now.via == then.via
            && (then.priority.is_none() || now.priority.unwrap_or(0) == then.priority.unwrap_or(0))
            && (then.mtu.is_none() || now.mtu == then.mtu)
            && (then.advmss.is_none() || now.advmss == then.advmss)
    };
    for then in &wanted {
        if !present.iter().any(|now| same(now, then)) {
            let via = then.via.map(|via| format!(" via {via}")).unwrap_or_default();
            return Err(Error::check(format!("route {}{via} is missing in the pod", then.dst)));
        }
    }
    Ok(())
}

/// The interface that holds the gateway addresses of a vlan is up and leads into it.
fn check_vlan_gateway(host: &mut Netlink, config: &Config, bridge: &Link, vlan: u16) -> Result<Link, Error> {
    let gateway = find(host, &vlan_gateway_name(&bridge.name, vlan), "on the host")?;
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
        check_vlans(host, config, &port)?;
    }
    Ok(gateway)
}

/// The gateway addresses are on the bridge, or on the vlan's interface.
fn check_gateways(host: &mut Netlink, config: &Config, bridge: &Link, prev: &CniResult) -> Result<(), Error> {
    if !config.is_gateway {
        return Ok(());
    }
    let link = match config.vlan {
        Some(vlan) => check_vlan_gateway(host, config, bridge, vlan)?,
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
