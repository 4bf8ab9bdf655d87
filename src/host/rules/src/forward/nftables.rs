//! Forwarding in nf_tables: chains in the table `inet cnimble`.
//!
//! ```text
//! chain admin { }                          the operator's
//! chain forward-policy {
//!     iifname @forward-bridges oifname @forward-bridges iifname . oifname != @forward-inside drop
//! }
//! chain forward {
//!     type filter hook forward priority filter; policy accept;
//!     jump admin
//!     jump forward-policy
//!     ip daddr @forward4 ct state established,related accept
//!     ip saddr @forward4 accept
//!     …
//! }
//! ```
//!
//! A pod is one element for each address. A bridge with a policy is one element, too, and the
//! pair of itself with itself is another one unless it is isolated.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nix::errno::Errno;

use cnimble_cni::{Attachment, Error, Owner, owner};
use cnimble_netlink as netlink;
use cnimble_netlink::nft::{
    Batch, Element, Expr, Family, Hook, HookPoint, Key, KeyType, Meta, Nft, REG1, REG2, Table, Verdict,
};

use super::{Forward, Leaving, Policy, Unused, table};
use crate::elements::{self, Changes, Claim, Layout, Placed, There, first};
use crate::listed::{Effect, Listed, Whose};
use crate::packet::{DESTINATION, SOURCE, load_address, of_family};

pub(super) struct Part;

/// How often a removal is begun again that something else came in between.
const ATTEMPTS: usize = 20;

const ADMIN: &str = "admin";
const POLICY: &str = "forward-policy";
const FORWARD: &str = "forward";
const PODS4: &str = "forward4";
const PODS6: &str = "forward6";
/// Bridges with a policy.
const BRIDGES: &str = "forward-bridges";
/// Ways between them that are open.
const INSIDE: &str = "forward-inside";
/// Where iptables' filter is: `priority filter`.
const FILTER: i32 = 0;
/// `NF_CT_STATE_BIT(IP_CT_ESTABLISHED) | NF_CT_STATE_BIT(IP_CT_RELATED)`
const ESTABLISHED_RELATED: u32 = 0x2 | 0x4;

impl Layout for Part {
    const TABLE: Table<'static> = Table::new(Family::Inet, "cnimble");
    const CHAINS: &'static [&'static str] = &[ADMIN, POLICY, FORWARD];
    const FIXED: &'static [&'static str] = &[INSIDE, BRIDGES, PODS4, PODS6];
    const FOREIGN: &'static [&'static str] = &[ADMIN];

    fn is_ours(set: &str) -> bool {
        Self::FIXED.contains(&set)
    }

    /// Policies are the bridge's, and the latest ADD on it decides.
    fn claim(set: &str) -> Claim {
        if [BRIDGES, INSIDE].contains(&set) { Claim::Shared } else { Claim::Network }
    }

    fn create_chain(batch: &mut Batch, chain: &str) {
        let place = Self::TABLE.chain(chain);
        if chain == FORWARD {
            let hook = Hook { kind: "filter", hook: HookPoint::Forward, priority: FILTER };
            batch.create_base_chain(place, hook);
        } else {
            batch.create_chain(place);
        }
    }

    fn add_first_rules(batch: &mut Batch, chain: &str) {
        if chain == FORWARD {
            for target in [ADMIN, POLICY] {
                let jump = [Expr::verdict(Verdict::Jump(target.to_owned()))];
                batch.add_rule(Self::TABLE.chain(FORWARD), &jump, "");
            }
        }
    }

    fn create_set(batch: &mut Batch, set: &str) {
        let key: &[KeyType] = match first(set) {
            PODS4 => &[KeyType::Ipv4Addr],
            PODS6 => &[KeyType::Ipv6Addr],
            BRIDGES => &[KeyType::Ifname],
            _ => &[KeyType::Ifname, KeyType::Ifname],
        };
        batch.create_set(Self::TABLE.set(set), key);
    }

    fn add_rule(batch: &mut Batch, set: &str) {
        let ip: IpAddr = match first(set) {
            BRIDGES => {
                let rule = [
                    Expr::meta(Meta::Iifname, REG1),
                    Expr::in_set(REG1, BRIDGES),
                    Expr::meta(Meta::Oifname, REG1),
                    Expr::in_set(REG1, BRIDGES),
                    Expr::meta(Meta::Iifname, REG1),
                    Expr::meta(Meta::Oifname, REG2),
                    Expr::not_in_set(REG1, INSIDE),
                    Expr::verdict(Verdict::Drop),
                ];
                return batch.add_rule(Self::TABLE.chain(POLICY), &rule, "");
            }
            PODS4 => Ipv4Addr::UNSPECIFIED.into(),
            PODS6 => Ipv6Addr::UNSPECIFIED.into(),
            _ => return,
        };
        let mut answers = of_family(ip);
        answers.push(load_address(ip, DESTINATION));
        answers.push(Expr::in_set(REG1, set));
        answers.push(Expr::ct_state(REG1));
        answers.push(Expr::mask(REG1, &ESTABLISHED_RELATED.to_ne_bytes()));
        answers.push(Expr::differ(REG1, &0_u32.to_ne_bytes()));
        let mut sent = of_family(ip);
        sent.push(load_address(ip, SOURCE));
        sent.push(Expr::in_set(REG1, set));
        for mut rule in [answers, sent] {
            rule.push(Expr::verdict(Verdict::Accept));
            batch.add_rule(Self::TABLE.chain(FORWARD), &rule, "");
        }
    }
}

