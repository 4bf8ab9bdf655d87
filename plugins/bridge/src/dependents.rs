//! Finds the parts of the host that depend on an interface which is to become a port of a bridge (`uplink`). The host
//! itself gets no packets from a port. cnimble moves no address or route to the bridge, so such an interface is
//! refused.
//!
//! A DHCP client that waits for an answer has no address yet, but the kernel shows its socket. Without a carrier it has
//! no socket either. Then the state files of systemd-networkd and NetworkManager tell that these wait for one.

use std::net::IpAddr;
use std::path::Path;

use cnimble_cni::Error;
use cnimble_netlink::link::Link;
use cnimble_netlink::packet::{self, Listens};
use cnimble_netlink::route::{ANY_TABLE, NewRoute};
use cnimble_netlink::{Netlink, listeners};
use cnimble_os::files::{self, Links};
use cnimble_plugin::interface::protected;

const TCP: u8 = 6;
const UDP: u8 = 17;
/// The port of DHCP clients (RFC 2131).
const CLIENT_PORT: u16 = 68;

/// The directories with a state file for each interface, by its index.
const NETWORKD_LINKS: &str = "/run/systemd/netif/links";
const NETWORKD_LEASES: &str = "/run/systemd/netif/leases";
const NETWORK_MANAGER: &str = "/run/NetworkManager/devices";
/// The largest state file that is read, in bytes. Usual ones have less than a kilobyte.
const FILE_LIMIT: usize = 64 << 10;

/// A part of the host that depends on an interface.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Dependent {
    /// The end of a sentence that begins with the name of the interface, for the error text.
    pub(crate) what: String,
    /// A hint of what the administrator can do.
    pub(crate) hint: &'static str,
}

impl Dependent {
    /// Returns `Some`, because that is what each search returns.
    fn new(what: impl Into<String>, hint: &'static str) -> Option<Self> {
        Some(Dependent { what: what.into(), hint })
    }
}

/// Returns the first part of the host that is found to depend on the link, or `None`. Looks at the kernel's tables,
/// then at programs that listen, then at DHCP clients.
pub(crate) fn find_dependent(host: &mut Netlink, link: &Link) -> Result<Option<Dependent>, Error> {
    if let Some(found) = find_in_kernel(host, link)? {
        return Ok(Some(found));
    }
    match find_listener(host, link)? {
        Some(found) => Ok(Some(found)),
        None => find_client(link),
    }
}

/// Finds an address, a route, a nexthop object, a routing rule or a used neighbour entry of the host on the link. An
/// entry of a host counts also if it is stale. Failed ones and stale routers don't count.
/// Addresses and routes that the kernel makes for each link do not count.
fn find_in_kernel(host: &mut Netlink, link: &Link) -> Result<Option<Dependent>, Error> {
    let mut addrs = host.addrs(link.index)?.into_iter();
    if let Some(addr) = addrs.find(|addr| !protected::is_of_one_link(addr.net.ip())) {
        let hint =
            "a port gets no packets for its addresses; remove them, or give the bridge to the host yourself";
        return Ok(Dependent::new(format!("has the address {}", addr.net), hint));
    }
    if let Some(route) = host.routes(link.index, Some(ANY_TABLE))?.into_iter().find(is_of_host) {
        let via = route.via.map(|via| format!(" via {via}")).unwrap_or_default();
        let table = route.table.filter(|table| *table != MAIN).map(|table| format!(" in table {table}"));
        let what = format!("has the host's route to {}{via}{}", route.dst, table.unwrap_or_default());
        let hint =
            "the host would lose it; move the routes to another interface, or use another one for the pods";
        return Ok(Dependent::new(what, hint));
    }
    if host.next_hop_objects()?.iter().any(|hop| hop.index == link.index) {
        let hint = "`ip nexthop` lists it; move it to another interface, or use another one for the pods";
        return Ok(Dependent::new("has a nexthop object of the host", hint));
    }
    if let Some(priority) = host.rule_about(&link.name)? {
        let hint = "`ip rule` lists it; remove the rule, or use another interface for the pods";
        return Ok(Dependent::new(format!("is named by the host's rule of priority {priority}"), hint));
    }
    // The kernel has an entry for each IPv6 router that advertises itself. It is stale as long as nothing uses it.
    let entries = host.neighbour_entries(link.index)?;
    let used = entries.iter().find(|entry| !(entry.is_failed() || entry.is_router && entry.is_stale()));
    Ok(used.and_then(|entry| {
        let hint = "`ip neighbour` lists it; use another interface for the pods, or flush the table if nothing needs it";
        Dependent::new(format!("leads to {}, which the host knows there", entry.ip), hint)
    }))
}

