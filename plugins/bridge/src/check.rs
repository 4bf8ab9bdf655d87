//! The wanted state of an attachment: CHECK verifies it, and a repair restores it.

use cnimble_cni::{CniResult, Error, Owner};
use cnimble_netlink::link::{self, Change, Link, Mac};
use cnimble_netlink::nft::Nft;
use cnimble_netlink::port::{self as bridge_port, Port, Vlan};
use cnimble_netlink::{Netlink, sysctl};
use cnimble_plugin::interface::{check, host, pod};
use cnimble_plugin::{Call, Place};
use cnimble_rules::filters::Wanted;
use cnimble_rules::{isolation, masquerade, spoof};

use crate::config::{Config, vlan_gateway_name};
use crate::context::Context;
use crate::{bridge, gateway, ours, place, port, unused, uplink, vlan_gateway};

/// Compares an attachment with its result and configuration.
///
/// For CHECK the first difference is the error, with code 103. If the doctor or guard calls, differences are noted or
/// put back ([`Call::wants`]). So `Ok` then does not mean that all is as wanted, and the caller reads the notes.
pub(crate) fn attachment(call: &Call, config: &Config, prev: &CniResult) -> Result<(), Error> {
    let netns = call.open_netns()?;
    let cx = &mut Context::open(call, config)?;
    let mut inside = call.look_inside(&netns)?;
    // The MTU of the result counts, not that of the configuration: tuning may follow in the chain and set another one.
    call.expects(Place::Pod, check::pod(call, &mut inside, prev, "veth", false).map(drop))?;
    let pod = check::find(&mut inside, &call.ifname, &format!("in {}", call.netns))?;
    pod::check_routers(call, &mut inside)?;
    let end = check::host_end(call, &mut cx.host, &netns, &pod, prev)?;
    let attached = Attached { prev, pod };
    let bridge = attached.bridge(cx, end.as_ref())?;
    if let Some(end) = &end {
        attached.port(cx, &bridge, end)?;
    }
    let mtu = config.mtu.follow(call, &mut cx.host, &mut inside, prev, end.as_ref())?;
    attached.gateways(cx, &bridge)?;
    vlan_gateway::follow(cx, &bridge, mtu)?;
    attached.rules(cx, end.as_ref())?;
    if config.container_up {
        let routes = pod::routes(attached.pod.index, prev);
        check::inside_pod(call, &mut inside, &attached.pod, prev, &routes)?;
    }
    Ok(())
}

/// An attachment during its CHECK: the result of ADD, and the interface in the pod.
struct Attached<'a> {
    prev: &'a CniResult,
    pod: Link,
}