fn pods(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { PODS4 } else { PODS6 }
}

fn pair(bridge: &str) -> Key {
    Key::ifname(bridge).and_ifname(bridge)
}

/// Policies belong to no pod, so that their comment names none.
fn policy_comment(policy: Policy) -> &'static str {
    match policy {
        Policy::Open => "ingressPolicy: open",
        Policy::SameBridge => "ingressPolicy: same-bridge",
        Policy::Isolated => "ingressPolicy: isolated",
    }
}

fn wanted(owner: &Owner, forward: &Forward) -> Vec<Placed> {
    let comment = owner.comment();
    let mut wanted: Vec<Placed> = Vec::new();
    let mut put = |set: &str, key: Key, comment: &str| {
        let placed = Placed { set: set.to_owned(), element: Element::new(key, comment) };
        if !wanted.contains(&placed) {
            wanted.push(placed);
        }
    };
    for bridge in forward.policed() {
        let comment = policy_comment(forward.policy);
        if forward.policy == Policy::SameBridge {
            put(INSIDE, pair(bridge), comment);
        }
        put(BRIDGES, Key::ifname(bridge), comment);
    }
    for ip in &forward.addrs {
        put(pods(*ip), Key::ip(*ip), &comment);
    }
    wanted
}

pub(super) fn add(nft: &mut Nft, owner: &Owner, forward: &Forward) -> netlink::Result<Changes> {
    let wanted = wanted(owner, forward);
    let mut changes = match wanted.as_slice() {
        [] => Changes::default(),
        wanted => elements::insert::<Part>(nft, wanted)?,
    };
    if let Err(err) = forget_other_policies(nft, forward, &mut changes) {
        elements::revert::<Part>(nft, &changes)?;
        return Err(err);
    }
    Ok(changes)
}

/// Deletes what an earlier ADD with another policy has left of the bridge.
fn forget_other_policies(nft: &mut Nft, forward: &Forward, changes: &mut Changes) -> netlink::Result<()> {
    for bridge in &forward.doors {
        let has_inside = match forward.policy {
            Policy::Open => elements::also_delete::<Part>(nft, changes, BRIDGES, &Key::ifname(bridge))?,
            Policy::SameBridge => false,
            Policy::Isolated => true,
        };
        if has_inside {
            elements::also_delete::<Part>(nft, changes, INSIDE, &pair(bridge))?;
        }
    }
    Ok(())
}

/// The bridge's policy alone, beside those of other bridges, if there are any.
pub(super) fn add_policy(nft: &mut Nft, owner: &Owner, forward: &Forward) -> netlink::Result<Changes> {
    if forward.policy != Policy::Open && nft.is_empty(Part::TABLE.set(BRIDGES))? {
        return Ok(Changes::default());
    }
    add(nft, owner, &Forward { addrs: Vec::new(), ..forward.clone() })
}

