//! A CNI plugin that makes a pod's interface: a veth pair, with the addresses of an IPAM plugin.
//!
//! `{"type": "wire", "ipam": {"type": "host-local", "subnet": "10.9.0.0/24"}}`. The host gets neither an address nor a
//! route.

use cnimble_plugin::cni::{CniResult, Error, Interface, hash16};
use cnimble_plugin::netlink::link::{self, Change, NewVeth};
use cnimble_plugin::netlink::{NetNs, Netlink, addr};
use cnimble_plugin::{Call, Caps, Command, Plugin, Role, delegate};
use std::os::fd::AsFd;

struct Wire;

impl Plugin for Wire {
    fn name(&self) -> &'static str {
        "wire"
    }

    fn role(&self) -> Role {
        Role::Main
    }

    fn needs(&self) -> Caps {
        Caps::NET_ADMIN.and(Caps::SYS_ADMIN)
    }

    fn read_config(&self, call: &Call) -> Result<(), Error> {
        ipam(call).map(drop)
    }

    fn add(&self, call: &Call) -> Result<CniResult, Error> {
        let (ipam, netns, host_end) = (ipam(call)?, call.open_netns()?, host_end(call));
        call.step("make the veth pair", || make(&host_end, &call.ifname, &netns))?;
        call.undo.push("remove the veth pair", move || remove(&host_end));
        let mut result = delegate::assigned(call, ipam)?.result;
        let mut pod = Netlink::open_in(&netns)?;
        let inner = pod.link(&call.ifname)?;
        for ip in &mut result.ips {
            ip.interface = Some(0);
            let request = addr::add(inner.index, &call.ifname, ip.address);
            call.step("add the address", || pod.execute(request))?;
        }
        let up = Change { up: Some(true), ..Change::default() };
        call.step("set the interface up", || pod.execute(link::set(inner.index, &call.ifname, &up)))?;
        let mac = inner.mac.map(|mac| mac.to_string()).unwrap_or_default();
        result.interfaces = vec![Interface::new(call.ifname.as_str(), mac, call.netns.as_str())];
        Ok(result)
    }

    fn del(&self, call: &Call) -> Result<(), Error> {
        remove(&host_end(call))?;
        delegate::call(call, ipam(call)?, Command::Del)
    }

    fn check(&self, call: &Call, prev: &CniResult) -> Result<(), Error> {
        let mut pod = Netlink::open_in(&call.open_netns()?)?;
        let Some(inner) = pod.find_link(&call.ifname)? else {
            return Err(Error::check(format!("{} is missing", call.ifname)));
        };
        let present = pod.addrs(inner.index)?;
        match prev.ips.iter().find(|ip| !present.iter().any(|addr| addr.net == ip.address)) {
            Some(ip) => Err(Error::check(format!("{} has no address {}", call.ifname, ip.address))),
            None => delegate::call(call, ipam(call)?, Command::Check),
        }
    }
}

fn ipam(call: &Call) -> Result<&str, Error> {
    call.config.ipam().ok_or_else(|| Error::config("missing ipam.type"))
}

/// The name depends on nothing but the attachment, so that DEL finds it after a crash.
fn host_end(call: &Call) -> String {
    format!("w{:.14}", hash16(&call.owner().tag()))
}

fn make(host_end: &str, ifname: &str, netns: &NetNs) -> Result<(), Error> {
    let veth = NewVeth {
        name: host_end,
        mac: None,
        master: None,
        up: true,
        mtu: None,
        peer_name: ifname,
        peer_mac: None,
        peer_ns: netns.as_fd(),
    };
    Ok(Netlink::open()?.execute(link::add_veth(&veth))?)
}

fn remove(host_end: &str) -> Result<(), Error> {
    let mut host = Netlink::open()?;
    match host.find_link(host_end)? {
        Some(link) => Ok(host.execute(link::del(link.index, &link.name))?),
        None => Ok(()),
    }
}

fn main() {
    std::process::exit(cnimble_plugin::main(&[&Wire], std::env::args_os()));
}
