//! The shim of `hostShim` leads the host to a pod on a macvlan or an ipvlan. The kernel passes no packets between a master
//! and the interfaces on it. So each pod gets a second interface, in the host's namespace. Its alias names the owner. It
//! has a route to each address of the pod:
//! ```text
//! 192.0.2.10 dev shim… scope link src 192.0.2.1   (an address of the master)
//! 2001:db8::10 dev shim… src fe80::…              (an address of the shim)
//! ```
//! With `arp_filter` the shim answers its pod only, so other hosts see one hardware address for the master's address.
//! Neighbour discovery has no such filter, so an IPv6 pod sees a link-local address of the shim instead.
//!
//! A DHCP server on the LAN, which may be any host there, or the author of the pod may have chosen the address. So the
//! host's route to it must lead to the master's link already, and no other host on that link may have it.

use std::net::{IpAddr, Ipv6Addr};

use ipnetwork::{IpNetwork, Ipv6Network};
use nix::errno::Errno;

use cnimble_cni::{Attachment, CniResult, Code, Error, Owner, PluginConfig, cidr, hash16};
use cnimble_netlink::addr::{self, Addr};
use cnimble_netlink::kind::{self, IpvlanMode, Kind, Macvlan, MacvlanMode, NewLink};
use cnimble_netlink::link::{self, ArpSwitch, Change, Link, Mac};
use cnimble_netlink::route::{self, NewRoute};
use cnimble_netlink::{Netlink, neigh, sysctl};

use super::{check, host, master, protected, remove};
use crate::{Call, Place};

/// The first address of the network of link-local addresses (RFC 4291, section 2.5.6).
const LINK_LOCAL: u128 = 0xfe80 << 112;

/// The settings of a shim, from a configuration.
#[derive(Debug, Clone, Copy)]
pub struct Shim {
    kind: Kind,
    /// The MTU in bytes, or `None` for the master's.
    mtu: Option<u32>,
}

impl Shim {
    /// Reads the key `hostShim`. Returns `None` if it is not true. `kind` and `mtu` are those of the pod's interface,
    /// and `in_pod` says where its master is. Fails with code 7 if the interface can have no shim.
    pub fn read(
        config: &PluginConfig,
        kind: Kind,
        mtu: Option<u32>,
        in_pod: bool,
    ) -> Result<Option<Self>, Error> {
        if super::flag(config, "hostShim")? != Some(true) {
            return Ok(None);
        }
        match kind {
            _ if in_pod => Err(refusal("the master is in the pod (linkInContainer)")),
            Kind::Macvlan(Macvlan { mode: MacvlanMode::Bridge, .. }) => {
                let kind = Kind::Macvlan(Macvlan { mode: MacvlanMode::Bridge, bcqueuelen: None });
                Ok(Some(Shim { kind, mtu }))
            }
            Kind::Macvlan(_) => Err(refusal("only macvlans of the mode bridge hear each other")),
            kind => Ok(Some(Shim { kind, mtu })),
        }
    }
}

/// Returns the shim's name: `shim` and eleven hexadecimal digits of a hash of the attachment.
fn name(owner: &Owner) -> String {
    format!("shim{}", hash16(&owner.tag()).get(..11).unwrap_or_default())
}

/// Makes the shim, with its undo. `pod` is the hardware address of the pod's interface, if it is known. Fails with code
/// 100 if the master has no address in a network of the pod. Fails with code 102 if the host has another route to the
/// pod, or needs the address itself.
pub(super) fn add(
    call: &Call,
    shim: Shim,
    master: &Link,
    pod: Option<Mac>,
    result: &CniResult,
) -> Result<(), Error> {
    let (owner, mut netlink) = (call.owner(), Netlink::open()?);
    let Shim { kind, mtu } = shim;
    let name = name(&owner);
    let undone = owner.clone();
    call.undo.push(format!("remove the shim {name}"), move || delete(&mut Netlink::open()?, &undone));
    let wanted = NewLink { parent: Some(master.index), mtu, ..NewLink::new(&name, kind) };
    let shim = match netlink.create_link(kind::add(&wanted)) {
        // An ADD that was killed has left it, or a repair replaces it.
        Err(err) if err.is(Errno::EEXIST) => {
            delete(&mut netlink, &owner)?;
            netlink.create_link(kind::add(&wanted))?
        }
        made => made?,
    };
    let (alias, addrgenmode_none) = (owner.comment(), shim.accept_ra.is_some());
    let claimed = Change { alias: Some(&alias), addrgenmode_none, ..Change::default() };
    netlink.execute(link::set(shim.index, &name, &claimed))?;
    host::ignore_router_advertisements_on_new(&shim)?;
    let routes = routes(&owner, shim.index, master, &netlink.addrs(master.index)?, result)?;
    result
        .ips
        .iter()
        .try_for_each(|ip| protected::check_on_link(&mut netlink, master, pod, ip.address.ip()))?;
    let up = Change { up: Some(true), ..Change::default() };
    let mut requests =
        vec![link::set_arp(shim.index, &name, ArpSwitch::Filter), link::set(shim.index, &name, &up)];
    if routes.iter().any(|route| route.dst.is_ipv6()) {
        host::switch_ipv6_on(&shim)?;
        requests.push(addr::add(shim.index, &name, link_local(&owner)));
    }
    if let (Kind::Ipvlan(IpvlanMode::L2), Some(mac)) = (kind, shim.mac) {
        let ipv4 = || routes.iter().map(|route| route.dst.ip()).filter(IpAddr::is_ipv4);
        ipv4().next().map_or(Ok(()), |_| answers_arrive(&master.name))?;
        // The pod's answers by ARP reach the master only.
        requests.extend(ipv4().map(|ip| neigh::add(shim.index, &name, ip, mac)));
    }
    requests.extend(routes.iter().map(|wanted| route::add(wanted, &name)));
    netlink.execute_all(requests).map_err(|err| match err.errno {
        Errno::EEXIST => Error::new(Code::CONFLICT, "hostShim: the host has a route to the pod already")
            .details(format!("{err}; hint: `ip route get ADDRESS` tells by which interface")),
        _ => err.into(),
    })
}

