//! The wanted state of an attachment: CHECK verifies it, and a repair puts it back.

use cnimble_cni::{CniResult, Error, Owner};
use cnimble_netlink::link::{self, Change, Link, Mac};
use cnimble_netlink::nft::Nft;
use cnimble_netlink::port::{self, Port, Vlan};
use cnimble_netlink::{Netlink, sysctl};
use cnimble_plugin::interface::{check, host, pod};
use cnimble_plugin::{Call, Place};
use cnimble_rules::{isolation, masquerade, spoof};

use crate::config::{Config, vlan_gateway_name};
use crate::{bridge, gateway, ours, place, unused, vlan, vlan_gateway};

/// Checks everything but the lease, which IPAM checks.
pub(crate) fn attachment(call: &Call, config: &Config, prev: &CniResult) -> Result<(), Error> {
    let netns = call.open_netns()?;
    let mut host = Netlink::open()?;
    let mut inside = Netlink::open_in(&netns)?;
    // The result's MTU, not the configuration's: tuning may have come behind us in the chain.
    call.expects(Place::Pod, check::pod(call, &mut inside, prev, "veth", false).map(drop))?;
    let pod = check::find(&mut inside, &call.ifname, &format!("in {}", call.netns))?;
    let attached = Attached { call, config, prev, owner: call.owner(), pod };
    let bridge = attached.bridge(&mut host)?;
    let port = attached.port(&mut host, &bridge)?;
    attached.gateways(&mut host, &bridge)?;
    attached.rules(&mut Nft::new(), &port)?;
    if config.container_up {
        let routes = pod::routes(attached.pod.index, prev);
        check::inside_pod(call, &mut inside, &attached.pod, prev, &routes)?;
    }
    Ok(())
}

/// An attachment with its interface in the pod.
struct Attached<'a> {
    call: &'a Call,
    config: &'a Config,
    prev: &'a CniResult,
    owner: Owner,
    pod: Link,
}

