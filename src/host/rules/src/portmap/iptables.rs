//! Maps ports with iptables, in one child process per family. Chains and comments are those of the Go plugins, so
//! either set of plugins can remove the other's rules. Only ours has the chain CNI-HOSTPORT-GUARD in the table
//! `mangle`, which keeps others from 127.0.0.0/8.

use std::collections::BTreeMap;

use ipnetwork::IpNetwork;

use cnimble_cni::cidr::default_route;
use cnimble_cni::{Error, Owner};
use cnimble_netlink::nft::{Family, Nft, Table};

use super::holder::IsGone;
use super::{Forward, Protocol, foreign, reference};
use crate::command;
use crate::go_chains::DNAT;
use crate::undo::undone;
use crate::xtables::{self, Variant, in_chain, nat};

const SETMARK: &str = "CNI-HOSTPORT-SETMARK";
const MASQ: &str = "CNI-HOSTPORT-MASQ";
pub(super) const GUARD: &str = "CNI-HOSTPORT-GUARD";
/// The maximum number of ports in one match `multiport`.
const MULTIPORT: usize = 15;

/// Writes the mappings into one variant of iptables. Removes the container's rules of an earlier run first, and its new
/// rules if it fails. The chains that containers share stay.
///
/// # Errors
/// Fails with code 102 if a port belongs to another container that is not gone.
pub(super) fn add(
    nft: &mut Nft,
    owner: &Owner,
    forward: &Forward,
    is_gone: IsGone<'_>,
    variant: Variant,
) -> Result<(), Error> {
    if nft.is_supported()? {
        super::nftables::refuse_taken(nft, owner, forward, is_gone)?;
    }
    foreign::refuse(nft, owner, forward, is_gone)?;
    // Rules of an earlier run of this container would come before the new ones.
    remove(nft, owner)?;
    if nft.is_supported()? {
        foreign::remove_own(nft, owner, forward)?;
    }
    for pod in &forward.addrs {
        if !forward.targets().any(|(_, used)| used == pod) {
            continue;
        }
        if let Err(err) = add_pod(nft, owner, forward, pod, variant) {
            return Err(undone(err, remove(nft, owner)));
        }
    }
    Ok(())
}

/// Writes the rules of one address of the pod. Tries again if a concurrent ADD has just made the shared chain.
fn add_pod(
    nft: &mut Nft,
    owner: &Owner,
    forward: &Forward,
    pod: &IpNetwork,
    variant: Variant,
) -> Result<(), Error> {
    let family = if pod.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
    let mut present = SharedChains::read(nft, family, variant)?;
    loop {
        let input = input(owner, forward, pod, &present);
        let restored = command::run(&variant.command(family, "restore"), &["--noflush", "--wait"], &input);
        let Err(err) = restored else { return Ok(()) };
        // Only a shared chain that was missing before and exists now explains the failure by a concurrent ADD.
        let had_chain = present.dnat;
        present = SharedChains::read(nft, family, variant)?;
        if had_chain || !present.dnat {
            return Err(err);
        }
    }
}

/// The chains and jumps that containers share, as far as they exist. These are the DNAT chain, and the jumps to it from
/// PREROUTING and OUTPUT. POSTROUTING has a jump to the masquerading chain, and PREROUTING of `mangle` one to the
/// guard.
#[derive(Debug, Default)]
pub(super) struct SharedChains {
    dnat: bool,
    prerouting: bool,
    output: bool,
    postrouting: bool,
    guard: bool,
}

impl SharedChains {
    /// Looks at the tables `nat` and `mangle` of one variant: by netlink, or for the legacy variant by `iptables-save`.
    pub(super) fn read(nft: &mut Nft, family: Family, variant: Variant) -> Result<Self, Error> {
        let is_legacy = variant == Variant::Legacy || xtables::is_legacy(&variant.command(family, "restore"));
        if !is_legacy {
            let rules = nft.rules(nat(family), None)?;
            let guard = nft.rules(Table::new(family, "mangle"), Some("PREROUTING"))?;
            return Ok(SharedChains {
                dnat: nft.has_chain(nat(family).chain(DNAT.parent))?,
                prerouting: reference::has_jump(&rules, "PREROUTING", DNAT.parent),
                output: reference::has_jump(&rules, "OUTPUT", DNAT.parent),
                postrouting: reference::has_jump(&rules, "POSTROUTING", MASQ),
                guard: guard.iter().any(|rule| rule.target().as_deref() == Some(GUARD)),
            });
        }
        let saved = xtables::legacy_table(family, "nat")?.unwrap_or_default();
        let rules = xtables::rules_in(&saved);
        let dnat = format!(":{} ", DNAT.parent);
        Ok(SharedChains {
            dnat: saved.lines().any(|line| line.starts_with(&dnat)),
            prerouting: reference::has_legacy_jump(&rules, "PREROUTING", DNAT.parent),
            output: reference::has_legacy_jump(&rules, "OUTPUT", DNAT.parent),
            postrouting: reference::has_legacy_jump(&rules, "POSTROUTING", MASQ),
            guard: xtables::legacy_rules_of(family, "mangle")?
                .unwrap_or_default()
                .iter()
                .any(|rule| in_chain(rule, "PREROUTING") && rule.ends_with(&format!(" -j {GUARD}"))),
        })
    }
}

