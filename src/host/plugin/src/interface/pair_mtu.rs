//! The MTU of a veth pair, also of one that follows the uplink, the link of the host's default route (`mtuAuto`).

use cnimble_cni::mtu::{IPV6_MTU, ipv6_problem};
use cnimble_cni::{CniResult, Code, Error};
use cnimble_netlink::link::{self, Change, Filter, Link};
use cnimble_netlink::{self as netlink, IfPresent, Netlink};

use super::pair::is_a_pods;
use super::{MTU_RANGE, check};
use crate::{Call, Place};

/// The MTU of a veth pair, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mtu {
    /// A configured one. `None` keeps the kernel's default.
    Fixed(Option<u32>),
    /// The MTU of the uplink, less this overhead.
    Auto(u32),
}

impl Mtu {
    /// Reads `mtu`, and with `mtuAuto` the `overhead`. Fails with code 7 for an MTU that no pair can have, and for
    /// both.
    pub fn read(mtu: i64, overhead: Option<u32>) -> Result<Self, Error> {
        match (super::mtu(mtu)?, overhead) {
            (Some(_), Some(_)) => Err(Error::config("mtu, mtuAuto: they exclude each other")),
            (None, Some(overhead)) => Ok(Mtu::Auto(overhead)),
            (mtu, None) => Ok(Mtu::Fixed(mtu)),
        }
    }

    /// Returns the MTU for a new pair. Without a default route, pods reach only this host: the kernel's default is
    /// right.
    pub fn of_new(self, host: &mut Netlink) -> Result<Option<u32>, Error> {
        let mtu = self.now(host)?;
        if mtu.is_none() && matches!(self, Mtu::Auto(_)) {
            log::warn!("mtuAuto: the host has no default route; the pod has the kernel's default MTU");
        }
        Ok(mtu)
    }

    /// Fails if the pod has IPv6 addresses and `mtu` is too small for them: with code 7 for that of the configuration,
    /// with code 102 for the uplink's.
    pub fn carries(self, mtu: Option<u32>, result: &CniResult) -> Result<(), Error> {
        let has_ipv6 = result.ips.iter().any(|ip| ip.address.is_ipv6());
        let Some(mtu) = mtu.filter(|_| has_ipv6) else { return Ok(()) };
        match (ipv6_problem(mtu), self) {
            (None, _) => Ok(()),
            (Some(problem), Mtu::Fixed(_)) => Err(Error::config(format!("mtu: {problem}"))
                .details("IPAM gave the pod an IPv6 address; hint: raise the MTU, or take IPv6 out of ipam")),
            (Some(_), Mtu::Auto(_)) => Err(too_small(&format!("an MTU of {mtu}, and IPv6 needs {IPV6_MTU}"))),
        }
    }

    /// Returns the MTU by the present uplink. `None` is the kernel's default, also if there is no default route. Fails
    /// with code 102 if the overhead leaves too little.
    fn now(self, host: &mut Netlink) -> Result<Option<u32>, Error> {
        let overhead = match self {
            Mtu::Fixed(mtu) => return Ok(mtu),
            Mtu::Auto(overhead) => overhead,
        };
        let Some((uplink, mtu)) = of_uplink(host)? else { return Ok(None) };
        let (least, most) = MTU_RANGE.into_inner();
        let left = i64::from(mtu) - i64::from(overhead);
        match u32::try_from(left.min(most)) {
            Ok(mtu) if left >= least => Ok(Some(mtu)),
            _ => Err(too_small(&format!(
                "{left} of the {mtu} bytes of {uplink}, and an MTU has at least {least}"
            ))),
        }
    }

