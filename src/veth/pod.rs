//! The interface in the pod: its switches and its routes.

use crate::net::{route, sysctl};
use crate::spec::{CniResult, Error, cidr};

/// The routes of the result; one without a gateway goes through the first gateway of its
/// family. What comes out the same (a default route of IPAM's and one of the plugin's) is one
/// route.
pub fn routes(index: u32, result: &CniResult) -> Vec<route::NewRoute> {
    let gateway =
        |v4: bool| result.ips.iter().filter_map(|ip| ip.gateway).find(|gateway| gateway.is_ipv4() == v4);
    let mut routes: Vec<route::NewRoute> = Vec::with_capacity(result.routes.len());
    for wanted in &result.routes {
        let route = route::NewRoute {
            dst: cidr::network_of(wanted.dst),
            // The unspecified address is how to say: no gateway, straight out of the interface.
            via: wanted
                .gw
                .or_else(|| gateway(wanted.dst.is_ipv4()))
                .filter(|gateway| !gateway.is_unspecified()),
            index,
            src: None,
            mtu: wanted.mtu,
            advmss: wanted.advmss,
            priority: wanted.priority,
            table: wanted.table,
            scope: wanted.scope,
            onlink: false,
        };
        if !routes.contains(&route) {
            routes.push(route);
        }
    }
    routes
}

/// Switches of the interface, which hold for the namespace of the thread that writes them.
///
/// IPAM owns the addresses, so nobody has to ask the network whether they are free: no
/// duplicate address detection, unless asked for. `arp_notify` makes the kernel announce
/// the pod's addresses when the link comes up.
///
/// # Errors
/// The kernel's; a switch that it doesn't have is none.
pub fn switches(name: &str, result: &CniResult, enable_dad: bool) -> Result<(), Error> {
    let mut switches = vec![("ipv4", "arp_notify", "1")];
    if result.ips.iter().any(|ip| ip.address.is_ipv6()) {
        switches.push(("ipv6", "disable_ipv6", "0"));
        switches.push(("ipv6", "keep_addr_on_down", "1"));
    }
    if enable_dad {
        switches.push(("ipv6", "enhanced_dad", "1"));
    }
    switches.push(("ipv6", "accept_dad", if enable_dad { "1" } else { "0" }));
    for (family, switch, value) in switches {
        let key = format!("net/{family}/conf/{name}/{switch}");
        let done = match switch {
            // Writing it takes the lock of all network configuration, for which the kernel
            // doesn't wait but asks over and over, while others make their pods. It is 0 already
            // nearly everywhere.
            "disable_ipv6" => sysctl::ensure(&key, value).map(drop),
            _ => sysctl::write(&key, value),
        };
        match done {
            // A kernel without the family or the switch; an IPv6 address would fail by itself.
            Err(err) if !err.is_missing() => return Err(err.into()),
            _ => {}
        }
    }
    Ok(())
}
