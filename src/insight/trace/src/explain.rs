//! Explains why the routing tables refuse a packet: the rule or the route that drops it. The kernel answers only with
//! an errno, and several reasons share one.

use cnimble_netlink::link::kind::{Kind, Vrf};
use cnimble_netlink::lookup::{Packet, RouteKind};
use cnimble_netlink::policy::{AnyRoute, PolicyRule, RuleAction};
use cnimble_netlink::{Error, Netlink};

/// The numbers of well-known tables (rtnetlink(7)).
const TABLES: [(u32, &str); 3] = [(253, "default"), (254, "main"), (255, "local")];

/// The answer of the rules and routes to a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A rule or a route drops it, in words.
    Dropped(String),
    /// A usable route takes it, so the reason is another one.
    Routed,
    /// No route takes it.
    NoRoute,
    /// A rule has a condition that this walk cannot judge.
    Unclear,
}

/// Evaluates the rules as the kernel does, for a packet that it has refused. `input` is the name of the link at which
/// the packet arrives, or `None` for a packet that is sent here.
pub(crate) fn refusal(net: &mut Netlink, packet: &Packet, input: Option<&str>) -> Result<Cause, Error> {
    let v4 = packet.to.is_ipv4();
    let rules = net.policy_rules(v4)?;
    let routes = net.routes_of_all_kinds(v4)?;
    let vrf = vrf_table(net, packet)?;
    Ok(judge(&rules, &routes, packet, input, vrf))
}

/// Returns the routing table of the VRF in which the packet arrives or leaves, or `None` if it meets no VRF.
fn vrf_table(net: &mut Netlink, packet: &Packet) -> Result<Option<u32>, Error> {
    let Some(index) = packet.input.or(packet.output) else { return Ok(None) };
    let link = net.link_at(index)?;
    match link.settings {
        Some(Kind::Vrf(Vrf { table })) => Ok(Some(table)),
        _ => net.vrf_table(&link),
    }
}

/// `vrf` is the table of the VRF that the packet meets.
fn judge(
    rules: &[PolicyRule],
    routes: &[AnyRoute],
    packet: &Packet,
    input: Option<&str>,
    vrf: Option<u32>,
) -> Cause {
    for rule in rules.iter().filter(|rule| may_match(rule, packet, input)) {
        if rule.more {
            return Cause::Unclear;
        }
        let table = match rule.action {
            RuleAction::Other => return Cause::Unclear,
            RuleAction::Drop(_) => {
                return Cause::Dropped(format!("a rule drops it: ip rule {}", in_words(rule)));
            }
            RuleAction::Table(table) => table,
            RuleAction::VrfTable => match vrf {
                Some(table) => table,
                None => continue,
            },
        };
        match best(routes, table, packet) {
            Some(route) if route.kind.drops() => {
                return Cause::Dropped(format!(
                    "a route drops it: {} {} in table {}, by ip rule {}",
                    route.kind,
                    destination(route),
                    table_name(table),
                    in_words(rule)
                ));
            }
            Some(route) if route.kind != RouteKind::Throw => return Cause::Routed,
            _ => {}
        }
    }
    Cause::NoRoute
}

/// Returns whether the rule matches the packet, as far as its known conditions show.
fn may_match(rule: &PolicyRule, packet: &Packet, input: Option<&str>) -> bool {
    let from = rule.from.is_none_or(|net| packet.from.is_some_and(|from| net.contains(from)));
    let to = rule.to.is_none_or(|net| net.contains(packet.to));
    // The kernel takes `lo` for the input of packets that are sent here.
    let link = rule.input.as_deref().is_none_or(|name| name == input.unwrap_or("lo"));
    // The followed packet has no mark.
    let mark = rule.mark.is_none_or(|(mark, _)| mark == 0);
    from && to && link && mark
}

/// Returns the route of a table with the longest prefix and, among these, the lowest metric.
fn best<'r>(routes: &'r [AnyRoute], table: u32, packet: &Packet) -> Option<&'r AnyRoute> {
    let fitting = routes.iter().filter(|route| route.table == table && route.to.contains(packet.to));
    fitting.min_by_key(|route| (u8::MAX - route.to.prefix(), route.metric))
}

fn destination(route: &AnyRoute) -> String {
    if route.to.prefix() == 0 { "default".to_owned() } else { route.to.to_string() }
}

/// Returns the name of a routing table, or its number if it has no well-known name.
pub(crate) fn table_name(table: u32) -> String {
    let known = TABLES.iter().find(|(number, _)| *number == table);
    known.map_or_else(|| table.to_string(), |(_, name)| (*name).to_owned())
}