/// Quotes an argument for `iptables-restore`.
fn quoted(argument: &str) -> String {
    format!("\"{}\"", argument.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Returns the input of `iptables-restore --noflush`.
///
/// A line `:CHAIN` makes a chain or empties it, so that no rule is there twice. A line `-N` keeps what others have put
/// into the chain since the look. If the chain exists by then, the legacy variant refuses the whole table. The
/// nf_tables variant may add second jumps, which do no harm.
fn input(owner: &Owner, forward: &Forward, pod: &IpNetwork, present: &SharedChains) -> String {
    let mut lines = Vec::new();
    if forward.localhost() == Some(pod.ip()) {
        lines.push("*mangle".to_owned());
        lines.push(format!(":{GUARD} - [0:0]"));
        for end in ["-d", "-s"] {
            lines.push(format!("-A {GUARD} ! -i lo {end} 127.0.0.0/8 -j DROP"));
        }
        if !present.guard {
            lines.push(format!("-I PREROUTING -j {GUARD}"));
        }
        lines.push("COMMIT".to_owned());
    }
    lines.push("*nat".to_owned());
    let marks = forward.snat && forward.external_mark_chain.is_none();
    shared(&mut lines, marks.then_some(forward.mark_bit), present);
    lines.push(format!(":{} - [0:0]", DNAT.name_of(owner)));
    container(&mut lines, owner, forward, pod);
    lines.push("COMMIT\n".to_owned());
    lines.join("\n")
}

/// Adds the lines that make missing shared chains and the jumps to them. `mark` is the number of the bit for
/// masquerading, or `None` if no mark chain is needed.
pub(super) fn shared(lines: &mut Vec<String>, mark: Option<u8>, present: &SharedChains) {
    if let Some(bit) = mark {
        let mark = format!("{0:#x}/{0:#x}", 1_u32 << (bit & 31));
        lines.push(format!(":{SETMARK} - [0:0]"));
        lines.push(format!(":{MASQ} - [0:0]"));
        let comment = quoted("CNI portfwd masquerade mark");
        lines.push(format!("-A {SETMARK} -m comment --comment {comment} -j MARK --set-xmark {mark}"));
        lines.push(format!("-A {MASQ} -m mark --mark {mark} -j MASQUERADE"));
        if !present.postrouting {
            // It must come before the rules by which bridge and ptp masquerade.
            let comment = quoted("CNI portfwd requiring masquerade");
            lines.push(format!("-I POSTROUTING -m comment --comment {comment} -j {MASQ}"));
        }
    }
    if !present.dnat {
        lines.push(format!("-N {}", DNAT.parent));
    }
    for (chain, has_jump) in [("PREROUTING", present.prerouting), ("OUTPUT", present.output)] {
        if !has_jump {
            lines.push(format!("-A {chain} -m addrtype --dst-type LOCAL -j {}", DNAT.parent));
        }
    }
}

/// Adds the rules of the container's own chain and the jumps to it, for one address of the pod. The chain must exist.
pub(super) fn container(lines: &mut Vec<String>, owner: &Owner, forward: &Forward, pod: &IpNetwork) {
    let Owner { network, attachment } = owner;
    let chain = DNAT.name_of(owner);
    let comment = quoted(&reference::comment(network, &attachment.container_id));
    let conditions = if pod.is_ipv4() { &forward.conditions_v4 } else { &forward.conditions_v6 };
    let conditions: String = conditions.iter().map(|argument| format!(" {}", quoted(argument))).collect();
    let mut by_protocol: BTreeMap<Protocol, Vec<u16>> = BTreeMap::new();
    for (mapping, _) in forward.targets().filter(|(_, used)| *used == pod) {
        by_protocol.entry(mapping.protocol).or_default().push(mapping.host_port);
    }
    for (protocol, mut ports) in by_protocol {
        ports.sort_unstable();
        ports.dedup();
        for chunk in ports.chunks(MULTIPORT) {
            let ports: Vec<String> = chunk.iter().map(u16::to_string).collect();
            lines.push(format!(
                "-A {} -p {protocol} -m comment --comment {comment} -m multiport --destination-ports {}{conditions} -j {chain}",
                DNAT.parent,
                ports.join(",")
            ));
        }
    }
    let set_mark = quoted(forward.external_mark_chain.as_deref().unwrap_or(SETMARK));
    let everybody = default_route(*pod);
    let network = format!("{}/{}", pod.network(), pod.prefix());
    for (mapping, _) in forward.targets().filter(|(_, used)| *used == pod) {
        let to = mapping.address().map(|ip| format!(" -d {ip}")).unwrap_or_default();
        let rule = format!("-A {chain}{to} -p {} --dport {}", mapping.protocol, mapping.host_port);
        if forward.snat {
            let from = if forward.masq_all { everybody } else { &network };
            lines.push(format!("{rule} -s {from} -j {set_mark}"));
            if pod.is_ipv4() && !forward.masq_all {
                lines.push(format!("{rule} -s 127.0.0.1 -j {set_mark}"));
            }
        }
        let ip = if pod.is_ipv4() { pod.ip().to_string() } else { format!("[{}]", pod.ip()) };
        lines.push(format!("{rule} -j DNAT --to-destination {ip}:{}", mapping.container_port));
    }
}

/// Removes the container's chain and the jumps to it from both variants. Chains that containers share stay.
pub(super) fn remove(nft: &mut Nft, owner: &Owner) -> Result<(), Error> {
    if nft.is_supported()? {
        reference::remove_chains(nft, owner)?;
    }
    reference::remove_legacy(owner)
}
