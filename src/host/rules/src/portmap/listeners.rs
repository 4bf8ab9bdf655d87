//! Finds sockets of the host that listen on published ports.

use ipnetwork::IpNetwork;

use cnimble_cni::capability::PortMapping;
use cnimble_netlink::listeners::{Listener, listeners};

use super::{Forward, Mapping, Protocol};

/// Returns the mappings of one protocol, each with each of the pod's addresses that it leads to.
fn targets_of(forward: &Forward, protocol: Protocol) -> impl Iterator<Item = (&Mapping, &IpNetwork)> {
    forward.targets().filter(move |(mapping, _)| mapping.protocol == protocol)
}

/// Returns the sockets of the host that get no new connections, because their port leads to a pod: at most one for each
/// mapping.
///
/// # Errors
/// Fails if the kernel refuses to list its sockets.
pub fn shadowed(forward: &Forward) -> cnimble_netlink::Result<Vec<(Mapping, Listener)>> {
    let mut found: Vec<(Mapping, Listener)> = Vec::new();
    for protocol in Protocol::ALL {
        let Some((first, _)) = targets_of(forward, protocol).next() else { continue };
        let alone = targets_of(forward, protocol).all(|(mapping, _)| mapping.host_port == first.host_port);
        let open = listeners(protocol.number(), alone.then_some(first.host_port))?;
        for (mapping, pod) in targets_of(forward, protocol) {
            if let Some(listener) = open.iter().find(|of| mapping.shadows(of, pod.is_ipv4()))
                && found.iter().all(|(other, _)| other != mapping)
            {
                found.push((*mapping, *listener));
            }
        }
    }
    Ok(found)
}

/// Does what [`shadowed`] does, for ports as a runtime publishes them and the addresses of the pod. Entries with an
/// unknown protocol are skipped.
///
/// # Errors
/// Fails if the kernel refuses to list its sockets.
pub fn shadowed_by(
    ports: &[PortMapping],
    addrs: Vec<IpNetwork>,
) -> cnimble_netlink::Result<Vec<(Mapping, Listener)>> {
    let mappings = ports.iter().filter_map(Mapping::from_entry).collect();
    shadowed(&Forward { mappings, addrs, ..Forward::default() })
}

impl Mapping {
    /// Returns whether the pod gets packets of one family that would otherwise reach `listener`. A socket of :: also
    /// takes IPv4 packets unless it is for IPv6 only.
    fn shadows(&self, listener: &Listener, v4: bool) -> bool {
        let Listener { ip, port, v6_only, .. } = *listener;
        let is_any = ip.is_unspecified();
        let takes_family = ip.is_ipv4() == v4 || v4 && is_any && !v6_only;
        // The rules leave packets to ::1 alone.
        let is_reached = !(ip.is_ipv6() && ip.is_loopback());
        port == self.host_port
            && takes_family
            && is_reached
            && self.address().is_none_or(|address| is_any || address == ip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listeners_that_lose_packets_are_shadowed() {
        let shadows = |host_ip: &str, ip: &str, v6_only, v4| {
            let mapping = Mapping {
                protocol: Protocol::Tcp,
                host_ip: host_ip.parse().ok(),
                host_port: 80,
                container_port: 80,
            };
            let listener = Listener { ip: ip.parse().unwrap(), port: 80, v6_only, inode: 1 };
            assert!(!mapping.shadows(&Listener { port: 81, ..listener }, v4));
            mapping.shadows(&listener, v4)
        };
        for (host_ip, ip, v6_only, v4, expected) in [
            ("", "0.0.0.0", false, true, true),
            ("", "0.0.0.0", false, false, false),
            ("", "::", false, true, true),
            ("", "::", true, true, false),
            ("", "::", true, false, true),
            ("", "127.0.0.53", false, true, true),
            ("", "::1", false, false, false),
            ("0.0.0.0", "192.0.2.1", false, true, true),
            ("192.0.2.1", "192.0.2.1", false, true, true),
            ("192.0.2.1", "192.0.2.2", false, true, false),
            ("192.0.2.1", "::", false, true, true),
            ("127.0.0.1", "0.0.0.0", false, true, true),
        ] {
            assert_eq!(shadows(host_ip, ip, v6_only, v4), expected, "{host_ip} {ip} {v6_only} {v4}");
        }
    }
}
