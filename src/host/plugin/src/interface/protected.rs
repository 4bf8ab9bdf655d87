//! Addresses that the host needs itself. The author of a pod may choose its address (capability `ips`), and so may any
//! host on the LAN that answers by DHCP. So a plugin asks here before it gives the host a route to a pod.

use std::net::IpAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use cnimble_cni::{Code, Error, json};
use cnimble_netlink::link::{Link, Mac};
use cnimble_netlink::neigh::{self, Neighbour};
use cnimble_netlink::route::Towards;
use cnimble_netlink::{IfPresent as _, Netlink};

use crate::Call;

/// The time for which a neighbour may answer. The kernel asks at its beginning.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// The pause between two looks at the neighbour table.
const PAUSE: Duration = Duration::from_millis(10);

/// Returns whether the runtime asks for an address, which it may have from the author of the pod.
///
/// # Errors
/// Fails with code 4 for a malformed CNI_ARGS.
pub fn is_requested(call: &Call) -> Result<bool, Error> {
    let document = call.config.document();
    let of_args = json::get(document, "args").and_then(|args| json::get(args, "cni"));
    let holders = [json::get(document, "runtimeConfig"), of_args];
    let mut lists = holders.into_iter().flatten().filter_map(|holder| json::get(holder, "ips")?.as_array());
    Ok(lists.any(|ips| !ips.is_empty()) || call.args()?.get("IP").is_some_and(|ip| !ip.is_empty()))
}

/// Returns whether an address is a link-local one of IPv6 (fe80::/10, RFC 4291, section 2.5.6). Each link has its own.
pub fn is_of_one_link(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Returns why the host needs an address itself, as the end of a sentence, or `None`. `towards` is the host's route to
/// the address; without a route the host does not need it.
///
/// # Errors
/// Fails if the kernel does not list the host's routes.
pub fn find_reason(
    host: &mut Netlink,
    ip: IpAddr,
    towards: Option<&Towards>,
) -> Result<Option<&'static str>, Error> {
    let Some(towards) = towards.filter(|_| !is_of_one_link(ip)) else { return Ok(None) };
    if towards.is_own() {
        return Ok(Some("is an address of the host"));
    }
    // A next hop is on a link, or leads to itself (`onlink`). For other addresses no list of routes is needed, which may
    // be long.
    let may_be_next_hop = towards.is_on_link() || towards.via == Some(ip);
    if may_be_next_hop && host.next_hops()?.contains(&ip) {
        return Ok(Some("is a next hop of the host's routes"));
    }
    Ok(None)
}

/// Fails with code 102 if a shim (`hostShim`) must not lead the host to the address of a pod on the master. `pod` is the
/// hardware address of the pod's interface. The host would send packets for another host, or for itself, to the pod.
pub(super) fn check_on_link(
    netlink: &mut Netlink,
    master: &Link,
    pod: Option<Mac>,
    ip: IpAddr,
) -> Result<(), Error> {
    let foreign = "IPAM must give the pod an address of its own; a DHCP server may be any host on the LAN";
    let towards = netlink.route_towards(ip)?;
    // An address on a link that is down has no route.
    if netlink.all_addrs()?.iter().any(|own| own.net.ip() == ip) {
        return Err(refusal(ip, "is an address of the host", foreign));
    }
    if let Some(why) = find_reason(netlink, ip, towards.as_ref())? {
        return Err(refusal(ip, why, foreign));
    }
    let name = &master.name;
    let why = if let Some(via) = towards.and_then(|towards| towards.via) {
        format!("is reached by way of {via}, not on the link of {name}")
    } else if let Some(towards) = towards.filter(Towards::is_on_link) {
        if towards.index == master.index {
            return refuse_taken(netlink, master, pod, ip);
        }
        let by = netlink.link_at(towards.index).map_or_else(|_| "another link".to_owned(), |link| link.name);
        format!("is reached by {by}, not on the link of {name}")
    } else if towards.is_some() {
        "is no address of a single host".to_owned()
    } else {
        format!("is not known to be on the link of {name}: the host has no route to it")
    };
    let hint = format!("hint: `ip route add NETWORK dev {name}` if the network of the pods is there");
    Err(refusal(ip, &why, &hint))
}

/// Returns the error that a shim must not lead to an address. `why` goes on after the address.
fn refusal(ip: IpAddr, why: &str, hint: &str) -> Error {
    Error::new(Code::CONFLICT, format!("hostShim: {ip} {why}")).details(hint)
}

/// Returns the neighbour with this address on the master's link, and its hardware address. Returns `None` without one,
/// and if the hardware address is that of the pod's interface.
fn other_host(
    netlink: &mut Netlink,
    master: &Link,
    pod: Option<Mac>,
    ip: IpAddr,
) -> Result<Option<(Neighbour, Mac)>, Error> {
    let Some(entry) = netlink.neighbour_entry(master.index, ip)? else { return Ok(None) };
    Ok(entry.mac.filter(|mac| Some(*mac) != pod).map(|mac| (entry, mac)))
}

/// Fails with code 102 if another host on the master's link has the address. The kernel's neighbour table names it: it
/// has answered lately, or is asked now. Nobody answers for a former pod that had the address with another hardware
/// address.
fn refuse_taken(netlink: &mut Netlink, master: &Link, pod: Option<Mac>, ip: IpAddr) -> Result<(), Error> {
    let Some((entry, mac)) = other_host(netlink, master, pod, ip)? else { return Ok(()) };
    if !entry.is_known() && !entry.is_failed() {
        // The entry may have gone.
        netlink.execute(neigh::probe(master.index, &master.name, ip, mac)).if_present()?;
        let end = Instant::now() + ANSWER_TIME;
        while other_host(netlink, master, pod, ip)?
            .is_some_and(|(entry, _)| !entry.is_known() && !entry.is_failed())
            && Instant::now() < end
        {
            sleep(PAUSE);
        }
    }
    match other_host(netlink, master, pod, ip)?.filter(|(entry, _)| entry.is_known()) {
        None => Ok(()),
        Some((_, mac)) => {
            let why = format!("hostShim: another host on the link of {} has {ip}", master.name);
            Err(Error::new(Code::CONFLICT, why).details(format!(
                "its hardware address is {mac}; hint: if that was the pod itself on another node, try again in a minute"
            )))
        }
    }
}
