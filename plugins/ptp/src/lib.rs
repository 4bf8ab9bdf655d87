//! The CNI plugin `ptp`: each pod on a veth pair of its own, routed by the host.
//!
//! There is no network of pods that frames could cross: what a pod sends goes to the host,
//! even to a neighbour of the same subnet, and the host routes it. The pod's gateway is an
//! address of the host's end, and every pair has the same one.
//!
//! ADD, in order, each step with its undo:
//!
//! 1. a veth pair, whose far end is born in the pod ([`cnimble_plugin::interface::pair`]);
//! 2. addresses from IPAM, which has to name a gateway for each (`path`);
//! 3. the pod's interface: addresses, up, everything by way of the gateway (`pod`);
//! 4. the host's end: the gateway's addresses, a route to each address of the pod
//!    (`host`), and forwarding;
//! 5. masquerading ([`cnimble_rules`]);
//! 6. until both ends are operationally up.
//!
//! DEL needs neither the namespace nor a prevResult: the pair is found by its name and its
//! alias, and takes its addresses and routes along, in the pod and on the host.

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
use cnimble_plugin::interface::host::forward;
use cnimble_plugin::interface::pair::{self, NewPair, Pair};
use cnimble_plugin::interface::{completed, described, usable_netlink};
use cnimble_plugin::{Call, Caps, Command, Place, Plugin, delegate};
use cnimble_rules::masquerade;

use config::Config;

/// How long an end may take to come up. It takes microseconds unless the machine is stuck.
const UP_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the pod's interface stands in the result.
const POD_INTERFACE: u32 = 1;

/// The plugin.
pub static PLUGIN: &dyn Plugin = &Ptp;

struct Ptp;

impl Plugin for Ptp {
    fn name(&self) -> &'static str {
        "ptp"
    }

    fn needs(&self) -> Caps {
        Caps::NET_ADMIN.and(Caps::SYS_ADMIN)
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

        let pair = call.step(&format!("make the veth pair of {}", call.ifname), || {
            let new = NewPair { mtu: config.mtu, ..NewPair::default() };
            let pair = pair::create(call, &mut host, &owner, &netns, &new)?;
            host.execute(pair.claim(&owner))?;
            Ok::<Pair, Error>(pair)
        })?;

        let mut result = delegate::add(call, &config.ipam)?;
        let paths = path::paths(&mut result, &config.ipam)?;
        let addrs: Vec<IpNetwork> = result.ips.iter().map(|ip| ip.address).collect();

        let mut inside = call.step(&format!("configure {} in the pod", call.ifname), || {
            pod::configure(call, &netns, &pair, &paths, &result)
        })?;
        call.step(&format!("configure {}", pair.host.name), || {
            host::configure(&mut host, &pair.host, &paths)
        })?;
        call.step("switch IP forwarding on", || forward(call, &mut host, &addrs))?;
        if config.ip_masq {
            call.step("set up masquerading", || masquerade(call, &mut Nft::new(), &config, &addrs))?;
        }
        // Linux 5.10 and 6.1 take a veth whose other end has the same index for a link without a lower one, and take
        // up to a second to call the end that was set up last operational, which it has been all along. The
        // pod's was set up first: the kernel hurries to let it send.
        let alike = pair.host.index == pair.pod_index;
        if !alike {
            let what = format!("wait until {} is up", pair.host.name);
            call.step(&what, || host.wait_oper_up(pair.host.index, UP_TIMEOUT))?;
        }
        if alike || addrs.iter().any(IpNetwork::is_ipv6) {
            // IPv6 addresses are usable when the kernel has seen the link up.
            let what = format!("wait until {} in the pod is up", call.ifname);
            call.step(&what, || inside.wait_oper_up(pair.pod_index, UP_TIMEOUT))?;
        }

        let interfaces = vec![described(&pair.host), pair.described(call)];
        Ok(completed(result, interfaces, config.dns))
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        remove::attachment(call)
    }

    fn check(&self, call: &Call, prev: &CniResult) -> Result<(), Error> {
        let config = Config::read(&call.config)?;
        // First what was handed to us: a bad prevResult or namespace is no lost lease.
        check::attachment(call, &config, prev)?;
        call.expects(Place::Host, delegate::call(call, &config.ipam, Command::Check))
    }

    fn gc(&self, call: &Call, valid: &[Attachment]) -> Result<(), Error> {
        remove::network(call, valid)
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        let config = Config::read(&call.config)?;
        usable_netlink()?;
        if config.ip_masq {
            masquerade::status(config.ip_masq_backend.as_deref())?;
        }
        delegate::call(call, &config.ipam, Command::Status)
    }
}

fn masquerade(call: &Call, nft: &mut Nft, config: &Config, addrs: &[IpNetwork]) -> Result<(), Error> {
    let backend = masquerade::choose(config.ip_masq_backend.as_deref(), nft)?;
    let addrs = config.ip_masq_families.of(addrs.iter().copied());
    let undo = masquerade::add(backend, nft, &call.owner(), &addrs)?;
    call.undo.push("remove masquerading", move || undo.run());
    Ok(())
}
