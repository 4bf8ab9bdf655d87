//! Checks rules of other programs in iptables' table `nat`. They decide about a packet before rules of cnimble do.

use cnimble_cni::Error;
use cnimble_netlink::nft::HookPoint;
use cnimble_rules::nat::{self, Decision, Effect, Hook, Packet, Traffic};

use super::flow::Flow;
use super::station::{Station, Verdict, Way};
use super::walk::{HOST, Walk};

impl Walk<'_> {
    /// Reports a rule that translates the packet, or exempts it from a translation of its destination. A rule that
    /// exempts it from masquerading belongs to that station.
    pub(crate) fn check_nat(&mut self, hook: HookPoint, flow: &Flow) {
        let hook = match hook {
            HookPoint::Prerouting => Hook::Prerouting,
            HookPoint::Output => Hook::Output,
            HookPoint::Postrouting => Hook::Postrouting,
            HookPoint::Input | HookPoint::Forward => return,
        };
        match self.decision(hook, flow) {
            Ok(Some((Decision { effect: Effect::Exempts(_), .. }, _))) if hook == Hook::Postrouting => {}
            Ok(Some((decision, text))) => {
                let station = Station::new(self.way, HOST, "nat", Verdict::Unknown, text);
                self.stations.push(station.remedy(decision.command()));
            }
            Ok(None) => {}
            Err(err) => self.unknown(HOST, "nat", format!("iptables' table nat can't be read: {err}")),
        }
    }

    /// Returns a rule that may exempt a leaving packet from masquerading, and the text about it. It returns `None`
    /// without one, or if the rules can't be read.
    pub(crate) fn exemption(&mut self, flow: &Flow) -> Option<(Decision, String)> {
        let found = self.decision(Hook::Postrouting, flow).ok().flatten();
        found.filter(|(decision, _)| matches!(decision.effect, Effect::Exempts(_)))
    }

    /// Returns the rule that decides about the packet. Only the first packet of a connection meets these rules, so
    /// there is none for an answer.
    fn decision(&mut self, hook: Hook, flow: &Flow) -> Result<Option<(Decision, String)>, Error> {
        if self.way == Way::Back {
            return Ok(None);
        }
        let packet = Packet {
            from: flow.from,
            to: flow.to,
            protocol: flow.protocol.number(flow.to.is_ipv4()),
            port: Some(flow.to_port).filter(|port| *port != 0),
        };
        let traffic = Traffic::Packet(packet, hook);
        let decision = nat::deciding(&mut self.nft, &mut self.nat, &traffic)?;
        Ok(decision.map(|decision| {
            let text = decision.consequence(&traffic, "it");
            (decision, text)
        }))
    }
}