/// Returns the rule as `ip rule show` prints it.
fn in_words(rule: &PolicyRule) -> String {
    let mut text = format!("{}:", rule.priority);
    match rule.from {
        Some(from) => text += &format!(" from {from}"),
        None => text += " from all",
    }
    if let Some(to) = rule.to {
        text += &format!(" to {to}");
    }
    if let Some(input) = &rule.input {
        text += &format!(" iif {input}");
    }
    match rule.action {
        RuleAction::Table(table) => text += &format!(" lookup {}", table_name(table)),
        // This is how ip-rule(8) prints it.
        RuleAction::VrfTable => text += " lookup [l3mdev-table]",
        RuleAction::Drop(kind) => text += &format!(" {kind}"),
        RuleAction::Other => {}
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(priority: u32, from: Option<&str>, action: RuleAction) -> PolicyRule {
        let from = from.map(|from| from.parse().unwrap());
        PolicyRule { priority, from, to: None, input: None, mark: None, action, more: false }
    }

    fn route(kind: RouteKind, to: &str, table: u32) -> AnyRoute {
        AnyRoute { kind, to: to.parse().unwrap(), table, metric: 0 }
    }

    fn packet() -> Packet {
        Packet {
            to: "10.7.0.1".parse().unwrap(),
            from: Some("10.1.2.3".parse().unwrap()),
            input: Some(3),
            output: None,
            transport: None,
        }
    }

    #[test]
    fn the_longest_prefix_of_the_first_table_with_one_counts() {
        let rules = [rule(0, None, RuleAction::Table(255)), rule(100, None, RuleAction::Table(254))];
        let mut routes = vec![route(RouteKind::Unicast, "0.0.0.0/0", 254)];
        assert_eq!(judge(&rules, &routes, &packet(), Some("br0"), None), Cause::Routed);
        routes.push(route(RouteKind::Blackhole, "10.7.0.0/24", 254));
        let Cause::Dropped(text) = judge(&rules, &routes, &packet(), Some("br0"), None) else { panic!() };
        assert_eq!(
            text,
            "a route drops it: blackhole 10.7.0.0/24 in table main, by ip rule 100: from all lookup main"
        );
        routes.push(route(RouteKind::Unicast, "10.7.0.1/32", 254));
        assert_eq!(judge(&rules, &routes, &packet(), Some("br0"), None), Cause::Routed);
        assert_eq!(judge(&rules, &[], &packet(), None, None), Cause::NoRoute);
    }

    #[test]
    fn only_packets_of_a_vrf_meet_its_table() {
        let rules = [rule(1000, None, RuleAction::VrfTable), rule(32766, None, RuleAction::Table(254))];
        let routes =
            [route(RouteKind::Unicast, "0.0.0.0/0", 254), route(RouteKind::Blackhole, "10.7.0.0/24", 77)];
        assert_eq!(judge(&rules, &routes, &packet(), Some("br0"), None), Cause::Routed);
        let Cause::Dropped(text) = judge(&rules, &routes, &packet(), Some("br0"), Some(77)) else { panic!() };
        assert_eq!(
            text,
            "a route drops it: blackhole 10.7.0.0/24 in table 77, by ip rule 1000: from all lookup [l3mdev-table]"
        );
        // The kernel goes on with the next rule if the VRF has no route.
        assert_eq!(judge(&rules, &routes, &packet(), Some("br0"), Some(78)), Cause::Routed);
    }

    #[test]
    fn rules_are_tried_in_their_order() {
        let drop = RuleAction::Drop(RouteKind::Blackhole);
        let routes = [route(RouteKind::Unicast, "0.0.0.0/0", 254)];
        let main = rule(32766, None, RuleAction::Table(254));
        let fits = [rule(50, Some("10.1.2.0/24"), drop), main.clone()];
        let Cause::Dropped(text) = judge(&fits, &routes, &packet(), None, None) else { panic!() };
        assert_eq!(text, "a rule drops it: ip rule 50: from 10.1.2.0/24 blackhole");
        let other = [rule(50, Some("10.9.0.0/16"), drop), main.clone()];
        assert_eq!(judge(&other, &routes, &packet(), None, None), Cause::Routed);
        let mut unclear = rule(50, None, drop);
        unclear.more = true;
        assert_eq!(judge(&[unclear, main], &routes, &packet(), None, None), Cause::Unclear);
    }
}