    /// Verifies that both ends of the pair follow the uplink, and has them repaired if that is the aim. Only an
    /// examination does: a caller of CHECK may end all pods after a change. A pod's smaller MTU is its own wish.
    ///
    /// Returns the MTU that they should follow. Returns `None` for a fixed MTU, outside an examination, and without a
    /// default route. Without a proven host's `end` the pair stays as it is.
    ///
    /// During a repair the ends differ for a moment, and the end with the smaller MTU drops larger frames without a
    /// message. So the pod's end is the first. Then the host still answers packets that are too large for the uplink.
    pub fn follow(
        self,
        call: &Call,
        host: &mut Netlink,
        inside: &mut Netlink,
        prev: &CniResult,
        end: Option<&Link>,
    ) -> Result<Option<u32>, Error> {
        if !call.is_examined() || matches!(self, Mtu::Fixed(_)) {
            return Ok(None);
        }
        let mtu = match self.now(host).and_then(|mtu| self.carries(mtu, prev).map(|()| mtu)) {
            Ok(Some(mtu)) => mtu,
            Ok(None) => return Ok(None),
            // The MTU is too small for an address. By any other code it could not be read.
            Err(err) if err.code == Code::CONFLICT => {
                return call.expects(Place::Host, Err(err.with_code(Code::CHECK_FAILED))).map(|()| None);
            }
            Err(err) => return Err(err),
        };
        let Some(end) = end else { return Ok(Some(mtu)) };
        call.wants(
            Place::Host,
            &mut (host, inside),
            |(host, inside)| {
                let (end, pod) = (check::host_end_again(host, end)?, inside.link(&call.ifname)?);
                verify_mtu(&end, mtu).and_then(|()| check::mtu(&pod, Some(mtu)))
            },
            |(host, inside)| {
                let (end, pod) = (check::host_end_again(host, end)?, inside.link(&call.ifname)?);
                if pod.mtu > mtu || pod.mtu == end.mtu {
                    set_mtu(inside, &pod, mtu)?;
                }
                set_mtu(host, &end, mtu)
            },
        )?;
        Ok(Some(mtu))
    }
}

/// Returns the error for an uplink with too small an MTU (code 102).
fn too_small(what: &str) -> Error {
    Error::new(Code::CONFLICT, format!("mtuAuto: the pod would have {what}"))
        .details("hint: raise the MTU of the uplink, or lower mtuOverhead")
}

/// Checks the MTU of a link that follows the uplink.
///
/// # Errors
/// Fails with code 103.
pub fn verify_mtu(link: &Link, mtu: u32) -> Result<(), Error> {
    if link.mtu == mtu {
        return Ok(());
    }
    Err(Error::check(format!("interface {} has MTU {}, expected {mtu}", link.name, link.mtu)))
}

/// Sets the MTU of a link.
///
/// # Errors
/// Fails if the kernel refuses the request.
pub fn set_mtu(netlink: &mut Netlink, link: &Link, mtu: u32) -> Result<(), Error> {
    let change = Change { mtu: Some(mtu), ..Change::default() };
    Ok(netlink.execute(link::set(link.index, &link.name, &change))?)
}

/// Returns the name and the MTU of the default route's link, the smallest of several.
fn of_uplink(host: &mut Netlink) -> netlink::Result<Option<(String, u32)>> {
    let mut found: Vec<(String, u32)> = Vec::new();
    for route in host.default_routes()? {
        let Some(link) = host.link_at(route.index).if_present()? else { continue };
        let mtu = without_pods(host, &link)?;
        let of_route = route.mtu.filter(|mtu| *mtu != 0);
        found.push((link.name, of_route.unwrap_or(mtu).min(mtu)));
    }
    Ok(found.into_iter().min_by_key(|(_, mtu)| *mtu))
}

/// Returns the MTU of the link; of a bridge, also below a vlan, that of its other ports. The kernel gives a bridge the
/// smallest MTU of all ports, so pods would follow themselves.
fn without_pods(host: &mut Netlink, link: &Link) -> netlink::Result<u32> {
    let below = match link.peer.filter(|_| link.kind == "vlan" && link.peer_netnsid.is_none()) {
        Some(index) => host.link_at(index).if_present()?,
        None => None,
    };
    let bridge = below.as_ref().unwrap_or(link);
    if bridge.kind != "bridge" {
        return Ok(link.mtu);
    }
    let ports = host.links(&Filter { master: Some(bridge.index), kind: None })?;
    Ok(ports.iter().filter(|port| !is_a_pods(port)).map(|port| port.mtu).min().unwrap_or(link.mtu))
}
