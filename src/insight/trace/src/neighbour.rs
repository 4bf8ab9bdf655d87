//! Compares the host's neighbour entry of a pod with the MAC that the pod's link has.

use std::net::IpAddr;

use cnimble_netlink::link::Link;
use cnimble_netlink::neigh::Resolution;

use super::pod::PodEnd;
use super::walk::{HOST, Step, Walk};

impl Walk<'_> {
    /// Checks the entry's MAC. A wrong one stops the packet only in a permanent entry, because the kernel renews
    /// others.
    pub(crate) fn check_pod_mac(
        &mut self,
        link: &Link,
        end: &PodEnd,
        ip: IpAddr,
        resolution: Option<Resolution>,
    ) -> Step<()> {
        let (mac, permanent) = match resolution {
            Some(Resolution::Permanent(mac)) => (mac, true),
            Some(Resolution::Known(mac)) => (mac, false),
            _ => return Ok(()),
        };
        let Some(present) = end.link.mac.filter(|present| *present != mac) else { return Ok(()) };
        let text = format!("the host takes {ip} for {mac}, and {} of the pod has {present}", end.link.name);
        if permanent {
            let text = format!("{text}: its permanent neighbour entry is wrong");
            let remedy = format!("ip neighbour del {ip} dev {}", link.name);
            return Err(self.stops_until(HOST, "frame", text, remedy));
        }
        self.unknown(HOST, "frame", format!("{text}: an old entry, which the host renews"));
        Ok(())
    }
}
