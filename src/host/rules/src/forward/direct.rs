//! Adds a pod's rules in iptables' nf_tables variant by netlink. They are exactly those of `iptables-restore`, but no
//! child process has to read the whole table.
//!
//! This serves the usual case: chains and jumps exist, no rule has the pod's addresses yet, and the policy does not
//! change. Of `FORWARD`, only the rules up to the jump are read.

use std::net::IpAddr;

use nix::errno::Errno;

use cnimble_netlink as netlink;
use cnimble_netlink::nft::packet::{DESTINATION, SOURCE, load_address, octets};
use cnimble_netlink::nft::{Batch, Expr, Family, Nft, REG1, Rule, Verdict};

use cnimble_cni::Error;

use super::isolation::STAGE2;
use super::table::{FORWARD, PODS, RestoreLines, STAGE1, TO_ADMIN, TO_PODS, filter};
use super::{Forward, Policy, table};
use crate::retry::remove_rules;
use crate::undo::undone;
use crate::{command, xtables};

/// Attempts while nf_tables changes after each look. After these the commands are run.
const ATTEMPTS: usize = 5;

/// Returns the expressions of a jump, as iptables writes them.
fn jump(comment: &str, chain: &str) -> [Expr; 3] {
    let jump = Expr::verdict(Verdict::Jump(chain.to_owned()));
    [Expr::xtables_comment(comment), Expr::counter(), jump]
}

/// Returns the expressions of [`table::pod_rules`], as iptables writes them.
fn pod_rules(ip: IpAddr) -> [Vec<Expr>; 2] {
    let mut rules =
        [DESTINATION, SOURCE].map(|end| vec![load_address(ip, end), Expr::equal(REG1, &octets(ip))]);
    let [answers, _] = &mut rules;
    answers.push(Expr::xtables_answers());
    for rule in &mut rules {
        rule.extend([Expr::counter(), Expr::verdict(Verdict::Accept)]);
    }
    rules
}

/// Returns whether netlink can make these rules. They must accept all that pods send, with the policy `open`. The
/// commands of iptables must surely be of the nf_tables variant.
fn is_possible(family: Family, forward: &Forward, addrs: &[IpAddr]) -> bool {
    !addrs.is_empty()
        && forward.published.is_none()
        && forward.policy == Policy::Open
        && ["save", "restore"].iter().all(|action| xtables::is_nf_tables(&command::tool(family, action)))
}

/// Returns the rules of the chain of pods. Returns `None` if a shared jump is missing, or if a policy is in place for
/// an interface of the pod.
fn shared(nft: &mut Nft, family: Family, forward: &Forward) -> netlink::Result<Option<Vec<Rule>>> {
    let table = filter(family);
    let rules = nft.rules(table, Some(PODS))?;
    let to_admin = jump(TO_ADMIN, forward.admin.chain());
    if !rules.iter().any(|rule| rule.consists_of(&to_admin)) {
        return Ok(None);
    }
    let to_pods = jump(TO_PODS, PODS);
    let before_pods = nft.rules_until(table.chain(FORWARD), |rule| rule.consists_of(&to_pods))?;
    if !before_pods.last().is_some_and(|rule| rule.consists_of(&to_pods)) {
        return Ok(None);
    }
    for chain in [STAGE1, STAGE2] {
        let policies =
            if forward.interfaces.is_empty() { Vec::new() } else { nft.rules(table, Some(chain))? };
        if policies.iter().any(|rule| forward.interfaces.iter().any(|name| rule.mentions(name.as_bytes()))) {
            return Ok(None);
        }
    }
    Ok(Some(rules))
}

/// Adds the rules and returns them for an undo. Returns `None` if the commands must do it. Nothing stays after an
/// error.
pub(super) fn add(
    nft: &mut Nft,
    family: Family,
    forward: &Forward,
    addrs: &[IpAddr],
) -> Result<Option<RestoreLines>, Error> {
    if !is_possible(family, forward, addrs) {
        return Ok(None);
    }
    for _ in 0..ATTEMPTS {
        let batch = match changes(nft, family, forward, addrs) {
            Ok(Some(batch)) => batch,
            Ok(None) => return Ok(None),
            Err(err) => {
                log::debug!("{} is for the commands: {err}", filter(family));
                return Ok(None);
            }
        };
        match nft.commit(&batch) {
            Ok(()) => {
                let lines = addrs.iter().flat_map(|ip| table::pod_rules(*ip));
                let rules = lines.map(|rule| format!("-A {rule}")).collect();
                return Ok(Some(RestoreLines { rules, ..RestoreLines::default() }));
            }
            Err(err) if err.is(Errno::ERESTART) => {}
            Err(err) => {
                // The kernel may have made the change while its answer got lost.
                return Err(undone(err, remove(nft, addrs, &|_| false).map(drop)));
            }
        }
    }
    Ok(None)
}

/// Returns the batch of the pod's rules, bound to the generation of the look. `None` is for the commands: something
/// shared is missing, or a rule has the pod's addresses already.
fn changes(
    nft: &mut Nft,
    family: Family,
    forward: &Forward,
    addrs: &[IpAddr],
) -> netlink::Result<Option<Batch>> {
    let generation = nft.generation()?;
    let Some(rules) = shared(nft, family, forward)? else { return Ok(None) };
    // Rules of published ports have a comment, and don't count.
    let mut own = rules.iter().filter(|rule| rule.comment.is_empty());
    if own.any(|rule| addrs.iter().any(|ip| rule.mentions(&octets(*ip)))) {
        return Ok(None);
    }
    let mut batch = Batch::only_in(generation);
    for rule in addrs.iter().flat_map(|ip| pod_rules(*ip)) {
        batch.add_rule(filter(family).chain(PODS), &rule, "");
    }
    Ok(Some(batch))
}

/// Returns whether the rules are there exactly as [`add`] makes them. False if that is unsure; then the commands tell
/// what is missing.
pub(super) fn is_whole(nft: &mut Nft, family: Family, forward: &Forward, addrs: &[IpAddr]) -> bool {
    let Ok(Some(rules)) =
        (if is_possible(family, forward, addrs) { shared(nft, family, forward) } else { Ok(None) })
    else {
        return false;
    };
    let mut wanted = addrs.iter().flat_map(|ip| pod_rules(*ip));
    wanted.all(|wanted| rules.iter().any(|rule| rule.consists_of(&wanted)))
}

/// Removes the rules of the addresses from the nf_tables variant, except those of `taken` addresses. Returns whether
/// the chain of pods had any rules, in a family of the addresses.
pub(crate) fn remove(
    nft: &mut Nft,
    addrs: &[IpAddr],
    taken: &dyn Fn(IpAddr) -> bool,
) -> netlink::Result<bool> {
    let mut any = false;
    for family in xtables::FAMILIES {
        let of_family = addrs.iter().filter(|ip| ip.is_ipv4() == (family == Family::Ipv4));
        let of_family: Vec<(IpAddr, Vec<u8>)> = of_family.map(|ip| (*ip, octets(*ip))).collect();
        if of_family.is_empty() {
            continue;
        }
        any |= remove_rules(nft, filter(family), Some(PODS), |rule: &Rule| {
            of_family
                .iter()
                .any(|(ip, octets)| rule.constants().any(|constant| constant == octets) && !taken(*ip))
        })?;
    }
    Ok(any)
}
