//! Forwarding with iptables: the reference's chains and rules, to the letter, so that either set
//! of plugins can remove what the other made.
//!
//! ```text
//! -A FORWARD … -j CNI-ISOLATION-STAGE-1        with a policy
//! -A FORWARD … -j CNI-FORWARD
//! -A CNI-FORWARD … -j CNI-ADMIN
//! -A CNI-FORWARD -d 10.1.0.2/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
//! -A CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT
//! -A CNI-ISOLATION-STAGE-1 -i br0 ! -o br0 … -j CNI-ISOLATION-STAGE-2
//! -A CNI-ISOLATION-STAGE-2 -o br0 … -j DROP
//! ```
//!
//! What is there is read with `iptables-save`, and what is missing added by one run of
//! `iptables-restore`, all or nothing.

use std::net::IpAddr;

use super::{Forward, Policy};
use crate::net;
use crate::net::nft::{Batch, Family, Nft, Table};
use crate::rules::{command, xtables};
use crate::spec::Error;

const FORWARD: &str = "FORWARD";
/// The chain with the rules of pods.
pub(in crate::rules) const PODS: &str = "CNI-FORWARD";
const STAGE1: &str = "CNI-ISOLATION-STAGE-1";
const STAGE2: &str = "CNI-ISOLATION-STAGE-2";
const ATTEMPTS: usize = 3;

/// What [`add`] made.
#[derive(Debug, Default)]
pub(super) struct Made {
    /// For each family: the rules of the pod, and the shared chains and rules, in the order
    /// they were added in.
    added: Vec<(Family, Vec<String>, Vec<String>)>,
    /// Tables that weren't there before iptables' nf_tables variant made them.
    tables: Vec<Family>,
}

fn filter(family: Family) -> Table<'static> {
    Table::new(family, "filter")
}

fn commented(comment: &str) -> String {
    format!("-m comment --comment \"{comment}\"")
}

fn to_pods() -> String {
    format!("{} -j {PODS}", commented("CNI firewall plugin rules"))
}

fn to_admin(chain: &str) -> String {
    format!("{} -j {chain}", commented("CNI firewall plugin admin overrides"))
}

/// The comment on the rules of a policy; those that all policies share have `same-bridge`, as
/// the reference was written when there was no other.
fn policy_comment(policy: Policy) -> String {
    let name = if policy == Policy::Isolated { "isolated" } else { "same-bridge" };
    commented(&format!("CNI firewall plugin rules (ingressPolicy: {name})"))
}

/// The rules of an address, without `-A`.
fn pod_rules(ip: IpAddr) -> [String; 2] {
    let ip = format!("{ip}/{}", if ip.is_ipv4() { 32 } else { 128 });
    [
        format!("{PODS} -d {ip} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"),
        format!("{PODS} -s {ip} -j ACCEPT"),
    ]
}

fn bridge_rules(bridge: &str, policy: Policy) -> [String; 2] {
    let elsewhere = if policy == Policy::Isolated { String::new() } else { format!(" ! -o {bridge}") };
    [
        format!("{STAGE1} -i {bridge}{elsewhere} {} -j {STAGE2}", policy_comment(policy)),
        format!("{STAGE2} -o {bridge} {} -j DROP", policy_comment(Policy::SameBridge)),
    ]
}

/// A table as iptables-save prints it.
struct Saved<'a>(Vec<&'a str>);

impl<'a> Saved<'a> {
    fn new(text: &'a str) -> Self {
        Saved(text.lines().map(str::trim_end).collect())
    }

    fn has_chain(&self, name: &str) -> bool {
        self.0.iter().any(|line| line.strip_prefix(':').and_then(|rest| rest.split(' ').next()) == Some(name))
    }

    fn has(&self, rule: &str) -> bool {
        self.0.iter().any(|line| line.strip_prefix("-A ") == Some(rule))
    }
}

