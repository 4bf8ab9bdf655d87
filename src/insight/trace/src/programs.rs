//! Names what decides about packets on a link and that no trace sees: programs of tc and XDP, chains of nf_tables on one
//! link, and the programs of netkit. They are named, and not judged.

use cnimble_netlink::link::Link;
use cnimble_netlink::nft::DeviceChain;
use cnimble_netlink::{Error, Netlink};

use super::walk::Walk;

/// How many things are named that a pod can make any number of: filters on its own link, or links.
const MOST: usize = 5;

impl Walk<'_> {
    /// Returns the texts about what is on a link of the host.
    pub(crate) fn programs_on(&mut self, link: &Link) -> Result<Vec<String>, Error> {
        if self.device_chains.is_none() {
            // A kernel without nf_tables has none.
            self.device_chains = Some(self.nft.device_chains().unwrap_or_default());
        }
        let mut found = programs_of(&mut self.host, link)?;
        for DeviceChain { table, chain, .. } in
            self.device_chains.iter().flatten().filter(|of| of.link == link.name)
        {
            found.push(format!("nft chain {table} {chain}"));
        }
        Ok(bounded(found))
    }
}

/// Returns the texts about the programs of a link in any namespace, without chains of nf_tables.
pub(crate) fn programs_of(net: &mut Netlink, link: &Link) -> Result<Vec<String>, Error> {
    let tc = net.tc_programs(link.index)?;
    let mut found: Vec<String> = tc.into_iter().map(|program| format!("tc {program}")).collect();
    found.extend(net.xdp_programs(link.index)?.into_iter().map(|number| format!("XDP program {number}")));
    if link.kind == "netkit" {
        found.push("the eBPF programs of netkit".to_owned());
    }
    Ok(bounded(found))
}

/// Returns the first texts, and in place of the others their number.
pub(crate) fn bounded(mut texts: Vec<String>) -> Vec<String> {
    let more = texts.len().saturating_sub(MOST);
    if more > 0 {
        texts.truncate(MOST);
        texts.push(format!("{more} more"));
    }
    texts
}

/// Returns the end of a text about a link with these programs.
pub(crate) fn in_words(programs: &[String]) -> String {
    if programs.is_empty() { String::new() } else { format!(", with {}", programs.join(", ")) }
}

/// Returns the texts about programs, each with the link that it is on.
pub(crate) fn on_link(link: &str, programs: Vec<String>) -> Vec<String> {
    programs.into_iter().map(|program| format!("{program} on {link}")).collect()
}
