//! Masquerading with iptables, in one child process per family. Chains and comments are those of the reference, so
//! either set of plugins can remove the other's. A chain also has the rules of a container's second interface in the
//! network.

use ipnetwork::IpNetwork;

use cnimble_cni::{Error, Owner};
use cnimble_netlink::nft::{Family, Nft};

use crate::go_chains::MASQUERADE;
use crate::undo::{Applied, undone};
use crate::xtables::{FAMILIES, nat};
use crate::{command, xtables};

pub(super) fn add(nft: &mut Nft, owner: &Owner, addrs: &[IpNetwork]) -> Result<Applied, Error> {
    let mut undo = Applied::default();
    if super::check_reference(nft, owner, addrs)? {
        return Ok(undo);
    }
    for family in FAMILIES {
        let addrs: Vec<&IpNetwork> =
            addrs.iter().filter(|addr| addr.is_ipv4() == (family == Family::Ipv4)).collect();
        if addrs.is_empty() {
            continue;
        }
        if nft.is_supported()? && !nft.has_table(nat(family))? {
            undo.push(move |nft| xtables::drop_table(nft, nat(family)));
        }
        match add_family(owner, family, &addrs) {
            Ok(lines) => undo.push(move |_| restore(family, &lines)),
            Err(err) => return Err(undone(err, undo.run())),
        }
    }
    Ok(undo)
}

fn restore(family: Family, lines: &[String]) -> Result<(), Error> {
    command::restore(family, "nat", lines)
}

/// Returns the lines that take the rules back.
fn add_family(owner: &Owner, family: Family, addrs: &[&IpNetwork]) -> Result<Vec<String>, Error> {
    let rules = Rules::new(owner, family, addrs);
    let Err(first) = restore(family, &rules.whole()) else { return Ok(rules.without()) };
    // The usual reason is that the chain is there: another interface's, or a former life's.
    let saved = command::run(&command::tool(family, "save"), &["-t", "nat"], "")?;
    let Some(missing) = rules.missing(&saved) else { return Err(first) };
    let lines: Vec<String> = missing.iter().map(Line::add).collect();
    restore(family, &lines)?;
    Ok(missing.iter().map(Line::delete).collect())
}

/// The rules that the saved table `nat` lacks for these addresses.
pub(crate) fn missing(owner: &Owner, family: Family, addrs: &[&IpNetwork], saved: &str) -> Vec<String> {
    let rules = || Rules::new(owner, family, addrs);
    match rules().missing(saved) {
        Some(missing) => missing.iter().map(Line::add).collect(),
        None => rules().whole(),
    }
}

struct Line {
    /// In front of its chain, or behind it.
    first: bool,
    rule: String,
}

impl Line {
    fn add(&self) -> String {
        format!("-{} {}", if self.first { 'I' } else { 'A' }, self.rule)
    }

    fn delete(&self) -> String {
        format!("-D {}", self.rule)
    }
}

struct Rules {
    chain: String,
    lines: Vec<Line>,
}

impl Rules {
    fn new(owner: &Owner, family: Family, addrs: &[&IpNetwork]) -> Self {
        let chain = MASQUERADE.of(owner);
        let comment = MASQUERADE.comment(&owner.network, &owner.attachment.container_id);
        let comment =
            format!("-m comment --comment \"{}\"", comment.replace('\\', "\\\\").replace('"', "\\\""));
        let (multicast, host) = if family == Family::Ipv4 { ("224.0.0.0/4", 32) } else { ("ff00::/8", 128) };
        let mut lines =
            vec![Line { first: false, rule: format!("{chain} ! -d {multicast} {comment} -j MASQUERADE") }];
        for addr in addrs {
            let (ip, network, prefix) = (addr.ip(), addr.network(), addr.prefix());
            lines.push(Line {
                first: true,
                rule: format!("{chain} -d {network}/{prefix} {comment} -j ACCEPT"),
            });
            lines.push(Line {
                first: false,
                rule: format!("POSTROUTING -s {ip}/{host} {comment} -j {chain}"),
            });
        }
        Rules { chain, lines }
    }

    /// `-N` refuses a chain that exists, and with it everything: nothing is there twice.
    fn whole(&self) -> Vec<String> {
        let new = format!("-N {}", self.chain);
        std::iter::once(new).chain(self.lines.iter().map(Line::add)).collect()
    }

    fn without(&self) -> Vec<String> {
        let chain = [format!("-X {}", self.chain)];
        self.lines.iter().map(Line::delete).chain(chain).collect()
    }

    /// `None` if the table lacks even the chain.
    fn missing(self, saved: &str) -> Option<Vec<Line>> {
        let chain = format!(":{} ", self.chain);
        if !saved.lines().any(|line| line.starts_with(&chain)) {
            return None;
        }
        let is_saved = |rule: &str| saved.lines().any(|line| line.strip_prefix("-A ") == Some(rule));
        Some(self.lines.into_iter().filter(|line| !is_saved(&line.rule)).collect())
    }
}

/// For fuzzers: adds what is missing to a table; then nothing is.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(text: &str, owner: &Owner, addr: IpNetwork) {
    let wanted = || Rules::new(owner, Family::Ipv4, &[&addr]);
    let Some(missing) = wanted().missing(text) else { return };
    let lines = missing.iter().map(|line| format!("\n-A {}", line.rule));
    let text = lines.fold(text.to_owned(), |text, line| text + &line);
    assert!(wanted().missing(&text).is_some_and(|missing| missing.is_empty()), "{text}");
}