impl Attached<'_> {
    /// Returns the MAC that the result has for the host's interface `name`. `None` if it has none.
    fn mac_on_host(&self, name: &str) -> Option<Mac> {
        let mut interfaces = self.prev.interfaces.iter();
        Mac::parse(&interfaces.find(|of| of.name == name && of.sandbox.is_empty())?.mac)
    }

    /// Returns the MAC that the result has for the pod's interface. The pod can have changed the present one.
    fn mac_in_pod(&self) -> Option<Mac> {
        let mut interfaces = self.prev.interfaces.iter();
        Mac::parse(&interfaces.find(|of| of.name == self.pod.name && !of.sandbox.is_empty())?.mac)
    }

    /// Verifies the bridge and its uplink. A repair makes a deleted bridge again with the MAC that the pods know, and
    /// makes the proven host's `end` its port. Without a proven end no port joins it.
    ///
    /// Returns the bridge as it is afterwards. Fails with code 103 if there still is none.
    fn bridge(&self, cx: &mut Context<'_>, end: Option<&Link>) -> Result<Link, Error> {
        let (call, config) = (cx.call, cx.config);
        let put_back = |cx: &mut Context<'_>| {
            let _alone = config.remove_unused.then(unused::lock).transpose()?;
            let bridge = bridge::ensure(cx, self.mac_on_host(&config.bridge))?;
            match end {
                Some(end) if is_port(&port_now(cx, end)?, &bridge).is_err() => self.join(cx, &bridge, end),
                _ => Ok(()),
            }
        };
        let verify = |cx: &mut Context<'_>| check_bridge(&mut cx.host, config, call.is_examined());
        call.wants(Place::Host, cx, verify, put_back)?;
        let bridge = check::find(&mut cx.host, &config.bridge, "on the host")?;
        if let Some(name) = config.uplink.as_ref().filter(|_| ours::has_uplink(&bridge)) {
            let verify = |cx: &mut Context<'_>| uplink::check(&mut cx.host, &bridge, name);
            call.wants(Place::Host, cx, verify, |cx| uplink::join(cx, &bridge, name))?;
        }
        Ok(bridge)
    }

    /// Verifies the host's end as a port: its master, its state, its flags and its VLANs, each as an item of its own.
    fn port(&self, cx: &mut Context<'_>, bridge: &Link, end: &Link) -> Result<(), Error> {
        let (call, config, vlans) = (cx.call, cx.config, port::vlans(cx.config));
        let verify = |cx: &mut Context<'_>| is_port(&port_now(cx, end)?, bridge);
        call.wants(Place::Host, cx, verify, |cx| self.join(cx, bridge, end))?;
        let verify = |cx: &mut Context<'_>| check::host_end_is_up(&port_now(cx, end)?);
        call.wants(Place::Host, cx, verify, |cx| check::switch_on(&mut cx.host, end))?;
        let now = port_now(cx, end);
        call.expects(Place::Host, now.and_then(|now| check::host_end_mac(&now, self.prev)))?;
        let verify = |cx: &mut Context<'_>| check_flags(&port_now(cx, end)?, config);
        call.wants(Place::Host, cx, verify, |cx| {
            let port = port_now(cx, end)?;
            let isolated = config.isolated || port.port.unwrap_or_default().isolated;
            let flags = Port { hairpin: config.hairpin, isolated, closed: true };
            Ok(cx.host.execute(bridge_port::set(port.index, &port.name, flags))?)
        })?;
        // CHECK does not compare the frames. Its caller may end a pod that fails, even if an administrator has switched
        // its port off on purpose.
        if call.is_examined() {
            let verify = |cx: &mut Context<'_>| check_frames(&port_now(cx, end)?);
            call.wants(Place::Host, cx, verify, |cx| {
                let port = port_now(cx, end)?;
                let mut requests = vec![bridge_port::pass_frames(port.index, &port.name)];
                if port.frames.is_some_and(|frames| frames.disabled) {
                    requests.push(bridge_port::enable(port.index, &port.name));
                }
                Ok(cx.host.execute_all(requests)?)
            })?;
        }
        let verify = |cx: &mut Context<'_>| check_closed(&port_now(cx, end)?, &cx.owner);
        call.wants(Place::Host, cx, verify, |cx| {
            let port = port_now(cx, end)?;
            host::ignore_router_advertisements_on_new(&port)?;
            let closed = Port { closed: true, ..Port::default() };
            Ok(cx.host.execute(bridge_port::claim(port.index, &port.name, closed, &Change::default()))?)
        })?;
        let verify = |cx: &mut Context<'_>| check_vlans(&mut cx.host, &vlans, end);
        call.wants(Place::Host, cx, verify, |cx| port::configure_vlans(cx, bridge, end, &vlans))
    }

    /// Makes the host's end a port again, with the flags, VLANs and forwarding entry that ADD gave it. It is set up
    /// last, so that no frame passes before. The caller restores the rules.
    fn join(&self, cx: &mut Context<'_>, bridge: &Link, end: &Link) -> Result<(), Error> {
        let config = cx.config;
        let port = port_now(cx, end)?;
        let set = |change: Change<'_>| link::set(port.index, &port.name, &change);
        let flags =
            Port { hairpin: config.hairpin, isolated: config.isolated, closed: cx.owner.owns(&port.alias) };
        cx.host.execute_all(vec![
            set(Change { up: Some(false), ..Change::default() }),
            set(Change { master: Some(bridge.index), ..Change::default() }),
            bridge_port::claim(port.index, &port.name, flags, &Change::default()),
        ])?;
        ours::hold(cx, &mut bridge.clone(), &port)?;
        port::configure_vlans(cx, bridge, &port, &port::vlans(config))?;
        if let Some(mac) = self.mac_in_pod() {
            place::hold(cx, bridge, &port, mac)?;
        }
        check::switch_on(&mut cx.host, &port)
    }

    /// Verifies the addresses of the gateways and the host's routes to the pods. An examination also verifies
    /// forwarding. Does nothing if the bridge is no gateway.
    fn gateways(&self, cx: &mut Context<'_>, bridge: &Link) -> Result<(), Error> {
        let (call, config) = (cx.call, cx.config);
        if !config.is_gateway {
            return Ok(());
        }
        let wanted = gateway::addresses_of(self.prev)?;
        let verify = |cx: &mut Context<'_>| check_gateways(cx, bridge, self.prev);
        call.wants(Place::Host, cx, verify, |cx| {
            if let Some(vlan) = config.vlan {
                vlan_gateway::rejoin(cx, bridge, vlan)?;
            }
            let made = gateway::ensure(cx, bridge, &wanted, self.prev)?;
            if let (Some(gateway), Some(vlan)) = (&made, config.vlan) {
                vlan_gateway::keep(&mut cx.host, gateway, vlan)?;
            }
            let link = made.as_ref().unwrap_or(bridge);
            gateway::lead_to_pods(&mut cx.host, link, self.prev)?;
            let mac = self.mac_on_host(&link.name);
            Ok(cx.host.execute(link::set(link.index, &link.name, &Change { mac, ..Change::default() }))?)
        })?;
        if !call.is_examined() {
            return Ok(());
        }
        let gateway = match config.vlan {
            Some(vlan) => cx.host.find_link(&vlan_gateway_name(&bridge.name, vlan))?,
            None => Some(bridge.clone()),
        };
        gateway.map_or(Ok(()), |gateway| host::forwards(call, &mut cx.host, &gateway, &wanted))
    }

    /// Verifies the packet rules. The rules of a port, for the MAC check and isolation, need a proven host's `end`,
    /// because they name it. Without one only masquerading is verified.
    fn rules(&self, cx: &Context<'_>, end: Option<&Link>) -> Result<(), Error> {
        let (call, config, owner, nft) = (cx.call, cx.config, &cx.owner, &mut Nft::new());
        if let Some(masquerade) = config.masquerade(self.prev) {
            let verify = |nft: &mut Nft| masquerade.check(nft, owner);
            call.wants(Place::Rules, nft, verify, |nft| {
                // The configured exceptions may have changed since ADD, so the old elements are removed first.
                masquerade::remove(nft, owner, masquerade.sources())?;
                cx.filter(nft, &Wanted { masquerade: Some(masquerade.clone()), ..Wanted::default() })
            })?;
        }
        let Some(Link { name: port, alias, .. }) = end else { return Ok(()) };
        // The MAC of the result counts, because the pod can have changed the present one.
        if config.mac_spoof_check
            && let Some(mac) = self.mac_in_pod()
        {
            let verify = |nft: &mut Nft| spoof::check(nft, owner, port, mac);
            call.wants(Place::Rules, nft, verify, |nft| {
                cx.filter(nft, &Wanted { port, mac: Some(mac), ..Wanted::default() })
            })?;
        }
        // The Go plugins' ports, which have no alias, are not isolated.
        if let Some(addrs) = config.isolated_addresses(self.prev).filter(|_| owner.owns(alias)) {
            let verify = |nft: &mut Nft| isolation::check(nft, owner, port, &addrs);
            call.wants(Place::Rules, nft, verify, |nft| {
                cx.filter(nft, &Wanted { port, isolated: Some(addrs.clone()), ..Wanted::default() })
            })?;
        }
        Ok(())
    }
}

