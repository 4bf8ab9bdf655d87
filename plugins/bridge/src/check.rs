//! The wanted state of an attachment: CHECK verifies it, and a repair restores it.

use ipnetwork::IpNetwork;

use cnimble_cni::{CniResult, Error};
use cnimble_netlink::link::{self, Change, Link, Mac};
use cnimble_netlink::nft::Nft;
use cnimble_netlink::port::{self as bridge_port, Port};
use cnimble_netlink::port_state::PortState;
use cnimble_plugin::interface::{check, host, pod};
use cnimble_plugin::{Call, Place};
use cnimble_rules::filters::PodRules;
use cnimble_rules::{isolation, masquerade, spoof};

use crate::config::{Config, vlan_gateway_name};
use crate::context::Context;
use crate::differences::{
    check_bridge, check_closed, check_flags, check_frames, check_gateways, check_vlans, is_port,
};
use crate::{bridge, gateway, ours, place, port, unused, uplink, vlan_gateway};

/// Compares an attachment with its result and configuration.
///
/// For CHECK the first difference is the error, with code 103. If the doctor or guard calls, differences are noted or
/// put back ([`Call::wants`]). So `Ok` then does not mean that all is as wanted, and the caller reads the notes.
///
/// Only such an examination compares the following. The Go plugins' CHECK does not ask for it, and the caller of a
/// CHECK that fails may end the pod:
///
/// - `accept_ra` of the bridge;
/// - whether the bridge passes the pod's frames, learns from them, and floods to the port;
/// - the host's routes to the pods, and whether it forwards what they send, if the bridge is a gateway;
/// - an MTU that follows the default route, on the veth pair and the VLAN's gateway interface.
pub(crate) fn attachment(call: &Call, config: &Config, prev: &CniResult) -> Result<(), Error> {
    let netns = call.open_netns()?;
    let cx = &mut Context::open(call, config)?;
    let mut inside = call.look_inside(&netns)?;
    // The MTU of the result counts, not that of the configuration: tuning may follow in the chain and set another one.
    call.expects(Place::Pod, check::pod(call, &mut inside, prev, "veth", false).map(drop))?;
    let pod = check::find_link(&mut inside, &call.ifname, &format!("in {}", call.netns))?;
    pod::check_routers(call, &mut inside)?;
    let end = check::host_end(call, &mut cx.host, &netns, &pod, prev)?;
    let attached = CheckedAttachment { prev, pod };
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
struct CheckedAttachment<'a> {
    prev: &'a CniResult,
    pod: Link,
}

