//! The CNI plugin `bridge`: connects pods to a Linux bridge of the host.
//!
//! ADD takes these steps in order, each with its undo:
//!
//! 1. Make the bridge if it is missing (`bridge`).
//! 2. Make a veth pair with one end as a port of the bridge and the other in the pod's namespace
//!    (`pair`).
//! 3. Get addresses from IPAM ([`cnimble_plugin::delegate`]).
//! 4. Add the MAC's forwarding entry and the MAC check before the pod can send (`place`,
//!    [`cnimble_rules`]).
//! 5. Add addresses to the pod's interface, set it up and add the routes (`pod`).
//! 6. Add the gateway addresses to the bridge and switch forwarding on (`gateway`).
//! 7. Set up masquerading.
//! 8. Wait until both ends are operationally up, so that the pod can send when ADD returns.
//!
//! DEL takes the steps in reverse and needs neither the namespace nor a prevResult. The name of the
//! host's end is derived from the attachment, and the link's alias names its owner.

mod bridge;
mod check;
mod config;
mod gateway;
mod gc;
mod ours;
mod pair;
mod place;
mod pod;
mod remove;
mod unused;
mod vlan;
mod vlan_gateway;

use std::net::IpAddr;
use std::time::Duration;

use cnimble_cni::{Attachment, CniResult, Code, Error, Owner};
use cnimble_netlink::link::{Link, Mac};
use cnimble_netlink::nft::Nft;
use cnimble_netlink::{NetNs, Netlink};
use cnimble_plugin::interface::pair::Pair;
use cnimble_plugin::interface::{completed, described, unusable, usable_netlink};
use cnimble_plugin::{Call, Caps, Command, Place, Plugin, delegate};
use cnimble_rules::{isolation, masquerade, spoof};

use config::Config;

/// The time limit for a port to come up. It takes microseconds unless the machine is stuck.
const UP_TIMEOUT: Duration = Duration::from_secs(10);

/// The index of the pod's interface in the result.
const POD_INTERFACE: u32 = 2;

/// The implementation of the `bridge` plugin.
pub static PLUGIN: &dyn Plugin = &Bridge;

struct Bridge;

impl Plugin for Bridge {
    fn name(&self) -> &'static str {
        "bridge"
    }

    fn needs(&self) -> Caps {
        Caps::NET_ADMIN.and(Caps::SYS_ADMIN)
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
        let mut host = Netlink::open()?;
        let owner = call.owner();

        let (mut bridge, mut pair) = join(call, &mut host, &config, &owner, &netns, mac)?;
        ours::hold(&mut host, &config, &mut bridge, &pair.host)?;

        let mut result = CniResult::default();
        let mut mac_is_seen = false;
        if let Some(ipam) = &config.ipam {
            let added = delegate::added(call, ipam)?;
            mac_is_seen = !(added.here && matches!(ipam.as_str(), "host-local" | "static"));
            result = added.result;
            if result.ips.is_empty() {
                return Err(Error::new(Code::DELEGATE, "IPAM plugin returned missing IP config")
                    .details(format!("IPAM plugin {ipam}")));
            }
        }
        let gateways = gateway::complete(&mut result, &config)?;

        let final_mac = mac.or(Some(pair.pod_mac).filter(|_| mac_is_seen));
        let arrival = pod::Arrival::plan(&mut host, &config, &bridge, &result, final_mac);
        let pod_mac = arrival.mac().unwrap_or(pair.pod_mac);
        call.step(&format!("reserve MAC {pod_mac} on bridge {}", bridge.name), || {
            place::hold(&mut host, &config, &bridge, &pair.host, pod_mac, mac.is_some())
        })?;
        let mut nft = Nft::new();
        if config.mac_spoof_check {
            call.step("set up the MAC check", || {
                check_mac(call, &mut nft, &owner, &pair.host.name, pod_mac)
            })?;
        }
        if config.isolated && config.layer3() {
            call.step("keep isolated pods apart", || {
                isolate(call, &mut nft, &owner, &pair.host.name, &addresses(&result))
            })?;
        }
        let inside = call.step(&format!("configure {} in the pod", call.ifname), || {
            pod::configure(call, &netns, &config, &mut pair, &result, arrival)
        })?;

        let mut interfaces = vec![described(&bridge), described(&pair.host), pair.described(call)];
        let vlan_gateway = call.step(&format!("make {} the gateway of the pods", bridge.name), || {
            gateway::ensure(call, &mut host, &config, &bridge, &gateways, &result)
        })?;
        interfaces.extend(vlan_gateway.iter().map(described));

        if config.ip_masq && config.layer3() {
            call.step("set up masquerading", || masquerade(call, &mut nft, &config, &owner, &result))?;
        }

        if let Some(mut inside) = inside {
            let what = format!("wait until {} is up", pair.host.name);
            call.step(&what, || host.wait_oper_up(pair.host.index, UP_TIMEOUT))?;
            let what = format!("announce the addresses of {}", call.ifname);
            call.step(&what, || pod::announce(&mut inside, &config, &pair, arrival))?;
            call.step(&format!("wait until the addresses of {} can be used", call.ifname), || {
                pod::wait(&mut inside, arrival, &pair, &result, UP_TIMEOUT)
            })?;
        }
        if let (Some(gateway), Some(vlan)) = (&vlan_gateway, config.vlan) {
            vlan_gateway::keep(&mut host, gateway, vlan)?;
        }
        Ok(completed(result, interfaces, config.dns))
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        remove::attachment(call)
    }

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
        if config.ip_masq && config.layer3() {
            masquerade::status(config.ip_masq_backend.as_deref())?;
        }
        if config.mac_spoof_check {
            spoof::status(&mut Nft::new())?;
        }
        if config.isolated && config.layer3() {
            isolation::status(&mut Nft::new())?;
        }
        match &config.ipam {
            Some(ipam) => delegate::call(call, ipam, Command::Status),
            None => Ok(()),
        }
    }
}