impl Attached<'_> {
    /// The MAC of an interface as the result tells it.
    fn mac_of(&self, name: &str, in_pod: bool) -> Option<Mac> {
        let mut told = self.prev.interfaces.iter();
        Mac::parse(&told.find(|of| of.name == name && of.sandbox.is_empty() != in_pod)?.mac)
    }

    /// The bridge. A deleted bridge comes back with the MAC that the pods know.
    fn bridge(&self, host: &mut Netlink) -> Result<Link, Error> {
        let (call, config) = (self.call, self.config);
        let put_back = |host: &mut Netlink| {
            let _alone = config.remove_unused.then(unused::lock).transpose()?;
            let bridge = bridge::ensure(call, host, config, self.mac_of(&config.bridge, false))?;
            if is_port(&check::host_end(host, &self.pod)?, &bridge).is_ok() {
                return Ok(());
            }
            self.join(host, &bridge)
        };
        call.wants(Place::Host, host, |host| check_bridge(host, config), put_back)?;
        check::find(host, &config.bridge, "on the host")
    }

    fn port(&self, host: &mut Netlink, bridge: &Link) -> Result<Link, Error> {
        let (call, config, wanted) = (self.call, self.config, vlan::wanted(self.config));
        let port = |host: &mut Netlink| check::host_end(host, &self.pod);
        let verify = |host: &mut Netlink| is_port(&port(host)?, bridge);
        call.wants(Place::Host, host, verify, |host| self.join(host, bridge))?;
        let verify = |host: &mut Netlink| check::host_state(&port(host)?, self.prev);
        call.wants(Place::Host, host, verify, |host| {
            let port = port(host)?;
            check::switch_on(host, &port)
        })?;
        let verify = |host: &mut Netlink| check_flags(&port(host)?, config);
        call.wants(Place::Host, host, verify, |host| {
            let port = port(host)?;
            let isolated = config.isolated || port.port.unwrap_or_default().isolated;
            let flags = Port { hairpin: config.hairpin, isolated, closed: true };
            Ok(host.execute(port::set(port.index, &port.name, flags))?)
        })?;
        let verify = |host: &mut Netlink| check_closed(&port(host)?, &self.owner);
        call.wants(Place::Host, host, verify, |host| {
            let port = port(host)?;
            host::ignore_router_advertisements_on_new(&port)?;
            let closed = Port { closed: true, ..Port::default() };
            Ok(host.execute(port::claim(port.index, &port.name, closed, &Change::default()))?)
        })?;
        let verify = |host: &mut Netlink| {
            let port = port(host)?;
            check_vlans(host, &wanted, &port)
        };
        call.wants(Place::Host, host, verify, |host| {
            let port = port(host)?;
            vlan::configure_port(host, config, bridge, &port, &wanted)
        })?;
        port(host)
    }

    /// Makes the host's end a port of the bridge again, with all that ADD gave it. It is down until its
    /// flags are there.
    fn join(&self, host: &mut Netlink, bridge: &Link) -> Result<(), Error> {
        let config = self.config;
        let port = check::host_end(host, &self.pod)?;
        let set = |change: Change<'_>| link::set(port.index, &port.name, &change);
        let flags =
            Port { hairpin: config.hairpin, isolated: config.isolated, closed: self.owner.owns(&port.alias) };
        host.execute_all(vec![
            set(Change { up: Some(false), ..Change::default() }),
            set(Change { master: Some(bridge.index), ..Change::default() }),
            port::claim(port.index, &port.name, flags, &Change::default()),
        ])?;
        ours::hold(host, config, &mut bridge.clone(), &port)?;
        vlan::configure_port(host, config, bridge, &port, &vlan::wanted(config))?;
        if let Some(mac) = self.mac_of(&self.pod.name, true) {
            let requested = config.requested_mac(self.call)?.is_some();
            place::hold(host, config, bridge, &port, mac, requested)?;
        }
        check::switch_on(host, &port)
    }

    /// The addresses that the pods know as their gateways, and forwarding.
    fn gateways(&self, host: &mut Netlink, bridge: &Link) -> Result<(), Error> {
        if !self.config.is_gateway {
            return Ok(());
        }
        let wanted = gateway::addresses_of(self.prev)?;
        let verify = |host: &mut Netlink| check_gateways(host, self.config, bridge, self.prev);
        self.call.wants(Place::Host, host, verify, |host| {
            if let Some(vlan) = self.config.vlan {
                vlan_gateway::rejoin(host, self.config, bridge, vlan)?;
            }
            let made = gateway::ensure(self.call, host, self.config, bridge, &wanted, self.prev)?;
            if let (Some(gateway), Some(vlan)) = (&made, self.config.vlan) {
                vlan_gateway::keep(host, gateway, vlan)?;
            }
            let link = made.as_ref().unwrap_or(bridge);
            let mac = self.mac_of(&link.name, false);
            Ok(host.execute(link::set(link.index, &link.name, &Change { mac, ..Change::default() }))?)
        })?;
        host::forwards(self.call, host, &wanted)
    }

    fn rules(&self, nft: &mut Nft, port: &Link) -> Result<(), Error> {
        let (call, config, owner) = (self.call, self.config, &self.owner);
        if config.ip_masq && config.layer3() {
            let addrs = config.ip_masq_families.of(self.prev.ips.iter().map(|ip| ip.address));
            let verify = |nft: &mut Nft| masquerade::check(nft, owner, &addrs);
            let put_back = |nft: &mut Nft| crate::masquerade(call, nft, config, owner, self.prev);
            call.wants(Place::Rules, nft, verify, put_back)?;
        }
        if config.mac_spoof_check
            && let Some(mac) = self.mac_of(&self.pod.name, true).or(self.pod.mac)
        {
            let verify = |nft: &mut Nft| spoof::check(nft, owner, &port.name, mac);
            let put_back = |nft: &mut Nft| crate::check_mac(call, nft, owner, &port.name, mac);
            call.wants(Place::Rules, nft, verify, put_back)?;
        }
        // The Go plugins' ports, which have no alias, are not isolated.
        if config.isolated && config.layer3() && owner.owns(&port.alias) {
            let addrs = crate::addresses(self.prev);
            let verify = |nft: &mut Nft| isolation::check(nft, owner, &port.name, &addrs);
            let put_back = |nft: &mut Nft| crate::isolate(call, nft, owner, &port.name, &addrs);
            call.wants(Place::Rules, nft, verify, put_back)?;
        }
        Ok(())
    }
}

fn check_bridge(host: &mut Netlink, config: &Config) -> Result<(), Error> {
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
    Ok(())
}

fn is_port(port: &Link, bridge: &Link) -> Result<(), Error> {
    match port.master == Some(bridge.index) {
        true => Ok(()),
        false => Err(Error::check(format!("{} is not a port of {}", port.name, bridge.name))),
    }
}

fn check_flags(port: &Link, config: &Config) -> Result<(), Error> {
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
    Ok(())
}

/// The port is as closed as ADD left it. A port that was never closed has no mask: a Go plugin's port, which
/// has no alias, and an earlier version's, which has the host's default for `accept_ra`.
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
    // The pods know this MAC. That of a bridge that isn't their gateway may follow its ports.
    if let Some(told) = prev.interfaces.iter().find(|i| i.sandbox.is_empty() && i.name == link.name) {
        check::same_mac(&link, told)?;
    }
    let present = host.addrs(link.index)?;
    for gateway in prev.ips.iter().filter_map(|ip| ip.gateway) {
        if !present.iter().any(|addr| addr.net.ip() == gateway) {
            return Err(Error::check(format!("{} lacks the gateway address {gateway}", link.name)));
        }
    }
    Ok(())
}
