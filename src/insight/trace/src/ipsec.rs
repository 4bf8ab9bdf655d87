//! Checks the IPsec policies of the host. What IPsec does with a packet is not followed.

use cnimble_netlink::xfrm::{self, IpsecAction, IpsecDirection, IpsecPolicy};

use super::flow::Flow;
use super::station::{Station, Verdict};
use super::walk::{HOST, Step, Walk};

impl Walk<'_> {
    /// Checks the policy of each of these directions that decides about the packet.
    pub(crate) fn check_ipsec(&mut self, directions: &[IpsecDirection], flow: &Flow) -> Step<()> {
        let policies = self.ipsec.get_or_insert_with(|| xfrm::policies().unwrap_or_default());
        for direction in directions {
            let of_packet = policies.iter().filter(|of| of.direction == *direction && may_match(of, flow));
            let Some(policy) = of_packet.min_by_key(|of| of.priority).copied() else { continue };
            let IpsecPolicy { from, to, action, more, .. } = policy;
            let text = format!("an IPsec policy for {direction} from {from} to {to}");
            let station = match action {
                IpsecAction::Pass => continue,
                IpsecAction::Block if !more => {
                    return Err(self.stops_until(HOST, "ipsec", format!("{text} drops it"), SHOW));
                }
                IpsecAction::Block => format!("{text} may drop it, which depends on ports or links"),
                IpsecAction::Transform => {
                    format!("{text} takes it, and what becomes of it there is not seen")
                }
            };
            let mut station = Station::new(self.way, HOST, "ipsec", Verdict::Unknown, station).remedy(SHOW);
            station.explains_silence = true;
            self.stations.push(station);
        }
        Ok(())
    }
}

/// The command that shows policies.
const SHOW: &str = "ip xfrm policy";

/// Returns whether a policy is for this packet, as far as its known conditions show.
fn may_match(policy: &IpsecPolicy, flow: &Flow) -> bool {
    let number = flow.protocol.number(flow.to.is_ipv4());
    policy.to.contains(flow.to)
        && flow.from.is_some_and(|from| policy.from.contains(from))
        && [0, number].contains(&policy.protocol)
}
