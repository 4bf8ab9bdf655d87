//! The CNI plugin `ptp`: gives each pod its own veth pair, routed by the host. All packets of a pod pass the host, even
//! those to a neighbour in the same subnet. The pod's gateway is an address of the host's end, the same one on every
//! pair.
//!
//! ADD takes these steps in order, each with its undo:
//! 1. Make a veth pair with its far end in the pod ([`cnimble_plugin::interface::pair`]).
//! 2. Get addresses from IPAM, each with a gateway (`path`).
//! 3. Add addresses to the pod's interface, set it up, and route everything through the gateway (`pod`).
//! 4. Add the gateway's addresses and routes to the pod on the host's end (`host`), and enable forwarding.
//! 5. Set up masquerading ([`cnimble_rules`]).
//! 6. Wait until both ends are operationally up.
//!
//! DEL finds the pair by its name and alias. The kernel removes addresses and routes with it.

mod check;
mod config;
mod host;
mod path;
mod pod;
mod remove;

use std::time::Duration;

use ipnetwork::IpNetwork;

use cnimble_cni::{Attachment, CniResult, Error};
use cnimble_netlink::Netlink;
use cnimble_netlink::nft::Nft;
use cnimble_plugin::interface::host::{forward, forward_from};
use cnimble_plugin::interface::pair::{self, NewPair, Pair};
use cnimble_plugin::interface::{completed, described, usable_netlink};
use cnimble_plugin::{Call, Command, Place, Plugin, Role, delegate};
use cnimble_rules::filters::{self, PodRules};
use cnimble_rules::masquerade;

use config::Config;

/// The time to wait until the host's end is up. That takes microseconds unless the machine is stuck.
const UP_TIMEOUT: Duration = Duration::from_secs(10);

pub static PLUGIN: &dyn Plugin = &Ptp;

struct Ptp;

impl Plugin for Ptp {
    fn name(&self) -> &'static str {
        "ptp"
    }

    fn role(&self) -> Role {
        Role::Main
    }

    fn starts_programs(&self, call: &Call) -> bool {
        masquerade::may_run_iptables(&call.config, call.command)
    }

    fn read_config(&self, call: &Call) -> Result<(), Error> {
        Config::read(&call.config).map(drop)
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let config = Config::read(&call.config)?;
        let netns = call.open_netns()?;
        let mut host = Netlink::open()?;
        let owner = call.owner();
        let mtu = config.mtu.of_new(&mut host)?;

        let pair = call.step(&format!("make the veth pair of {}", call.ifname), || {
            let new = NewPair { mtu, ..NewPair::default() };
            let pair = pair::create(call, &mut host, &owner, &netns, &new)?;
            host.execute(pair.claim(&owner))?;
            Ok::<Pair, Error>(pair)
        })?;

        let result = delegate::assigned(call, &config.ipam)?.result;
        config.mtu.carries(mtu, &result)?;
        let paths = path::paths(&result, &config.ipam)?;
        host::refuse_protected(&mut host, &paths)?;
        let addrs: Vec<IpNetwork> = result.ips.iter().map(|ip| ip.address).collect();

        let mut inside = call.step(&format!("configure {} in the pod", call.ifname), || {
            pod::configure(call, &netns, &pair, &paths, &result)
        })?;
        call.step(&format!("configure {}", pair.host.name), || {
            host::configure(&mut host, &pair.host, &paths)
        })?;
        call.step("switch IP forwarding on", || {
            forward(call, &mut host, &addrs)?;
            forward_from(&pair.host, &addrs)
        })?;
        if config.masquerade.wanted {
            call.step("set up masquerading", || masquerade(call, &mut Nft::new(), &config, &addrs))?;
        }
        // If both ends have the same index, Linux 5.10 and 6.1 treat the veth as a link without a lower one. They may
        // take a second to report the end that was set up last, although it works at once. The pod's end was set up
        // first and is reported fast, so that one is waited for.
        let alike = pair.host.index == pair.pod_index;
        if !alike {
            let what = format!("wait until {} is up", pair.host.name);
            call.step(&what, || host.wait_oper_up(pair.host.index, UP_TIMEOUT))?;
        }
        if alike || addrs.iter().any(IpNetwork::is_ipv6) {
            // IPv6 addresses are usable only when the link is up.
            let what = format!("wait until {} in the pod is up", call.ifname);
            call.step(&what, || inside.wait_oper_up(pair.pod_index, UP_TIMEOUT))?;
        }

        let interfaces = vec![described(&pair.host), pair.described(call)];
        Ok(completed(result, interfaces, config.dns))
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        remove::attachment(call)
    }

    /// Compares the attachment, and asks IPAM only if that succeeds.
    fn check(&self, call: &Call, prev: &CniResult) -> Result<(), Error> {
        let config = Config::read(&call.config)?;
        // The plugin's own CHECK comes first and ends the CHECK: a difference there says nothing about the lease.
        check::attachment(call, &config, prev)?;
        call.expects(Place::Host, delegate::call(call, &config.ipam, Command::Check))
    }

    fn gc(&self, call: &Call, valid: &[Attachment]) -> Result<(), Error> {
        remove::network(call, valid)
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        let config = Config::read(&call.config)?;
        usable_netlink()?;
        if config.masquerade.wanted {
            masquerade::status(config.masquerade.backend.as_deref())?;
        }
        delegate::call(call, &config.ipam, Command::Status)
    }
}

/// Adds the masquerading of `addrs`, with its undo.
fn masquerade(call: &Call, nft: &mut Nft, config: &Config, addrs: &[IpNetwork]) -> Result<(), Error> {
    let wanted = PodRules {
        masquerade: Some(config.masquerade.for_addresses(addrs.iter().copied())),
        ..PodRules::default()
    };
    let undo = filters::add(nft, &call.owner(), &wanted)?;
    call.undo.push("remove masquerading", move || undo.run());
    Ok(())
}