/// What has to be added to a table: the pod's rules, and what all share.
fn missing(saved: &Saved<'_>, forward: &Forward, addrs: &[IpAddr]) -> (Vec<String>, Vec<String>) {
    let mut shared = Vec::new();
    for chain in [PODS, forward.admin_chain.as_str()] {
        if !saved.has_chain(chain) {
            shared.push(format!("-N {chain}"));
        }
    }
    let first = |chain: &str, rule: String, shared: &mut Vec<String>| {
        if saved.has(&format!("{chain} {rule}")) {
            return false;
        }
        shared.push(format!("-I {chain} {rule}"));
        true
    };
    let to_stage1 = format!("{} -j {STAGE1}", policy_comment(Policy::SameBridge));
    if first(FORWARD, to_pods(), &mut shared) && saved.has(&format!("{FORWARD} {to_stage1}")) {
        // The policies have to stay in front.
        shared.push(format!("-D {FORWARD} {to_stage1}"));
        shared.push(format!("-I {FORWARD} {to_stage1}"));
    }
    first(PODS, to_admin(&forward.admin_chain), &mut shared);
    if let Some(bridge) = forward.policed() {
        let back = format!("{} -j RETURN", policy_comment(Policy::SameBridge));
        for chain in [STAGE1, STAGE2] {
            if !saved.has_chain(chain) {
                shared.push(format!("-N {chain}"));
            }
            if !saved.has(&format!("{chain} {back}")) {
                shared.push(format!("-A {chain} {back}"));
            }
        }
        first(FORWARD, to_stage1, &mut shared);
        for rule in bridge_rules(bridge, forward.policy) {
            if !saved.has(&rule) {
                shared.push(format!("-I {rule}"));
            }
        }
        if forward.policy == Policy::SameBridge {
            let [isolated, _] = bridge_rules(bridge, Policy::Isolated);
            if saved.has(&isolated) {
                shared.push(format!("-D {isolated}"));
            }
        }
    }
    let rules = addrs.iter().flat_map(|ip| pod_rules(*ip));
    (rules.filter(|rule| !saved.has(rule)).map(|rule| format!("-A {rule}")).collect(), shared)
}

/// For fuzzers: adds what is missing to a table as iptables-save prints it; then nothing is.
#[cfg(feature = "fuzzing")]
pub(in crate::rules) fn fuzz(text: &str) {
    let addrs = [IpAddr::from([10, 0, 0, 2])];
    for policy in [Policy::Open, Policy::SameBridge, Policy::Isolated] {
        let forward = Forward {
            addrs: addrs.to_vec(),
            policy,
            bridge: Some("br0".to_owned()),
            admin_chain: "CNI-ADMIN".to_owned(),
            zone: String::new(),
        };
        let (rules, shared) = missing(&Saved::new(text), &forward, &addrs);
        let mut table: Vec<String> = Saved::new(text).0.into_iter().map(str::to_owned).collect();
        for line in shared.iter().chain(&rules) {
            match line.split_once(' ') {
                Some(("-N", chain)) => table.push(format!(":{chain} - [0:0]")),
                Some(("-A" | "-I", rule)) => table.push(format!("-A {rule}")),
                Some(("-D", rule)) => table.retain(|line| line.strip_prefix("-A ") != Some(rule)),
                _ => table.push(format!("not a change: {line}")),
            }
        }
        let left = missing(&Saved::new(&table.join("\n")), &forward, &addrs);
        assert_eq!(left, (Vec::new(), Vec::new()), "{table:?}");
    }
}

fn restore(family: Family, lines: &[String]) -> Result<(), Error> {
    command::restore(family, "filter", lines)
}

pub(super) fn add(nft: &mut Nft, forward: &Forward) -> Result<Made, Error> {
    let mut made = Made::default();
    for family in xtables::FAMILIES {
        let addrs: Vec<IpAddr> = forward.of_family(family).collect();
        if addrs.is_empty() {
            continue;
        }
        if nft.probe().is_ok() && !nft.has_table(filter(family))? {
            made.tables.push(family);
        }
        if let Err(err) = add_family(family, forward, &addrs, &mut made) {
            return Err(match revert(nft, &made) {
                Ok(()) => err,
                Err(undo) => err.details(format!("and what was added could not be removed: {undo}")),
            });
        }
    }
    Ok(made)
}

fn add_family(family: Family, forward: &Forward, addrs: &[IpAddr], made: &mut Made) -> Result<(), Error> {
    for attempt in 1.. {
        let saved = command::run(&command::tool(family, "save"), &["-t", "filter"], "")?;
        let (rules, shared) = missing(&Saved::new(&saved), forward, addrs);
        if rules.is_empty() && shared.is_empty() {
            return Ok(());
        }
        let lines: Vec<String> = shared.iter().chain(&rules).cloned().collect();
        match restore(family, &lines) {
            Ok(()) => {
                made.added.push((family, rules, shared));
                return Ok(());
            }
            // Somebody else may have made the chains since.
            Err(_) if attempt < ATTEMPTS => {}
            Err(err) => return Err(err),
        }
    }
    Ok(())
}

/// How a line is taken back.
fn inverse(line: &str) -> Option<String> {
    let (action, rest) = line.split_once(' ')?;
    match action {
        "-A" | "-I" => Some(format!("-D {rest}")),
        "-N" => Some(format!("-X {rest}")),
        _ => None,
    }
}