/// Removes the pod's elements. Returns whether its bridge has a policy.
pub(super) fn remove(nft: &mut Nft, owner: &Owner, leaving: &Leaving<'_>) -> netlink::Result<bool> {
    let addrs = leaving.addrs.iter();
    let hints: Vec<(String, Key)> = addrs.map(|ip| (pods(*ip).to_owned(), Key::ip(*ip))).collect();
    elements::remove::<Part>(nft, owner, &hints)?;
    for door in leaving.doors {
        if nft.element(Part::TABLE.set(BRIDGES), &Key::ifname(door))?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes the policies of all bridges that are unused.
pub(super) fn remove_unused_policies(nft: &mut Nft, unused: Unused<'_>) -> Result<(), Error> {
    for (bridge, _) in policies(nft)? {
        remove_policy(nft, &bridge, unused, false)?;
    }
    Ok(())
}

/// Removes the policy of an unused bridge. The policy of the pod's `own` bridge is also removed if no pod has rules.
/// Removes nothing if the ruleset has changed since the look. A concurrent ADD makes its port before its rules, so it is
/// either seen or restores the policy.
pub(super) fn remove_policy(nft: &mut Nft, bridge: &str, unused: Unused<'_>, own: bool) -> Result<(), Error> {
    for _ in 0..ATTEMPTS {
        let generation = nft.generation()?;
        if !unused(bridge)? && (!own || has_pods(nft)?) {
            return Ok(());
        }
        let mut batch = Batch::only_in(generation);
        for (set, key) in [(BRIDGES, Key::ifname(bridge)), (INSIDE, pair(bridge))] {
            if nft.element(Part::TABLE.set(set), &key)?.is_some() {
                batch.delete_element(Part::TABLE.set(set), &key);
            }
        }
        match nft.commit(&batch) {
            Err(err) if err.is(Errno::ERESTART) || err.is(Errno::ENOENT) => {}
            Err(err) => return Err(err.into()),
            Ok(()) => return Ok(elements::drop_all_unused::<Part>(nft)?),
        }
    }
    log::debug!("the policy of {bridge} stays until GC: too much is going on");
    Ok(())
}

/// Whether any pod has rules: the ports of pods that are being deleted at this moment don't keep
/// a policy.
pub(super) fn has_pods(nft: &mut Nft) -> Result<bool, Error> {
    for set in nft.sets(Part::TABLE)? {
        if [PODS4, PODS6].contains(&first(&set)) && !nft.is_empty(Part::TABLE.set(&set))? {
            return Ok(true);
        }
    }
    table::has_pods(nft)
}

/// The missing element or rule.
pub(super) fn check(nft: &mut Nft, owner: &Owner, forward: &Forward) -> netlink::Result<Option<String>> {
    let table = Part::TABLE;
    let wanted = wanted(owner, forward);
    if wanted.is_empty() {
        return Ok(None);
    }
    let mut pods = Vec::new();
    for Placed { set, element } in wanted {
        let place = table.set(&set);
        match elements::look_up::<Part>(nft, owner, &set, &element.key)? {
            There::Owners(placed) => pods.push(placed.set),
            // A policy, which has no owner.
            There::Others(there) if there.comment == element.comment => {}
            There::Others(there) => {
                return Ok(Some(format!("{} in set {place} is another's: {}", element.key, there.comment)));
            }
            There::Nothing => return Ok(Some(format!("set {place} lacks {}", element.key))),
        }
    }
    for bridge in forward.policed().iter().filter(|_| forward.policy == Policy::Isolated) {
        if nft.element(table.set(INSIDE), &pair(bridge))?.is_none() {
            continue;
        }
        return Ok(Some(format!("set {} has {bridge}, which should be isolated", table.set(INSIDE))));
    }
    missing_rule(nft, &pods, forward)
}

/// The missing rule; `pods` are the sets that the pod is in.
fn missing_rule(nft: &mut Nft, pods: &[String], forward: &Forward) -> netlink::Result<Option<String>> {
    let table = Part::TABLE;
    let rules = nft.rules(table, None)?;
    let in_chain = |chain: &'static str| rules.iter().filter(move |rule| rule.chain == chain);
    for target in [ADMIN, POLICY] {
        if !in_chain(FORWARD).any(|rule| rule.target().as_deref() == Some(target)) {
            return Ok(Some(format!("chain {} has no jump to {target}", table.chain(FORWARD))));
        }
    }
    if !forward.policed().is_empty() && !in_chain(POLICY).any(|rule| rule.uses_set(BRIDGES)) {
        return Ok(Some(format!("chain {} has no rule for bridges", table.chain(POLICY))));
    }
    for set in pods {
        if in_chain(FORWARD).filter(|rule| rule.uses_set(set)).count() < 2 {
            return Ok(Some(format!("chain {} lacks rules for {set}", table.chain(FORWARD))));
        }
    }
    Ok(None)
}

pub(super) fn gc(
    nft: &mut Nft,
    network: &str,
    valid: &[Attachment],
    mut unused: impl FnMut(&str) -> Result<bool, Error>,
) -> Result<(), Error> {
    if !nft.has_table(Part::TABLE)? {
        return Ok(());
    }
    let stale = elements::find::<Part>(nft, owner::stale(network, valid))?;
    if !stale.is_empty() {
        elements::delete::<Part>(nft, &stale)?;
        elements::drop_all_unused::<Part>(nft)?;
    }
    let mut bridges = std::collections::BTreeSet::new();
    for set in [BRIDGES, INSIDE] {
        bridges.extend(nft.elements(Part::TABLE.set(set))?.iter().filter_map(first_name));
    }
    for bridge in bridges {
        if unused(&bridge)? {
            // An ADD may have come since.
            remove_policy(nft, &bridge, &mut unused, false)?;
        }
    }
    Ok(())
}

/// The name that an element's key begins with.
fn first_name(element: &Element) -> Option<String> {
    let name = element.key.bytes().split(|byte| *byte == 0).next()?;
    Some(String::from_utf8_lossy(name).into_owned())
}

/// All elements of the sets.
pub(crate) fn all(nft: &mut Nft) -> netlink::Result<Vec<Placed>> {
    elements::find::<Part>(nft, |_| true)
}

/// Whether there is an unused set or chain.
pub(crate) fn is_idle(nft: &mut Nft) -> netlink::Result<bool> {
    elements::is_idle::<Part>(nft, &[])
}

/// Deletes elements that are still as they were found, and the sets and chains that are unused without them.
pub(crate) fn forget(nft: &mut Nft, found: &[Placed]) -> netlink::Result<()> {
    elements::forget::<Part>(nft, found)
}

/// The bridge that an element is about, of those that are about one.
pub(crate) fn bridge(placed: &Placed) -> Option<String> {
    let bytes = placed.element.key.bytes();
    let name: Vec<u8> = bytes.iter().copied().take_while(|byte| *byte != 0).collect();
    [BRIDGES, INSIDE].contains(&placed.set.as_str()).then(|| String::from_utf8_lossy(&name).into_owned())
}

/// The address of an element, of those that are a pod's.
pub(crate) fn address(placed: &Placed) -> Option<IpAddr> {
    let is_pod = [PODS4, PODS6].contains(&first(&placed.set));
    placed.element.key.as_ip().filter(|_| is_pod)
}

/// How many rules of the operator's own there are.
pub(crate) fn admin_rules(nft: &mut Nft) -> netlink::Result<usize> {
    Ok(nft.rules(Part::TABLE, Some(ADMIN))?.len())
}

/// Whether the kernel would take the rules.
pub(super) fn usable(nft: &mut Nft) -> netlink::Result<()> {
    elements::try_out::<Part>(nft, None)
}

/// The element of every pod's address, read.
pub(super) fn list(nft: &mut Nft) -> netlink::Result<Vec<Listed>> {
    let found = elements::find::<Part>(nft, |_| true)?;
    let read = found.into_iter().filter_map(|placed| {
        let effect = Effect::Forward { address: address(&placed)? };
        Some(Listed { owner: Whose::Comment(placed.element.comment), effect })
    });
    Ok(read.collect())
}

/// Which bridges have which policy, by name.
pub(crate) fn policies(nft: &mut Nft) -> netlink::Result<Vec<(String, Policy)>> {
    let all = [Policy::SameBridge, Policy::Isolated];
    let found = nft.elements(Part::TABLE.set(BRIDGES))?;
    let mut read: Vec<_> = found
        .into_iter()
        .filter_map(|element| {
            let policy = all.into_iter().find(|policy| policy_comment(*policy) == element.comment)?;
            Some((element.key.as_ifname()?, policy))
        })
        .collect();
    read.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(read)
}