/// Makes the pod's port on its bridge. A bridge that is removed with its last pod is locked from the
/// look for it until the port exists. A concurrent DEL then sees the port.
fn join(
    call: &Call,
    host: &mut Netlink,
    config: &Config,
    owner: &Owner,
    netns: &NetNs,
    mac: Option<Mac>,
) -> Result<(Link, Pair), Error> {
    let mut lock = config.remove_unused.then(unused::lock).transpose()?;
    let what = format!("set up bridge {}", config.bridge);
    loop {
        let bridge = call.step(&what, || bridge::ensure(call, host, config, None))?;
        // Another network's configuration may have marked the bridge for removal.
        if lock.is_none() && ours::goes(&bridge) {
            lock = Some(unused::lock()?);
            continue;
        }
        let pair = format!("make the veth pair of {}", call.ifname);
        let made = call.step(&pair, || pair::create(call, host, config, &bridge, owner, netns, mac));
        match made {
            // The bridge was removed before the pair was made. Its alias didn't announce that yet.
            Err(_) if lock.is_none() && unused::is_gone(host, &bridge)? => lock = Some(unused::lock()?),
            made => return Ok((bridge, made?)),
        }
    }
}

fn addresses(result: &CniResult) -> Vec<IpAddr> {
    result.ips.iter().map(|ip| ip.address.ip()).collect()
}

fn isolate(call: &Call, nft: &mut Nft, owner: &Owner, port: &str, addrs: &[IpAddr]) -> Result<(), Error> {
    let undo = isolation::add(nft, owner, port, addrs)?;
    call.undo.push("stop isolating the pod", move || undo.run());
    Ok(())
}

fn check_mac(call: &Call, nft: &mut Nft, owner: &Owner, port: &str, mac: Mac) -> Result<(), Error> {
    let undo = spoof::add(nft, owner, port, mac)?;
    call.undo.push("remove the MAC check", move || undo.run());
    Ok(())
}

fn masquerade(
    call: &Call,
    nft: &mut Nft,
    config: &Config,
    owner: &Owner,
    result: &CniResult,
) -> Result<(), Error> {
    let addrs = config.ip_masq_families.of(result.ips.iter().map(|ip| ip.address));
    let backend = masquerade::choose(config.ip_masq_backend.as_deref(), nft)?;
    let undo = masquerade::add(backend, nft, owner, &addrs)?;
    call.undo.push("remove masquerading", move || undo.run());
    Ok(())
}