pub(super) fn revert(nft: &mut Nft, made: &Made) -> Result<(), Error> {
    let mut outcome = Ok(());
    for (family, rules, shared) in made.added.iter().rev() {
        let back: Vec<String> = rules.iter().rev().filter_map(|line| inverse(line)).collect();
        if !back.is_empty() {
            outcome = outcome.and(restore(*family, &back));
        }
        // Rules first, so that the chains are empty. If somebody has put rules into our chains
        // since, they can't be deleted, and all of it stays.
        let shared = shared.iter().filter(|line| !line.starts_with("-D ")).rev();
        let (chains, rules): (Vec<_>, Vec<_>) =
            shared.filter_map(|line| inverse(line)).partition(|line| line.starts_with("-X "));
        if !chains.is_empty() {
            let lines: Vec<String> = rules.into_iter().chain(chains).collect();
            if let Err(err) = restore(*family, &lines) {
                log::debug!("chains are in use and stay: {err}");
            }
        }
    }
    for family in &made.tables {
        if nft.has_table(filter(*family))? {
            xtables::drop_table(nft, filter(*family))?;
        }
    }
    outcome
}

/// Removes the rules of addresses from nf_tables' variant, without running a command.
pub(in crate::rules) fn remove_nf_tables(nft: &mut Nft, addrs: &[IpAddr]) -> net::Result<()> {
    for family in xtables::FAMILIES {
        let octets: Vec<Vec<u8>> = addrs
            .iter()
            .filter_map(|ip| match (ip, family) {
                (IpAddr::V4(ip), Family::Ipv4) => Some(ip.octets().to_vec()),
                (IpAddr::V6(ip), Family::Ipv6) => Some(ip.octets().to_vec()),
                _ => None,
            })
            .collect();
        if octets.is_empty() {
            continue;
        }
        for attempt in 1.. {
            let mut batch = Batch::new();
            for rule in nft.rules(filter(family), Some(PODS))? {
                if rule.constants().any(|constant| octets.iter().any(|ip| ip == constant)) {
                    batch.delete_rule(filter(family).chain(PODS), rule.handle);
                }
            }
            match nft.commit(&batch) {
                Err(err) if attempt < ATTEMPTS && err.is(nix::errno::Errno::ENOENT) => {}
                Err(err) => return Err(err),
                Ok(()) => break,
            }
        }
    }
    Ok(())
}

/// Removes the rules of addresses from the legacy tables.
pub(in crate::rules) fn remove_legacy(addrs: &[IpAddr]) -> Result<(), Error> {
    for family in xtables::FAMILIES {
        let ours: Vec<String> = addrs
            .iter()
            .filter(|ip| ip.is_ipv4() == (family == Family::Ipv4))
            .flat_map(|ip| pod_rules(*ip))
            .collect();
        if ours.is_empty() {
            continue;
        }
        let Some(rules) = xtables::legacy_rules_of(family, "filter")? else { continue };
        let lines: Vec<String> = ours
            .iter()
            .filter(|rule| rules.iter().any(|there| there.strip_prefix("-A ") == Some(rule)))
            .map(|rule| format!("-D {rule}"))
            .collect();
        if !lines.is_empty() {
            let input = format!("*filter\n{}\nCOMMIT\n", lines.join("\n"));
            let command = xtables::legacy_command(family, "restore");
            command::run(&command, &["--noflush", "--wait=10"], &input)?;
        }
    }
    Ok(())
}

/// What is missing; `None` if nothing is.
pub(super) fn check(forward: &Forward) -> Result<Option<String>, Error> {
    for family in xtables::FAMILIES {
        let addrs: Vec<IpAddr> = forward.of_family(family).collect();
        if addrs.is_empty() {
            continue;
        }
        let save = command::tool(family, "save");
        if command::find(&save).is_none() {
            return Ok(Some(format!("the command {save} is not installed")));
        }
        let saved = command::run(&save, &["-t", "filter"], "")?;
        let (rules, shared) = missing(&Saved::new(&saved), forward, &addrs);
        if let Some(line) = shared.iter().chain(&rules).next() {
            return Ok(Some(format!("{}: {}", command::tool(family, "restore"), line)));
        }
    }
    Ok(None)
}

/// Whether `FORWARD` of the legacy variant drops by policy.
pub(super) fn legacy_drops_by_policy(family: Family) -> Result<bool, Error> {
    xtables::legacy_drops_by_policy(family, "filter", FORWARD)
}
