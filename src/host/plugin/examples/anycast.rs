//! A chained CNI plugin: gives a pod a service address on `lo`, for direct server return.
//!
//! `{"type": "anycast", "address": "192.0.2.80/32"}` behind `bridge`. The pod then accepts packets for the address,
//! and does not answer ARP requests for it.

use cnimble_plugin::cni::{Attachment, CniResult, Code, Error, IpNetwork, cidr::parse_cidr};
use cnimble_plugin::netlink::{NetNs, Netlink, addr, sysctl};
use cnimble_plugin::saved::{self, Saved};
use cnimble_plugin::{Call, Plugin, Role};

const ARP_IGNORE: &str = "net/ipv4/conf/all/arp_ignore";

struct Anycast;

impl Plugin for Anycast {
    fn name(&self) -> &'static str {
        "anycast"
    }

    fn role(&self) -> Role {
        Role::Chained
    }

    fn read_config(&self, call: &Call) -> Result<(), Error> {
        address(call).map(drop)
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let (address, netns, result) = (address(call)?, call.open_netns()?, call.previous()?);
        let before = netns.enter(|| sysctl::read(ARP_IGNORE))??;
        let saved = Saved::of_call(call, "anycast");
        call.step("save the sysctl", || saved.save(call, ARP_IGNORE, &before))?;
        call.step("ignore ARP requests", || netns.enter(|| sysctl::write(ARP_IGNORE, "1"))?)?;
        let again = call.open_netns()?;
        call.undo
            .push("answer ARP requests", move || Ok(again.enter(|| sysctl::write(ARP_IGNORE, &before))??));
        let mut netlink = Netlink::open_in(&netns)?;
        let lo = netlink.link("lo")?.index;
        call.step("add the address", || netlink.execute(addr::add(lo, "lo", address)))?;
        call.undo.push("remove the address", move || remove(&netns, address));
        Ok(result.clone())
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        let saved = Saved::of_call(call, "anycast");
        // A pod that is gone has taken its address and its sysctls along.
        if let Some(netns) = call.find_netns()? {
            if let Ok(address) = address(call) {
                remove(&netns, address)?;
            }
            for (key, before) in saved.read()? {
                netns.enter(|| sysctl::write(&key, &before))??;
            }
        }
        saved.remove()
    }

    fn gc(&self, call: &Call, valid: &[Attachment]) -> Result<(), Error> {
        saved::remove_others("anycast", &call.config.name, valid)
    }

    fn check(&self, call: &Call, _prev: &CniResult) -> Result<(), Error> {
        let (address, netns) = (address(call)?, call.open_netns()?);
        let mut netlink = Netlink::open_in(&netns)?;
        let lo = netlink.link("lo")?.index;
        if !netlink.addrs(lo)?.iter().any(|addr| addr.net == address) {
            return Err(Error::check(format!("lo has no address {address}")));
        }
        if netns.enter(|| sysctl::read(ARP_IGNORE))?? != "1" {
            return Err(Error::check(format!("the sysctl {ARP_IGNORE} is not 1")));
        }
        Ok(())
    }
}

fn address(call: &Call) -> Result<IpNetwork, Error> {
    let text = call.config.document()["address"].as_str().unwrap_or_default();
    parse_cidr(text)
        .ok_or_else(|| Error::new(Code::INVALID_CONFIG, format!("address: \"{text}\" is no CIDR")))
}

fn remove(netns: &NetNs, address: IpNetwork) -> Result<(), Error> {
    let mut netlink = Netlink::open_in(netns)?;
    let lo = netlink.link("lo")?.index;
    let found = netlink.addrs(lo)?.iter().any(|addr| addr.net == address);
    if found { Ok(netlink.execute(addr::del(lo, "lo", address))?) } else { Ok(()) }
}

fn main() {
    std::process::exit(cnimble_plugin::main(&[&Anycast], std::env::args_os()));
}
