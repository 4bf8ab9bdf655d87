//! Masquerades with iptables, in one child process per family. Chains and comments are those of the Go plugins, so
//! either set of plugins can remove the other's rules. A container has one chain for all of its interfaces in the
//! network.

use ipnetwork::IpNetwork;

use cnimble_cni::{Error, Owner};
use cnimble_netlink::nft::{Family, Nft};

use super::translation::{Sources, Translation};
use crate::go_chains::MASQUERADE;
use crate::undo::{Applied, undone};
use crate::xtables::{FAMILIES, Variant, nat};
use crate::{command, xtables};

/// Adds the owner's rules to one variant. Does nothing if there are no exceptions, and the Go plugins or this backend
/// masquerade all addresses already. If it fails half-way, it takes back what it did.
pub(super) fn add(
    nft: &mut Nft,
    owner: &Owner,
    sources: Sources<'_>,
    variant: Variant,
) -> Result<Applied, Error> {
    let Sources { addrs, translation } = sources;
    let mut undo = Applied::default();
    if translation.is_plain() && super::check_reference(nft, owner, addrs)? {
        return Ok(undo);
    }
    for family in FAMILIES {
        let addrs: Vec<&IpNetwork> =
            addrs.iter().filter(|addr| addr.is_ipv4() == (family == Family::Ipv4)).collect();
        if addrs.is_empty() {
            continue;
        }
        if variant != Variant::Legacy && nft.is_supported()? && !nft.has_table(nat(family))? {
            undo.push(move |nft| xtables::drop_table(nft, nat(family)));
        }
        match add_family(family, Rules::new(owner, family, &addrs, translation), variant) {
            Ok(lines) => undo.push(move |_| restore(family, &lines, variant)),
            Err(err) => return Err(undone(err, undo.run())),
        }
    }
    Ok(undo)
}

fn restore(family: Family, lines: &[String], variant: Variant) -> Result<(), Error> {
    command::restore_by(&variant.command(family, "restore"), "nat", lines)
}

/// Adds the rules of one family, all or none. Returns the lines that take them back.
fn add_family(family: Family, rules: Rules, variant: Variant) -> Result<Vec<String>, Error> {
    let Err(first) = restore(family, &rules.whole(), variant) else { return Ok(rules.without()) };
    // Usually it fails because the chain exists, for another interface or from an earlier run of the container.
    let saved = command::run(&variant.command(family, "save"), &["-t", "nat"], "")?;
    let Some(missing) = rules.missing(&saved) else { return Err(first) };
    let lines: Vec<String> = missing.iter().map(RuleLine::add).collect();
    restore(family, &lines, variant)?;
    Ok(missing.iter().map(RuleLine::delete).collect())
}

/// Returns the lines that add what a saved table `nat` lacks. All addresses must be of `family`.
pub(crate) fn missing(owner: &Owner, family: Family, sources: Sources<'_>, saved: &str) -> Vec<String> {
    let addrs: Vec<&IpNetwork> = sources.addrs.iter().collect();
    match Rules::new(owner, family, &addrs, sources.translation).missing(saved) {
        Some(missing) => missing.iter().map(RuleLine::add).collect(),
        None => Rules::new(owner, family, &addrs, sources.translation).whole(),
    }
}

/// Returns whether the command's variant has all rules of the address, and no translation of another kind in the chain.
/// False if the command is not installed.
pub(super) fn is_whole(owner: &Owner, addr: &IpNetwork, translation: &Translation) -> Result<bool, Error> {
    let family = if addr.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
    let save = command::tool(family, "save");
    if command::find_program(&save).is_none() {
        return Ok(false);
    }
    let saved = command::run(&save, &["-t", "nat"], "")?;
    let missing = Rules::new(owner, family, &[addr], translation).missing(&saved);
    Ok(missing.is_some_and(|missing| missing.is_empty()))
}

/// A rule without an action, and what to do with it.
struct RuleLine {
    place: RulePosition,
    rule: String,
}

/// The place of a rule in its chain.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RulePosition {
    First,
    Last,
    /// The rule must be removed: an earlier ADD of the container made it with another translation.
    Nowhere,
}

impl RuleLine {
    /// Returns the rule of a container's chain that leaves what goes to a network as it is.
    fn accept(chain: &str, net: &IpNetwork, comment: &str) -> Self {
        // iptables-save prints no destination if it is every address, and the lines are compared with its output.
        let to =
            if net.prefix() == 0 { String::new() } else { format!("-d {}/{} ", net.network(), net.prefix()) };
        RuleLine { place: RulePosition::First, rule: format!("{chain} {to}{comment} -j ACCEPT") }
    }

    /// Returns the line of `iptables-restore` that puts the rule in its place.
    fn add(&self) -> String {
        let action = match self.place {
            RulePosition::First => 'I',
            RulePosition::Last => 'A',
            RulePosition::Nowhere => 'D',
        };
        format!("-{action} {}", self.rule)
    }

    /// Returns the line that takes [`add`](Self::add) back.
    fn delete(&self) -> String {
        format!("-{} {}", if self.place == RulePosition::Nowhere { 'A' } else { 'D' }, self.rule)
    }
}

/// The rules of a container's chain and the jumps to it, of one family.
struct Rules {
    chain: String,
    lines: Vec<RuleLine>,
}