/// The table that `ip route` shows (RT_TABLE_MAIN).
const MAIN: u32 = 254;

/// Returns true if the host needs the route. The kernel makes the route to fe80::/64 for each link, and older kernels
/// list the one to multicast addresses as well.
fn is_of_host(route: &NewRoute) -> bool {
    !protected::is_of_one_link(route.dst.ip()) && !route.dst.ip().is_multicast()
}

/// Finds a program that listens at an address of the link, which is link-local here, as a DHCPv6 client does.
fn find_listener(host: &mut Netlink, link: &Link) -> Result<Option<Dependent>, Error> {
    let own: Vec<IpAddr> = host.addrs(link.index)?.into_iter().map(|addr| addr.net.ip()).collect();
    for protocol in [UDP, TCP] {
        if let Some(found) =
            listeners::listeners(protocol, None)?.into_iter().find(|found| own.contains(&found.ip))
        {
            let hint = "`ss -lntup` names the program; stop it, or use another interface for the pods";
            return Ok(Dependent::new(
                format!("has a program at its address {}, port {}", found.ip, found.port),
                hint,
            ));
        }
    }
    Ok(None)
}

/// Finds a DHCP client of the link by its packet socket or by the state files of its program. A file that cannot be
/// read counts as missing. Fails with code 5 if the kernel does not list packet sockets.
fn find_client(link: &Link) -> Result<Option<Dependent>, Error> {
    let hint =
        "a port gets no answers of DHCP; stop the client for it, or use another interface for the pods";
    let sockets = packet::bound_to(link.index).map_err(|err| {
        Error::new(cnimble_cni::Code::IO, "uplink: list packet sockets").details(err.to_string())
    })?;
    // A program that records packets has the same socket as some clients. Only a client also has the UDP port.
    if sockets.contains(&Listens::Ipv4)
        || sockets.contains(&Listens::Everything) && !listeners::listeners(UDP, Some(CLIENT_PORT))?.is_empty()
    {
        return Ok(Dependent::new("has a DHCP client (`ss -0lp` names it)", hint));
    }
    if read_state(NETWORKD_LEASES, link).is_some()
        || read_state(NETWORKD_LINKS, link)
            .is_some_and(|text| text.lines().any(|line| line == "ADMIN_STATE=configuring"))
    {
        let hint =
            "`networkctl status` tells more; set Unmanaged=yes for it, or use another interface for the pods";
        return Ok(Dependent::new("is being configured by systemd-networkd", hint));
    }
    if read_state(NETWORK_MANAGER, link).is_some_and(|text| has_connection(&text)) {
        let hint = "`nmcli device set NAME managed no` frees it, or use another interface for the pods";
        return Ok(Dependent::new("has a connection of NetworkManager", hint));
    }
    Ok(None)
}

/// Reads the state file of the link in `dir`. Returns `None` if it cannot be read, or if it is larger than
/// [`FILE_LIMIT`].
fn read_state(dir: &str, link: &Link) -> Option<String> {
    let bytes = files::read(&Path::new(dir).join(link.index.to_string()), FILE_LIMIT, Links::Refuse).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns true if a state file of NetworkManager names a connection.
fn has_connection(text: &str) -> bool {
    text.lines().any(|line| line.strip_prefix("connection-uuid=").is_some_and(|uuid| !uuid.is_empty()))
}
