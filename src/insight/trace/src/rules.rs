//! Checks the packet rules at the hooks of netfilter. A look finds the chains that could drop a packet. Without a probe
//! only a chain that drops everything stops the packet, because conditions of rules are not evaluated here.

use cnimble_netlink::nft::{Family, HookPoint, HookedChain, Table};
use cnimble_netlink::sysctl;
use cnimble_rules::objects::configured;
use cnimble_rules::{drops, forward, whose};

use super::flow::Flow;
use super::station::{Station, Verdict};
use super::walk::{HOST, Step, Walk};

/// The priority of connection tracking (`NF_IP_PRI_CONNTRACK`).
const CONNTRACK: i32 = -200;

impl Walk<'_> {
    /// Reports the chains at one hook that could drop the packet.
    pub(crate) fn check_rules(&mut self, hook: HookPoint, flow: &Flow) -> Step<()> {
        let is_of_packet = |family: Family| match family {
            Family::Inet => true,
            Family::Ipv4 => flow.to.is_ipv4(),
            Family::Ipv6 => flow.to.is_ipv6(),
            Family::Bridge => false,
        };
        if hook == HookPoint::Forward
            && let Some(chain) = self.closed_chain(flow)
        {
            let remedy = format!("nft list chain {chain}");
            return Err(self.stops_until(
                HOST,
                "forward",
                format!("{chain} drops all that pods send"),
                remedy,
            ));
        }
        let mut suspects = self.suspects(hook, is_of_packet)?;
        if hook == HookPoint::Prerouting {
            let family = if flow.to.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
            match drops::legacy_drops(family) {
                Ok(found) => suspects.extend(found),
                Err(err) => suspects.push(format!("iptables-legacy, which can't be read ({err})")),
            }
        }
        self.report_suspects(HOST, hook_name(hook), &suspects);
        Ok(())
    }

    /// Returns the first of these rules that keeps packets from connection tracking, in words.
    pub(crate) fn untracking<'r>(
        &mut self,
        rules: impl IntoIterator<Item = &'r (Family, String, String, u64)>,
    ) -> Option<String> {
        let hooked = self.nft.hooked_chains().unwrap_or_default();
        // A later rule comes too late.
        let early: Vec<_> = hooked.iter().filter(|of| of.priority < CONNTRACK).map(|of| &of.chain).collect();
        let is_early = |family: Family, table: &str| {
            early.iter().any(|chain| chain.family == family && chain.table == table)
        };
        let candidates = rules.into_iter().filter(|(family, table, ..)| is_early(*family, table));
        candidates.into_iter().find_map(|(family, table, chain, handle)| {
            let table = Table::new(*family, table);
            let rules = self.nft.rules(table, Some(chain)).ok()?;
            let rule = rules.iter().find(|rule| rule.handle == *handle)?;
            let by_iptables = rule.target_name().is_some_and(|name| name == "CT" || name == "NOTRACK");
            (rule.has("notrack") || by_iptables).then(|| format!("rule {handle} of {}", table.chain(chain)))
        })
    }

    /// Reports the chains that could drop frames between two ports of a bridge.
    pub(crate) fn check_bridge_rules(&mut self) -> Step<()> {
        let suspects = self.suspects(HookPoint::Forward, |family| family == Family::Bridge)?;
        self.report_suspects(HOST, "bridge rules", &suspects);
        // With this switch frames also pass the chains of IP packets.
        if sysctl::read("net/bridge/bridge-nf-call-iptables").is_ok_and(|value| value == "1") {
            let suspects = self.suspects(HookPoint::Forward, |family| family != Family::Bridge)?;
            self.report_suspects(HOST, hook_name(HookPoint::Forward), &suspects);
        }
        Ok(())
    }

    /// Returns texts about the chains at a hook that could drop a packet. The result is empty if nf_tables can't be
    /// read.
    fn suspects(&mut self, hook: HookPoint, is_of_packet: impl Fn(Family) -> bool) -> Step<Vec<String>> {
        let chains = match self.nft.hooked_chains() {
            Ok(chains) => chains,
            Err(err) => {
                log::debug!("nf_tables was not looked at: {err}");
                return Ok(Vec::new());
            }
        };
        let mut suspects = Vec::new();
        for HookedChain { chain, hook: at, .. } in chains {
            if at != hook || !is_of_packet(chain.family) {
                continue;
            }
            let table = Table::new(chain.family, &chain.table);
            if chain.drops || self.could_drop(table, &chain.name) {
                let maker = whose::maker(chain.family, &chain.table, &chain.name);
                suspects.push(format!("{} ({maker})", table.chain(&chain.name)));
            }
        }
        Ok(suspects)
    }

    /// Returns whether a base chain could drop a packet. One of a table that can't be read could do anything.
    fn could_drop(&mut self, table: Table<'_>, base: &str) -> bool {
        match self.tables.rules(&mut self.nft, table) {
            Ok(rules) => rules.could_drop(base),
            Err(_) => true,
        }
    }

    fn report_suspects(&mut self, place: &str, name: &'static str, suspects: &[String]) {
        let station = if suspects.is_empty() {
            Station::new(self.way, place, name, Verdict::Ok, "no rule there drops packets")
        } else {
            let text = format!("only a probe can tell whether a rule drops it: {}", suspects.join(", "));
            Station::new(self.way, place, name, Verdict::Unknown, text)
        };
        self.stations.push(station);
    }

    /// Returns a chain that surely drops what the pod sends.
    fn closed_chain(&mut self, flow: &Flow) -> Option<String> {
        let needs_others = self.sender_needs_others(flow);
        let (nft, tables) = (&mut self.nft, &mut self.tables);
        let [closed, shut] = self.closed.get_or_insert_with(|| {
            [forward::closed(nft, tables).unwrap_or_default(), forward::shut(nft).unwrap_or_default()]
        });
        let mut chains = closed.iter().chain(shut.iter().filter(|_| needs_others));
        chains.find(|chain| chain.meets(flow.to.is_ipv4())).map(|chain| chain.text.clone())
    }

    /// Returns whether the sender is a recorded pod of a network without a plugin that makes FORWARD accept its
    /// packets.
    fn sender_needs_others(&self, flow: &Flow) -> bool {
        let Some(from) = flow.from else { return false };
        let entry = self.records.entries().iter().find(|entry| {
            let result = entry.cni_result().ok().flatten().unwrap_or_default();
            result.ips.iter().any(|ip| ip.address.ip() == from)
        });
        entry.and_then(|entry| entry.network_list().ok()).is_some_and(|list| configured::need_others(&list))
    }
}

/// Returns the name of a hook's station.
pub(crate) fn hook_name(hook: HookPoint) -> &'static str {
    match hook {
        HookPoint::Prerouting => "prerouting",
        HookPoint::Input => "input",
        HookPoint::Output => "output",
        HookPoint::Forward => "forward",
        HookPoint::Postrouting => "postrouting",
    }
}