impl CheckedAttachment<'_> {
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
    /// makes the proven host's `end` its port. Without a proven end, no port of the pod joins it.
    /// The uplink still does.
    ///
    /// Returns the bridge as it is afterwards. Fails with code 103 if there still is none.
    fn bridge(&self, cx: &mut Context<'_>, end: Option<&Link>) -> Result<Link, Error> {
        let (call, config) = (cx.call, cx.config);
        call.wants(
            Place::Host,
            cx,
            |cx| check_bridge(&mut cx.host, config, call.is_examined()),
            |cx| {
                let _alone = config.remove_unused.then(unused::lock).transpose()?;
                let bridge = bridge::ensure(cx, self.mac_on_host(&config.bridge))?;
                match end {
                    Some(end) if is_port(&port_now(cx, end)?, &bridge).is_err() => {
                        self.join(cx, &bridge, end)
                    }
                    _ => Ok(()),
                }
            },
        )?;
        let bridge = check::find_link(&mut cx.host, &config.bridge, "on the host")?;
        if let Some(name) = config.uplink.as_ref().filter(|_| ours::has_uplink(&bridge)) {
            call.wants(
                Place::Host,
                cx,
                |cx| uplink::check(&mut cx.host, &bridge, name),
                |cx| uplink::join(cx, &bridge, name),
            )?;
        }
        Ok(bridge)
    }

    /// Verifies the host's end as a port: its master, its state, its flags and its VLANs, each as an item of its own.
    fn port(&self, cx: &mut Context<'_>, bridge: &Link, end: &Link) -> Result<(), Error> {
        let (call, config, vlans) = (cx.call, cx.config, port::vlans(cx.config));
        call.wants(
            Place::Host,
            cx,
            |cx| is_port(&port_now(cx, end)?, bridge),
            |cx| self.join(cx, bridge, end),
        )?;
        call.wants(
            Place::Host,
            cx,
            |cx| check::host_end_is_up(&port_now(cx, end)?),
            |cx| check::switch_on(&mut cx.host, end),
        )?;
        call.expects(Place::Host, check::host_end_mac(end, self.prev))?;
        call.wants(Place::Host, cx, |cx| check_flags(&port_now(cx, end)?, config), |cx| set_flags(cx, end))?;
        // CHECK does not compare the frames. Its caller may end a pod that fails, even if an administrator has switched
        // its port off on purpose.
        if call.is_examined() {
            call.wants(Place::Host, cx, |cx| check_frames(&port_now(cx, end)?), |cx| pass_frames(cx, end))?;
        }
        call.wants(
            Place::Host,
            cx,
            |cx| check_closed(&port_now(cx, end)?, &cx.owner),
            |cx| close_port(cx, end),
        )?;
        call.wants(
            Place::Host,
            cx,
            |cx| check_vlans(&mut cx.host, &vlans, end),
            |cx| port::configure_vlans(cx, bridge, end, &vlans),
        )
    }

    /// Makes the host's end a port again, with the flags, VLANs and forwarding entry that ADD gave it. It is set up
    /// last, so that no frame passes before. The caller restores the rules.
    fn join(&self, cx: &mut Context<'_>, bridge: &Link, end: &Link) -> Result<(), Error> {
        let config = cx.config;
        let port = port_now(cx, end)?;
        let flags =
            Port { hairpin: config.hairpin, isolated: config.isolated, closed: cx.owner.owns(&port.alias) };
        cx.host.execute_all(vec![
            link::set(port.index, &port.name, &Change { up: Some(false), ..Change::default() }),
            link::set(port.index, &port.name, &Change { master: Some(bridge.index), ..Change::default() }),
            bridge_port::claim(port.index, &port.name, flags, &Change::default()),
        ])?;
        ours::hold_mac(cx, &mut bridge.clone(), &port)?;
        port::configure_vlans(cx, bridge, &port, &port::vlans(config))?;
        if let Some(mac) = self.mac_in_pod() {
            place::hold_mac(cx, bridge, &port, mac)?;
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
        call.wants(
            Place::Host,
            cx,
            |cx| check_gateways(cx, bridge, self.prev),
            |cx| self.restore_gateways(cx, bridge, &wanted),
        )?;
        if !call.is_examined() {
            return Ok(());
        }
        let gateway = match config.vlan {
            Some(vlan) => cx.host.find_link(&vlan_gateway_name(&bridge.name, vlan))?,
            None => Some(bridge.clone()),
        };
        gateway.map_or(Ok(()), |gateway| host::forwards(call, &mut cx.host, &gateway, &wanted))
    }

    /// Gives the bridge, or the VLAN's gateway interface, the `wanted` addresses, the routes to the pods, and the MAC
    /// that the pods know.
    fn restore_gateways(
        &self,
        cx: &mut Context<'_>,
        bridge: &Link,
        wanted: &[IpNetwork],
    ) -> Result<(), Error> {
        let config = cx.config;
        if let Some(vlan) = config.vlan {
            vlan_gateway::rejoin(cx, bridge, vlan)?;
        }
        let made = gateway::ensure(cx, bridge, wanted, self.prev)?;
        if let (Some(gateway), Some(vlan)) = (&made, config.vlan) {
            vlan_gateway::keep_gateway(&mut cx.host, gateway, vlan)?;
        }
        let link = made.as_ref().unwrap_or(bridge);
        gateway::lead_to_pods(&mut cx.host, link, self.prev)?;
        let mac = self.mac_on_host(&link.name);
        Ok(cx.host.execute(link::set(link.index, &link.name, &Change { mac, ..Change::default() }))?)
    }

    /// Verifies the packet rules. The rules of a port, for the MAC check and isolation, need a proven host's `end`,
    /// because they name it. Without one only masquerading is verified.
    fn rules(&self, cx: &Context<'_>, end: Option<&Link>) -> Result<(), Error> {
        let (call, config, owner, nft) = (cx.call, cx.config, &cx.owner, &mut Nft::new());
        if let Some(masquerade) = config.masquerade(self.prev) {
            call.wants(
                Place::Rules,
                nft,
                |nft| masquerade.check(nft, owner),
                |nft| {
                    // The configured exceptions may have changed since ADD, so the old elements are removed first.
                    masquerade::remove(nft, owner, masquerade.sources())?;
                    cx.filter(nft, &PodRules { masquerade: Some(masquerade.clone()), ..PodRules::default() })
                },
            )?;
        }
        let Some(Link { name: port, alias, .. }) = end else { return Ok(()) };
        // The MAC of the result counts, because the pod can have changed the present one.
        if config.mac_spoof_check
            && let Some(mac) = self.mac_in_pod()
        {
            call.wants(
                Place::Rules,
                nft,
                |nft| spoof::check(nft, owner, port, mac),
                |nft| cx.filter(nft, &PodRules { port, mac: Some(mac), ..PodRules::default() }),
            )?;
        }
        // The Go plugins' ports, which have no alias, are not isolated.
        if let Some(addrs) = config.isolated_addresses(self.prev).filter(|_| owner.owns(alias)) {
            call.wants(
                Place::Rules,
                nft,
                |nft| isolation::check(nft, owner, port, &addrs),
                |nft| {
                    cx.filter(nft, &PodRules { port, isolated: Some(addrs.clone()), ..PodRules::default() })
                },
            )?;
        }
        Ok(())
    }
}

