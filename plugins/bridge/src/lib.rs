//! The CNI plugin `bridge`: connects pods to a Linux bridge of the host.
//!
//! ADD takes these steps in order, each with its undo:
//! 1. Make the bridge if it is missing (`bridge`).
//! 2. Make a veth pair between a port of the bridge and the pod's namespace (`port`).
//! 3. Get addresses from IPAM ([`cnimble_plugin::delegate`]).
//! 4. Add the forwarding entry (`place`) and the packet rules ([`cnimble_rules::filters`]) before the pod can send.
//! 5. Add the gateway addresses to the bridge and switch forwarding on (`gateway`).
//! 6. Add addresses to the pod's interface, set it up and add the routes (`pod`).
//! 7. Wait until the host's end is operationally up, so that the pod can send when ADD returns. With an IPv6 address,
//!    wait also for the pod's end, and for duplicate address detection if it is on.
//!
//! Steps 6 and 7 are left out if `disableContainerInterface` keeps the pod's interface down.
//!
//! DEL removes the rules, the veth pair, the lease and an unused bridge, in this order (`remove`). It needs neither the
//! namespace nor a prevResult. The gateway addresses stay on the bridge for other pods.

mod bridge;
mod check;
mod config;
mod context;
mod dependents;
mod differences;
mod gateway;
mod gc;
mod ours;
mod place;
mod pod;
mod port;
mod remove;
mod unused;
mod uplink;
mod vlan_gateway;

use cnimble_cni::{Attachment, CniResult, Error};
use cnimble_netlink::nft::Nft;
use cnimble_plugin::interface::{completed, described, unusable, usable_netlink};
use cnimble_plugin::{Call, Command, Place, Plugin, Role, delegate};
use cnimble_rules::filters::PodRules;
use cnimble_rules::{isolation, masquerade, spoof};

use config::Config;
use context::Context;

pub static PLUGIN: &dyn Plugin = &Bridge;

struct Bridge;

impl Plugin for Bridge {
    fn name(&self) -> &'static str {
        "bridge"
    }

    fn role(&self) -> Role {
        Role::Main
    }

    fn starts_programs(&self, call: &Call) -> bool {
        masquerade::may_run_iptables(&call.config, call.command)
    }

    fn read_config(&self, call: &Call) -> Result<(), Error> {
        Config::read(&call.config)?.requested_mac(call).map(drop)
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let config = Config::read(&call.config)?;
        let mac = config.requested_mac(call)?;
        let netns = call.open_netns()?;
        let cx = &mut Context::open(call, &config)?;
        cx.mtu = config.mtu.of_new(&mut cx.host)?;

        let (mut bridge, mut pair) = bridge::join(cx, &netns, mac)?;
        ours::hold_mac(cx, &mut bridge, &pair.host)?;

        let (mut result, mac_is_seen) = from_ipam(call, &config)?;
        config.mtu.carries(cx.mtu, &result)?;
        let gateways = gateway::complete(&mut result, &config)?;

        let final_mac = mac.or(Some(pair.pod_mac).filter(|_| mac_is_seen));
        let arrival = pod::Arrival::plan(cx, &bridge, &result, final_mac);
        let pod_mac = arrival.mac().unwrap_or(pair.pod_mac);
        call.step(&format!("reserve MAC {pod_mac} on bridge {}", bridge.name), || {
            place::hold_mac(cx, &bridge, &pair.host, pod_mac)
        })?;
        let wanted = PodRules {
            port: &pair.host.name,
            mac: config.mac_spoof_check.then_some(pod_mac),
            isolated: config.isolated_addresses(&result),
            masquerade: config.masquerade(&result),
        };
        // The socket stays open until the end of ADD. Its close can wait 15 ms for the kernel, and nothing here needs
        // that wait.
        let mut nft = Nft::new();
        if !wanted.is_empty() {
            call.step(&wanted.step(), || cx.filter(&mut nft, &wanted))?;
        }
        let vlan_gateway = call.step(&format!("make {} the gateway of the pods", bridge.name), || {
            gateway::ensure(cx, &bridge, &gateways, &result)
        })?;
        // This step comes last, because it brings the pod's interface up: the kernel then sends the pod's multicast to
        // every port of the bridge, and holds the lock of all network configuration (RTNL) meanwhile.
        let inside = call.step(&format!("configure {} in the pod", call.ifname), || {
            arrival.configure(cx, &netns, &mut pair, &result)
        })?;

        let mut interfaces = vec![described(&bridge), described(&pair.host), pair.described(call)];
        interfaces.extend(vlan_gateway.iter().map(described));

        if let Some(mut inside) = inside {
            let what = format!("wait until {} is up", pair.host.name);
            call.step(&what, || cx.host.wait_oper_up(pair.host.index, pod::UP_TIMEOUT))?;
            arrival.finish(cx, &mut inside, &pair, &result)?;
        }
        if let (Some(gateway), Some(vlan)) = (&vlan_gateway, config.vlan) {
            vlan_gateway::keep_gateway(&mut cx.host, gateway, vlan)?;
        }
        Ok(completed(result, interfaces, config.dns))
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        remove::attachment(call)
    }

    /// Compares the attachment and then asks IPAM. If both find a difference, the error is that of IPAM
    /// ([`delegate::check`]).
    fn check(&self, call: &Call, prev: &CniResult) -> Result<(), Error> {
        let config = Config::read(&call.config)?;
        let own = check::attachment(call, &config, prev);
        match &config.ipam {
            Some(ipam) => call.expects(Place::Host, delegate::check(call, ipam, own)),
            None => own,
        }
    }

    fn gc(&self, call: &Call, valid: &[Attachment]) -> Result<(), Error> {
        gc::network(call, valid)
    }

    /// Fails with code 50 if a link of another kind has the bridge's name, or if rules that the configuration asks for
    /// cannot be made. A missing bridge is no failure, because ADD makes it.
    fn status(&self, call: &Call) -> Result<(), Error> {
        let config = Config::read(&call.config)?;
        let mut host = usable_netlink()?;
        match host.find_link(&config.bridge) {
            Ok(Some(found)) if found.kind != "bridge" => {
                return Err(unusable("the bridge", &bridge::not_a_bridge(&config.bridge)));
            }
            Ok(_) => {}
            Err(err) => return Err(unusable("netlink", &err)),
        }
        if config.masquerades() {
            masquerade::status(config.masquerade.backend.as_deref())?;
        }
        if config.mac_spoof_check {
            spoof::status(&mut Nft::new())?;
        }
        if config.isolated && config.layer3() {
            isolation::status(&mut Nft::new())?;
        }
        delegate::call_ipam(call, Command::Status)
    }
}

/// Calls ADD of the IPAM plugin. Without `ipam` the result is empty.
///
/// The second value is true if the IPAM plugin may have used the MAC of the pod's interface, as DHCP does. That MAC
/// must not change any more. The host-local and static of this binary ignore it.
fn from_ipam(call: &Call, config: &Config) -> Result<(CniResult, bool), Error> {
    let Some(ipam) = &config.ipam else { return Ok((CniResult::default(), false)) };
    let added = delegate::assigned(call, ipam)?;
    let ignores_it = added.here && matches!(ipam.as_str(), "host-local" | "static");
    Ok((added.result, !ignores_it))
}
