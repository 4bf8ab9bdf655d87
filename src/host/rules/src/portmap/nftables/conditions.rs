//! Maps for `conditionsV4` and `conditionsV6` in the language of the `nft` command. Mappings with the same conditions
//! share a map. Its rule has the conditions in front of the look-up:
//! ```text
//! meta nfproto ipv4 ip daddr != { 127.0.0.0/8, 198.51.100.7 } dnat ip to meta l4proto . th dport map
//! @portmap-when-HASH-4
//! ```
//! Only the command understands its language. So the command makes map and rule, in one transaction, before the first
//! mapping comes. An ADD that finds them runs no command. The last mapping in the map removes both.

use std::fmt::Write;

use cnimble_cni::hash::hash16;
use cnimble_cni::{Code, Error};
use cnimble_netlink::nft::Nft;

use super::names::{DISPATCH, Portmap, family, is_of_addresses};
use crate::command;
use crate::elements::Layout;
use crate::portmap::Forward;

const NFT: &str = "nft";

/// Returns the hash of conditions for the name of their map, or `None` without conditions.
pub(super) fn hash(conditions: &[String]) -> Option<String> {
    let text = text(conditions);
    (!text.is_empty()).then(|| hash16(&text))
}

/// Joins the trimmed conditions with single spaces. Blank ones don't count.
fn text(conditions: &[String]) -> String {
    let words: Vec<&str> =
        conditions.iter().map(|word| word.trim()).filter(|word| !word.is_empty()).collect();
    words.join(" ")
}

/// Why the map was not made.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) err: Error,
    /// Whether to try again, because the ruleset has changed meanwhile. A concurrent call may have made the same map,
    /// or removed the chain for its rule.
    pub(super) is_overtaken: bool,
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(err: E) -> Self {
        Failure { err: err.into(), is_overtaken: false }
    }
}

/// Makes missing maps and the rules over them, all or none. The part must exist
/// ([`elements::prepare`](crate::elements)).
pub(super) fn make_maps(nft: &mut Nft, sets: &[String], forward: &Forward) -> Result<(), Failure> {
    available()?;
    let before = nft.generation()?;
    let mut script = String::new();
    for set in sets {
        let is_there = nft.has_set(Portmap::TABLE.set(set))?;
        script.push_str(&commands(set, forward, is_there));
    }
    let Err(err) = command::run(NFT, &["-f", "-"], &script) else { return Ok(()) };
    let err = err.details("its commands were made of conditionsV4 and conditionsV6");
    // The chain may also have been removed by another DEL before the first look at the generation.
    let is_overtaken = nft.generation()? != before || !nft.has_chain(Portmap::TABLE.chain(DISPATCH))?;
    Err(Failure { err, is_overtaken })
}

/// Returns the commands that make a map, unless it exists, and its rule. The rule over a map for single addresses of
/// the host comes in front of all others.
fn commands(set: &str, forward: &Forward, is_there: bool) -> String {
    let ipv4 = family(set).is_none_or(|ip| ip.is_ipv4());
    let (ip, addr, conditions) =
        if ipv4 { ("ip", "ipv4", &forward.conditions_v4) } else { ("ip6", "ipv6", &forward.conditions_v6) };
    let (verb, of, from) = if is_of_addresses(set) {
        ("insert", format!("{addr}_addr . "), format!("{ip} daddr . "))
    } else {
        ("add", String::new(), String::new())
    };
    let (table, conditions) = (Portmap::TABLE, text(conditions));
    let mut commands = String::new();
    if !is_there {
        let types = format!("{of}inet_proto . inet_service : {addr}_addr . inet_service");
        let _ = writeln!(commands, "create map {table} {set} {{ type {types}; }}");
    }
    let _ = writeln!(
        commands,
        "{verb} rule {table} {DISPATCH} meta nfproto {addr} {conditions} dnat {ip} to {from}meta l4proto . th dport map @{set}"
    );
    commands
}

/// Fails with code 100 and a hint if the `nft` command is not installed.
pub(in crate::portmap) fn available() -> Result<(), Error> {
    if command::find_program(NFT).is_some() {
        return Ok(());
    }
    Err(Error::new(Code::KERNEL, format!("the command {NFT} is not installed"))
        .details("conditionsV4 and conditionsV6 are in its language")
        .details("install nftables, or give them as iptables takes them (-d …, ! -d …)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_known_by_their_text() {
        let of = |words: &[&str]| hash(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[""]), None);
        assert_eq!(of(&["ip", "daddr", "192.0.2.1"]), of(&["ip daddr", " 192.0.2.1 "]));
        assert_ne!(of(&["ip", "daddr", "192.0.2.1"]), of(&["ip", "daddr", "192.0.2.2"]));
    }
}