impl Rules {
    /// All addresses must be of `family`.
    fn new(owner: &Owner, family: Family, addrs: &[&IpNetwork], translation: &Translation) -> Self {
        let chain = MASQUERADE.name_of(owner);
        let comment = MASQUERADE.comment(&owner.network, &owner.attachment.container_id);
        let comment =
            format!("-m comment --comment \"{}\"", comment.replace('\\', "\\\\").replace('"', "\\\""));
        let v4 = family == Family::Ipv4;
        let (multicast, host) = if v4 { ("224.0.0.0/4", 32) } else { ("ff00::/8", 128) };
        let target = match translation.address(v4) {
            Some(to) => format!("SNAT --to-source {to}"),
            None => "MASQUERADE".to_owned(),
        };
        let translate = format!("{chain} ! -d {multicast} {comment} -j {target}");
        let mut lines = vec![RuleLine { place: RulePosition::Last, rule: translate }];
        lines.extend(translation.excluded(v4).map(|net| RuleLine::accept(&chain, net, &comment)));
        for addr in addrs {
            lines.push(RuleLine::accept(&chain, addr, &comment));
            let rule = format!("POSTROUTING -s {}/{host} {comment} -j {chain}", addr.ip());
            lines.push(RuleLine { place: RulePosition::Last, rule });
        }
        Rules { chain, lines }
    }

    /// Returns the lines that make the chain with all rules. If the chain exists, `-N` fails and with it the whole
    /// restore, so that no rule is there twice.
    fn whole(&self) -> Vec<String> {
        let new = format!("-N {}", self.chain);
        std::iter::once(new).chain(self.lines.iter().map(RuleLine::add)).collect()
    }

    /// Returns the lines that take [`whole`](Self::whole) back.
    fn without(&self) -> Vec<String> {
        let chain = [format!("-X {}", self.chain)];
        self.lines.iter().map(RuleLine::delete).chain(chain).collect()
    }

    /// Returns the rules that the saved table lacks, and the outdated ones to remove. Returns `None` if even the chain
    /// is missing.
    fn missing(self, saved: &str) -> Option<Vec<RuleLine>> {
        let chain = format!(":{} ", self.chain);
        if !saved.lines().any(|line| line.starts_with(&chain)) {
            return None;
        }
        let saved: Vec<&str> = saved.lines().filter_map(|line| line.strip_prefix("-A ")).collect();
        let translates = format!("{} ! -d ", self.chain);
        let others = saved.iter().filter(|rule| {
            rule.starts_with(&translates) && !self.lines.iter().any(|line| line.rule == **rule)
        });
        let mut missing: Vec<RuleLine> =
            others.map(|rule| RuleLine { place: RulePosition::Nowhere, rule: (*rule).to_owned() }).collect();
        missing.extend(self.lines.into_iter().filter(|line| !saved.contains(&line.rule.as_str())));
        Some(missing)
    }
}

/// Adds what is missing to a table and asserts that nothing is missing then. Fuzzers call it.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(text: &str, owner: &Owner, addr: IpNetwork) {
    let plain = super::translation::PLAIN;
    let Some(mut missing) = Rules::new(owner, Family::Ipv4, &[&addr], plain).missing(text) else { return };
    missing.retain(|line| line.place != RulePosition::Nowhere);
    let lines = missing.iter().map(|line| format!("\n-A {}", line.rule));
    let text = lines.fold(text.to_owned(), |text, line| text + &line);
    assert!(
        Rules::new(owner, Family::Ipv4, &[&addr], plain)
            .missing(&text)
            .is_some_and(|missing| { missing.iter().all(|line| line.place == RulePosition::Nowhere) }),
        "{text}"
    );
}

#[cfg(test)]
mod tests {
    use cnimble_cni::Attachment;

    use super::*;

    /// A hand-over writes these, and a repair after a change of the configuration.
    #[test]
    fn the_rules_of_exceptions_take_the_place_of_others() {
        let attachment = Attachment { container_id: "c1".to_owned(), ifname: "eth0".to_owned() };
        let owner = Owner { network: "net".to_owned(), attachment };
        let addrs = ["10.1.0.2/16".parse().unwrap()];
        let parts = ["10.0.0.0/8", "0.0.0.0/0", "to-192.0.2.9"];
        let translation = &Translation::named(parts.into_iter()).unwrap();
        let lines = |sources, saved: &str| {
            let lines = missing(&owner, Family::Ipv4, sources, saved);
            let chain = MASQUERADE.name_of(&owner);
            let comment = "-m comment --comment \"name: \\\"net\\\" id: \\\"c1\\\"\" ";
            lines.iter().map(|line| line.replace(&chain, "CHAIN").replace(comment, "")).collect::<Vec<_>>()
        };
        let with = Sources { addrs: &addrs, translation };
        let whole = [
            "-N CHAIN",
            "-A CHAIN ! -d 224.0.0.0/4 -j SNAT --to-source 192.0.2.9",
            "-I CHAIN -d 10.0.0.0/8 -j ACCEPT",
            "-I CHAIN -j ACCEPT",
            "-I CHAIN -d 10.1.0.0/16 -j ACCEPT",
            "-A POSTROUTING -s 10.1.0.2/32 -j CHAIN",
        ];
        assert_eq!(lines(with, ""), whole);
        let plain = Rules::new(&owner, Family::Ipv4, &[&addrs[0]], super::super::translation::PLAIN);
        let rules: String = plain.lines.iter().map(|line| format!("-A {}\n", line.rule)).collect();
        let saved = format!(":{} - [0:0]\n{rules}", plain.chain);
        let changed: Vec<&str> = std::iter::once("-D CHAIN ! -d 224.0.0.0/4 -j MASQUERADE")
            .chain(whole[1..4].iter().copied())
            .collect();
        assert_eq!(lines(with, &saved), changed);
        assert!(lines((&addrs).into(), &saved).is_empty());
    }
}
