//! The MAC check of the Go plugin bridge. In the table `bridge nat`, PREROUTING jumps for a port to the chain
//! `cni-br-iface-<container>-<interface>`. Newer releases use `prerouting` of `bridge cni_spoofcheck`. That chain jumps
//! to one with `-mac` behind its name, which returns frames with the right source and drops the rest.

use nix::errno::Errno;

use cnimble_cni::Attachment;
use cnimble_netlink as netlink;
use cnimble_netlink::link::Mac;
use cnimble_netlink::nft::{
    Batch, Expr, Family, Header, Hook, HookPoint, Key, Meta, Nft, REG1, Rule, Table, Verdict,
};

use super::retry::retry;
use super::xtables;

/// The tables with their base chains, of older and newer releases.
const PLACES: [(Table<'static>, &str); 2] = [
    (Table::new(Family::Bridge, "nat"), "PREROUTING"),
    (Table::new(Family::Bridge, "cni_spoofcheck"), "prerouting"),
];
/// The priority of the base chain, before everything else that looks at frames, as in `spoof`.
const PRIORITY: i32 = -300;
const PREFIX: &str = "cni-br-iface-";

fn chain_name(attachment: &Attachment) -> String {
    format!("{PREFIX}{}-{}", attachment.container_id, attachment.ifname)
}

/// Adds the rules as the Go releases up to 1.9.1 do. They find the rule of the base chain by its comment. A second call
/// leaves the same rules.
pub(super) fn add(nft: &mut Nft, attachment: &Attachment, port: &str, mac: Mac) -> netlink::Result<()> {
    let [(table, base), _] = PLACES;
    let chain = chain_name(attachment);
    let mac_chain = format!("{chain}-mac");
    let comment = format!("macspoofchk-{}-{}", attachment.container_id, attachment.ifname);
    retry(&[Errno::ENOENT, Errno::EEXIST], || {
        let mut batch = Batch::new();
        if !nft.has_table(table)? {
            batch.create_table(table);
        }
        if !nft.has_chain(table.chain(base))? {
            let hook = Hook { kind: "filter", hook: HookPoint::Prerouting, priority: PRIORITY };
            batch.create_base_chain(table.chain(base), hook);
        }
        for rule in nft.rules(table, Some(base))? {
            if rule.target().as_deref() == Some(&chain) {
                batch.delete_rule(table.chain(base), rule.handle);
            }
        }
        for name in [&chain, &mac_chain] {
            if nft.has_chain(table.chain(name))? {
                batch.flush_chain(table.chain(name));
            } else {
                batch.create_chain(table.chain(name));
            }
        }
        let at_port =
            [Expr::meta(Meta::Iifname, REG1), Expr::equal(REG1, Key::ifname(port).bytes()), jump_to(&chain)];
        let allowed = [
            Expr::payload(Header::Link, 6, 6, REG1),
            Expr::equal(REG1, &mac.0),
            Expr::verdict(Verdict::Return),
        ];
        batch.add_rule(table.chain(base), &at_port, &comment);
        batch.add_rule(table.chain(&chain), &[jump_to(&mac_chain)], &comment);
        batch.add_rule(table.chain(&mac_chain), &allowed, &comment);
        batch.add_rule(table.chain(&mac_chain), &[Expr::verdict(Verdict::Drop)], &comment);
        nft.commit(&batch)
    })
}

/// Removes the attachment's chains and the jumps to them.
pub(super) fn remove(nft: &mut Nft, attachment: &Attachment) -> netlink::Result<()> {
    remove_chain(nft, &chain_name(attachment))
}

/// Removes a chain, the one with `-mac` behind its name, and the jumps to them.
pub(super) fn remove_chain(nft: &mut Nft, chain: &str) -> netlink::Result<()> {
    for (table, base) in PLACES {
        if nft.has_table(table)? {
            xtables::remove_chains(nft, table, base, &[chain, &format!("{chain}-mac")])?;
        }
    }
    Ok(())
}

/// Returns the expression that jumps to a chain.
fn jump_to(chain: &str) -> Expr {
    Expr::verdict(Verdict::Jump(chain.to_owned()))
}

/// Returns the first rule of the chain `from` that jumps to the chain `to`, or `None` if there is none.
fn find_jump<'a>(rules: &'a [Rule], from: &str, to: &str) -> Option<&'a Rule> {
    rules.iter().find(|rule| rule.chain == from && rule.target().as_deref() == Some(to))
}

/// Returns whether the Go plugin's rules let only this MAC pass from the port.
pub(super) fn guards(nft: &mut Nft, attachment: &Attachment, port: &str, mac: Mac) -> netlink::Result<bool> {
    let chain = chain_name(attachment);
    let mac_chain = format!("{chain}-mac");
    for (table, base) in PLACES {
        let rules = nft.rules(table, None)?;
        let at_port = find_jump(&rules, base, &chain)
            .is_some_and(|rule| rule.constants().any(|name| trimmed(name) == port.as_bytes()));
        let allowed =
            rules.iter().any(|rule| rule.chain == mac_chain && rule.constants().any(|c| c == mac.0));
        if at_port && find_jump(&rules, &chain, &mac_chain).is_some() && allowed {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns an interface's name in a rule without the NUL bytes behind it.
fn trimmed(name: &[u8]) -> &[u8] {
    let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
    name.get(..end).unwrap_or_default()
}

/// Removes the chains of missing ports. The rules do not name the network, and an existing port may belong to another
/// one.
pub(super) fn gc(nft: &mut Nft) -> netlink::Result<()> {
    stale(nft)?.iter().try_for_each(|(_, chain)| remove_chain(nft, chain))
}

/// Returns the chains of ports that don't exist in this namespace, each with its table.
pub(super) fn stale(nft: &mut Nft) -> netlink::Result<Vec<(Table<'static>, String)>> {
    let mut stale = Vec::new();
    for (table, base) in PLACES {
        for rule in nft.rules(table, Some(base))? {
            let Some(chain) = rule.target().filter(|chain| chain.starts_with(PREFIX)) else { continue };
            let port_exists = rule
                .constants()
                .filter_map(|name| std::str::from_utf8(trimmed(name)).ok())
                .any(|name| nix::net::if_::if_nametoindex(name) != Err(Errno::ENODEV));
            if !port_exists {
                stale.push((table, chain));
            }
        }
    }
    Ok(stale)
}
