//! The vlans of a port: one untagged, or several tagged.

use cnimble::net::Netlink;
use cnimble::net::link::Link;
use cnimble::net::port::{self, Vlan};
use cnimble::spec::Error;

use crate::config::Config;

/// The vlans that a port of this configuration has to carry.
pub(crate) fn wanted(config: &Config) -> Vec<(Vlan, u16)> {
    let access = config.vlan.map(|id| (Vlan { id, pvid: true, untagged: true }, id));
    let trunk =
        config.trunk.iter().map(|(first, last)| (Vlan { id: *first, pvid: false, untagged: false }, *last));
    access.into_iter().chain(trunk).collect()
}

/// Gives `port` its vlans, and takes those that the bridge gave it by default unless they
/// are to be kept.
pub(crate) fn configure_port(host: &mut Netlink, config: &Config, link: &Link) -> Result<(), Error> {
    if !config.uses_vlans() {
        return Ok(());
    }
    let mut requests = Vec::new();
    if !config.preserve_default_vlan {
        for vlan in host.vlans(link.index)? {
            requests.push(port::del_vlans(link.index, &link.name, vlan.id, vlan.id, false));
        }
    }
    for (vlan, last) in wanted(config) {
        requests.push(port::add_vlans(link.index, &link.name, vlan, last, false));
    }
    Ok(host.execute_all(requests)?)
}