/// Reads the proven host's end again, because an item before this one may have changed it. Fails with code 103 if it
/// leads elsewhere by now.
fn port_now(cx: &mut Context<'_>, end: &Link) -> Result<Link, Error> {
    check::host_end_again(&mut cx.host, end)
}

/// Gives the port the configured flags. A port that is isolated already stays isolated ([`check_flags`]).
fn set_flags(cx: &mut Context<'_>, end: &Link) -> Result<(), Error> {
    let port = port_now(cx, end)?;
    let isolated = cx.config.isolated || port.port.unwrap_or_default().isolated;
    let flags = Port { hairpin: cx.config.hairpin, isolated, closed: true };
    Ok(cx.host.execute(bridge_port::set(port.index, &port.name, flags))?)
}

/// Lets frames pass the port again, and enables a disabled one.
fn pass_frames(cx: &mut Context<'_>, end: &Link) -> Result<(), Error> {
    let port = port_now(cx, end)?;
    let mut requests = vec![bridge_port::pass_frames(port.index, &port.name)];
    if port.frames.is_some_and(|frames| frames.state == PortState::Disabled) {
        requests.push(bridge_port::enable(port.index, &port.name));
    }
    Ok(cx.host.execute_all(requests)?)
}

/// Makes the port receive nothing itself (`group_fwd_mask`), and ignore router advertisements (`accept_ra` 0). See
/// [`check_closed`].
fn close_port(cx: &mut Context<'_>, end: &Link) -> Result<(), Error> {
    let port = port_now(cx, end)?;
    host::ignore_router_advertisements_on_new(&port)?;
    let closed = Port { closed: true, ..Port::default() };
    Ok(cx.host.execute(bridge_port::claim(port.index, &port.name, closed, &Change::default()))?)
}
