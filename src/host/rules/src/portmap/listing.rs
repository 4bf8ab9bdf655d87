//! The mappings as people read them.

use cnimble_netlink::Result;
use cnimble_netlink::nft::{Nft, protocol_name};

use super::nftables::Portmap;
use crate::elements::{self, Placed};
use crate::listed::{Effect, Listed, Whose};

/// All mappings, without the rules for hairpin and localhost.
pub(super) fn list(nft: &mut Nft) -> Result<Vec<Listed>> {
    let found = elements::find::<Portmap>(nft, |_| true)?;
    let read = found.into_iter().filter_map(|Placed { element, .. }| {
        let (host_address, protocol, host_port) = element.key.as_port()?;
        let (address, port) = element.data.as_ref()?.as_service()?;
        let protocol = protocol_name(protocol);
        let effect = Effect::PortMapping { protocol, host_address, host_port, address, port };
        Some(Listed { owner: Whose::Comment(element.comment), effect })
    });
    Ok(read.collect())
}
