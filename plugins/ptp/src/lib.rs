//! The CNI plugin `ptp`: each pod on a veth pair of its own, routed by the host.
//!
//! There is no network of pods that frames could cross: what a pod sends goes to the host,
//! even to a neighbour of the same subnet, and the host routes it. The pod's gateway is an
//! address of the host's end, and every pair has the same one.
//!
//! ADD, in order, each step with its undo:
//!
//! 1. a veth pair, whose far end is born in the pod ([`cnimble::veth::pair`]);
//! 2. addresses from IPAM, which has to name a gateway for each (`path`);
//! 3. the pod's interface: addresses, up, everything by way of the gateway (`pod`);
//! 4. the host's end: the gateway's addresses, a route to each address of the pod
//!    (`host`), and forwarding;
//! 5. masquerading ([`cnimble::rules`]);
//! 6. until both ends are operationally up.
//!
//! DEL needs neither the namespace nor a prevResult: the pair is found by its name and its
//! alias, and takes its addresses and routes along, in the pod and on the host.

mod check;
mod config;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod host;
mod path;
mod pod;
mod remove;

use std::time::Duration;

use cnimble::net::Netlink;
use cnimble::net::nft::Nft;
use cnimble::plugin::{Call, Command, Plugin, delegate};
use cnimble::rules::{Owner, masquerade};
use cnimble::spec::{CniResult, Code, Error, Version};
use cnimble::veth::pair::{self, NewPair, Pair};
use cnimble::veth::{described, host::forward};
use ipnetwork::IpNetwork;

use config::Config;

/// How long an end may take to come up. It takes microseconds unless the machine is stuck.
const UP_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the pod's interface stands in the result.
const POD_INTERFACE: u32 = 1;

/// The plugin.
#[derive(Debug)]
pub struct Ptp;

impl Plugin for Ptp {
    fn name(&self) -> &'static str {
        "ptp"
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let config = Config::read(&call.config)?;
        let netns = call.open_netns()?;
        let mut host = Netlink::open()?;
        let owner = owner(call);

        let pair = call.step("set up the veth pair", || {
            let new = NewPair { mtu: config.mtu, ..NewPair::default() };
            let pair = pair::create(call, &mut host, &owner, &netns, &new)?;
            host.execute(pair.claim(&owner))?;
            Ok::<Pair, Error>(pair)
        })?;

        let mut result = delegate::add(call, &config.ipam)?;
        let paths = path::paths(&mut result, &config.ipam)?;
        let addrs: Vec<IpNetwork> = result.ips.iter().map(|ip| ip.address).collect();

        let mut inside = call.step(&format!("configure {} in the pod", call.ifname), || {
            pod::configure(&netns, &pair, &paths, &result)
        })?;
        call.step(&format!("configure {}", pair.host.name), || {
            host::configure(&mut host, &pair.host, &paths)
        })?;
        call.step("switch forwarding on", || forward(call, &mut host, &addrs))?;
        if config.ip_masq {
            call.step("set up masquerading", || masquerade(call, &config, &owner, &addrs))?;
        }
        call.step("wait for the link", || host.wait_oper_up(pair.host.index, UP_TIMEOUT))?;
        if addrs.iter().any(IpNetwork::is_ipv6) {
            // IPv6 addresses are usable when the kernel has seen the link up.
            call.step("wait for the link in the pod", || inside.wait_oper_up(pair.pod_index, UP_TIMEOUT))?;
        }

        result.interfaces = vec![described(&pair.host), pair.described(call)];
        if call.config.version < Version::V1_1_0 {
            // The key came with 1.1.0.
            for interface in &mut result.interfaces {
                interface.mtu = None;
            }
        }
        if !config.dns.is_empty() {
            result.dns = config.dns;
        }
        Ok(result)
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        remove::attachment(call, &owner(call))
    }

    fn check(&self, call: &Call) -> Result<(), Error> {
        let config = Config::read(&call.config)?;
        // First what was handed to us: a bad prevResult or namespace is no lost lease.
        check::attachment(call, &config, &owner(call))?;
        delegate::call(call, &config.ipam, Command::Check)
    }

    fn gc(&self, call: &Call) -> Result<(), Error> {
        remove::network(call)
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        let config = Config::read(&call.config)?;
        let unusable = |err: &dyn std::fmt::Display, what: &str| {
            Error::new(Code::NOT_AVAILABLE, format!("{what} can't be used")).details(err.to_string())
        };
        Netlink::open().map_err(|err| unusable(&err, "netlink"))?;
        if config.ip_masq {
            let mut nft = Nft::new();
            let backend = masquerade::choose(config.ip_masq_backend.as_deref(), &mut nft)
                .map_err(|err| unusable(&err, "masquerading"))?;
            masquerade::status(backend, &mut nft)?;
        }
        delegate::call(call, &config.ipam, Command::Status)
    }
}

fn owner(call: &Call) -> Owner {
    Owner { network: call.config.name.clone(), attachment: call.attachment() }
}

fn masquerade(call: &Call, config: &Config, owner: &Owner, addrs: &[IpNetwork]) -> Result<(), Error> {
    let mut nft = Nft::new();
    let backend = masquerade::choose(config.ip_masq_backend.as_deref(), &mut nft)?;
    let undo = masquerade::add(backend, &mut nft, owner, addrs)?;
    call.undo.push("remove masquerading", move || undo.run());
    Ok(())
}