/// Reads the proven host's end again, because an item before this one may have changed it. Fails with code 103 if it
/// leads elsewhere by now.
fn port_now(cx: &mut Context<'_>, end: &Link) -> Result<Link, Error> {
    check::host_end_again(&mut cx.host, end)
}

/// Checks that the bridge exists, is up, and is as the configuration wants it. `accept_ra` is compared only in an
/// examination (doctor, guard). The Go plugins' CHECK does not ask for it, and must not fail after a change of plugins.
fn check_bridge(host: &mut Netlink, config: &Config, is_examined: bool) -> Result<(), Error> {
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
    if is_examined && let Some(accept_ra) = bridge.accept_ra.filter(|accept_ra| *accept_ra != 0) {
        return Err(Error::check(format!("bridge {} has accept_ra {accept_ra}, expected 0", bridge.name)));
    }
    Ok(())
}

/// Fails with code 103 if `port` has another master than `bridge`, or none.
fn is_port(port: &Link, bridge: &Link) -> Result<(), Error> {
    if port.master == Some(bridge.index) {
        Ok(())
    } else {
        Err(Error::check(format!("{} is not a port of {}", port.name, bridge.name)))
    }
}

/// Checks hairpin mode and isolation of the port. Isolation that the configuration does not ask for is no difference.
fn check_flags(port: &Link, config: &Config) -> Result<(), Error> {
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
fn check_frames(port: &Link) -> Result<(), Error> {
    let Some(frames) = port.frames else { return Ok(()) };
    let lacks = |what: &str| Err(Error::check(format!("port {} has {what}", port.name)));
    if frames.disabled && port.up && port.carrier {
        return lacks("state disabled, expected forwarding");
    }
    if !frames.learning {
        return lacks("learning off, expected on");
    }
    if !frames.flood {
        return lacks("flood off, expected on");
    }
    Ok(())
}

/// Checks that the port still receives nothing itself (`group_fwd_mask`), and that it still ignores router
/// advertisements.
///
/// The Go plugins and earlier versions of this one set no mask. Their ports are accepted: those of the Go plugins have
/// no alias, and those of earlier versions have the host's default of `accept_ra`. So a missing mask is a difference
/// only if the port has our alias and an `accept_ra` of 0 that is not that default.
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

/// Checks that the port is in all `wanted` VLANs, each up to the last ID of its range. Further VLANs are accepted.
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

/// Checks that the VLAN's gateway interface is up and leads into the VLAN, and returns it.
fn check_vlan_gateway(host: &mut Netlink, bridge: &Link, vlan: u16) -> Result<Link, Error> {
    let gateway = check::find(host, &vlan_gateway_name(&bridge.name, vlan), "on the host")?;
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

/// Checks that the gateways' addresses are on the bridge, or on the VLAN's gateway interface. The host's routes to the
/// pods are compared only in an examination, because the Go plugins' CHECK does not ask for them.
fn check_gateways(cx: &mut Context<'_>, bridge: &Link, prev: &CniResult) -> Result<(), Error> {
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