/// Returns the shim's link-local address, made from a hash of the attachment.
fn link_local(owner: &Owner) -> IpNetwork {
    let id = u64::from_str_radix(&hash16(&owner.tag()), 16).unwrap_or(1);
    let ip = Ipv6Addr::from(LINK_LOCAL | u128::from(id));
    Ipv6Network::new(ip, 64).map_or_else(|_| cidr::host(ip.into()), IpNetwork::V6)
}

/// Returns the routes to the pod. `own` are the addresses of the master. Fails with code 100 if an IPv4 address of the
/// pod is in none of their networks.
fn routes(
    owner: &Owner,
    shim: u32,
    master: &Link,
    own: &[Addr],
    result: &CniResult,
) -> Result<Vec<NewRoute>, Error> {
    let mut routes = Vec::with_capacity(result.ips.len());
    for pod in result.ips.iter().map(|ip| ip.address) {
        let source = match own.iter().find(|own| pod.contains(own.net.ip())) {
            _ if pod.is_ipv6() => link_local(owner).ip(),
            Some(own) => own.net.ip(),
            None => {
                let msg = format!("hostShim: {} has no address in the network of {pod}", master.name);
                return Err(
                    Error::new(Code::KERNEL, msg).details("the pod answers to it; hint: give the master one")
                );
            }
        };
        routes.push(NewRoute { src: Some(source), ..NewRoute::to(cidr::host(pod.ip()), shim) });
    }
    Ok(routes)
}

/// Fails with code 100 if the master drops the packets of pods, which arrive there with ipvlan's mode `l2`: their way
/// back is another interface (`rp_filter`, Documentation/networking/ip-sysctl.rst).
fn answers_arrive(master: &str) -> Result<(), Error> {
    if read_rp_filter("all").max(read_rp_filter(master)) != "1" {
        return Ok(());
    }
    Err(Error::new(Code::KERNEL, format!("hostShim: rp_filter of {master} drops what pods answer"))
        .details(format!("hint: set net.ipv4.conf.{master}.rp_filter=2 on the host, or use the mode l3")))
}

/// Returns whether a link with the shim's name is the owner's.
fn is_of(owner: &Owner, link: &Link) -> bool {
    // An ADD may have been killed before it wrote the alias.
    owner.owns(&link.alias) || (link.alias.is_empty() && ["macvlan", "ipvlan"].contains(&link.kind.as_str()))
}

/// DEL: removes the attachment's shim, if it has one, with any configuration.
pub(super) fn delete(netlink: &mut Netlink, owner: &Owner) -> Result<(), Error> {
    match netlink.find_link(&name(owner))?.filter(|link| is_of(owner, link)) {
        Some(link) => remove::delete(netlink, &link),
        None => Ok(()),
    }
}

/// GC: removes the shims of attachments of the network that are not `valid`.
pub(super) fn stale(call: &Call, kind: Kind, valid: &[Attachment]) -> Result<(), Error> {
    remove::stale(&mut Netlink::open()?, kind.name(), &call.config.name, valid)
}

/// Returns the sysctl `rp_filter` of an interface or of `all`, or an empty text if it can't be read.
fn read_rp_filter(name: &str) -> String {
    sysctl::read(&format!("net/ipv4/conf/{name}/rp_filter")).unwrap_or_default()
}

/// CHECK: the shim is up, with a route to each address of the pod. A repair makes it again.
pub(super) fn check(
    call: &Call,
    shim: Shim,
    master: &master::MasterSelector,
    prev: &CniResult,
) -> Result<(), Error> {
    let (owner, ours) = (call.owner(), check::of_this_interface(call, prev));
    let told = prev.interfaces.iter().find(|told| told.name == call.ifname && told.sandbox == call.netns);
    let pod = told.and_then(|told| Mac::parse(&told.mac));
    call.wants(
        Place::Host,
        &mut Netlink::open()?,
        |netlink| verify(netlink, &owner, &ours),
        |netlink| add(call, shim, &master.find_link(netlink)?, pod, &ours),
    )
}

/// Fails with code 103 if the owner's shim is missing or down, or lacks a route to an address in the result.
fn verify(netlink: &mut Netlink, owner: &Owner, result: &CniResult) -> Result<(), Error> {
    let link = check::find_link(netlink, &name(owner), "on the host (hostShim)")?;
    if !link.up || !is_of(owner, &link) {
        return Err(Error::check(format!("interface {} (hostShim) is down, or another", link.name)));
    }
    let pods = result.ips.iter().map(|ip| ip.address.ip());
    let wanted: Vec<_> = pods.map(|ip| NewRoute::to(cidr::host(ip), link.index)).collect();
    check::routes(netlink, &link, &wanted, "on the host (hostShim)")
}

/// Returns the error that the interface of a configuration can have no shim.
fn refusal(why: &str) -> Error {
    Error::config("hostShim: impossible here").details(why)
}
