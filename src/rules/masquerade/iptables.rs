//! Masquerading with iptables: the reference's chains and comments, so that either set of
//! plugins can remove what the other made; one child process per family.

use ipnetwork::IpNetwork;

use super::reference;
use crate::net::nft::{Family, Nft, Table};
use crate::rules::xtables::FAMILIES;
use crate::rules::{Owner, command, xtables};
use crate::spec::{Code, Error};

/// What [`add`] made.
#[derive(Debug)]
pub(super) struct Made {
    owner: Option<Owner>,
    /// Tables `nat` that weren't there before iptables' nf_tables variant made them.
    tables: Vec<Family>,
}

pub(super) fn add(nft: &mut Nft, owner: &Owner, addrs: &[IpNetwork]) -> Result<Made, Error> {
    if super::check_reference(nft, owner, addrs)? {
        return Ok(Made { owner: None, tables: Vec::new() });
    }
    let mut made = Made { owner: Some(owner.clone()), tables: Vec::new() };
    for family in FAMILIES {
        let addrs: Vec<&IpNetwork> =
            addrs.iter().filter(|addr| addr.is_ipv4() == (family == Family::Ipv4)).collect();
        if addrs.is_empty() {
            continue;
        }
        if nft.probe().is_ok() && !nft.has_table(Table::new(family, "nat"))? {
            made.tables.push(family);
        }
        if let Err(err) = add_family(nft, owner, family, &addrs) {
            return Err(match revert(nft, &made) {
                Ok(()) => err,
                Err(undo) => err.details(format!("and what was added could not be removed: {undo}")),
            });
        }
    }
    Ok(made)
}

fn restore(family: Family) -> &'static str {
    if family == Family::Ipv4 { "iptables-restore" } else { "ip6tables-restore" }
}

fn add_family(nft: &mut Nft, owner: &Owner, family: Family, addrs: &[&IpNetwork]) -> Result<(), Error> {
    let input = rules(owner, family, addrs);
    let run = || command::run(restore(family), &["--noflush", "--wait=10"], &input);
    let Err(first) = run() else { return Ok(()) };
    // The usual reason is a chain that is there already, though not as it should be.
    if nft.probe().is_ok() {
        reference::remove_nf_tables(nft, owner)?;
    }
    reference::remove_legacy(owner)?;
    run().map(|_| ()).map_err(|_| first)
}

/// `-N` refuses a chain that exists, and with it everything: nothing is there twice.
fn rules(owner: &Owner, family: Family, addrs: &[&IpNetwork]) -> String {
    let chain = reference::owners_chain(owner);
    let comment = reference::comment(&owner.network, &owner.attachment.container_id);
    let comment = format!("-m comment --comment \"{}\"", comment.replace('\\', "\\\\").replace('"', "\\\""));
    let multicast = if family == Family::Ipv4 { "224.0.0.0/4" } else { "ff00::/8" };
    let mut lines = vec!["*nat".to_owned(), format!("-N {chain}")];
    for addr in addrs {
        lines.push(format!("-A {chain} -d {}/{} {comment} -j ACCEPT", addr.ip(), addr.prefix()));
    }
    lines.push(format!("-A {chain} ! -d {multicast} {comment} -j MASQUERADE"));
    for addr in addrs {
        lines.push(format!("-A POSTROUTING -s {} {comment} -j {chain}", addr.ip()));
    }
    lines.push("COMMIT\n".to_owned());
    lines.join("\n")
}

pub(super) fn revert(nft: &mut Nft, made: &Made) -> Result<(), Error> {
    let Some(owner) = &made.owner else { return Ok(()) };
    if nft.probe().is_ok() {
        reference::remove_nf_tables(nft, owner)?;
        for family in &made.tables {
            xtables::drop_table(nft, Table::new(*family, "nat"))?;
        }
    }
    reference::remove_legacy(owner)
}

/// Whether its commands are there.
pub(super) fn installed() -> bool {
    FAMILIES.into_iter().all(|family| command::find(restore(family)).is_some())
}

/// Whether iptables can be used.
pub(super) fn usable() -> Result<(), Error> {
    for name in ["iptables-restore", "ip6tables-restore"] {
        if command::find(name).is_none() {
            return Err(Error::new(Code::NOT_AVAILABLE, format!("the command {name} is not installed"))
                .details("install iptables, or set \"ipMasqBackend\": \"nftables\""));
        }
    }
    command::run("iptables-restore", &["--test", "--noflush", "--wait=10"], "*nat\nCOMMIT\n").map(|_| ())
}
