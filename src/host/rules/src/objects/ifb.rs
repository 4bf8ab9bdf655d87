//! The ifb of the plugin bandwidth, which limits what a pod sends. Its name is the Go plugin's, made of network and
//! container. An ifb of cnimble also has an alias with the owner.

use cnimble_cni::Error;
use cnimble_cni::hash::sha512_hex;
use cnimble_cni::owner::tag;
use cnimble_netlink::Netlink;
use cnimble_netlink::link::{Filter, Link};

use super::{Judge, Orphan};

pub const KIND: &str = "ifb";

const PREFIX: &str = "bwp";
const DIGITS: usize = 12;

/// Returns the name of a container's ifb: `bwp` and twelve hexadecimal digits of the SHA-512 of network and container.
pub fn name(network: &str, container_id: &str) -> String {
    format!("{PREFIX}{}", sha512_hex(format!("{network}{container_id}"), DIGITS / 2))
}

/// Returns whether a text has the form of a [`name`].
pub fn is_name(text: &str) -> bool {
    text.strip_prefix(PREFIX)
        .is_some_and(|hash| hash.len() == DIGITS && hash.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Returns the verdict on an ifb, or `None` if it may be in use. cnimble's own is judged by its alias. The Go plugin's
/// has none and is judged by its name; it counts as used if a link redirects to it.
pub(super) fn orphan(judge: &impl Judge, link: &Link) -> Result<Option<Orphan>, Error> {
    let why = match tag(&link.alias) {
        Some(_) if judge.lives(&link.alias) => return Ok(None),
        Some(_) => "it limits a pod, and nothing shows that the pod lives",
        None if !is_name(&link.name) || !link.alias.is_empty() || judge.has_ifb(&link.name) => {
            return Ok(None);
        }
        None => "it has a name as the plugin bandwidth makes it, and no link leads to it",
    };
    let used = is_used(&mut Netlink::open()?, link.index)?;
    if used && link.alias.is_empty() {
        return Ok(None);
    }
    let doubt = if used { Some("a link of the host still leads to it".to_owned()) } else { judge.doubt() };
    Ok(Some(Orphan { why, doubt }))
}

/// Returns whether a link of the host redirects packets to the ifb with this index.
pub(super) fn is_used(host: &mut Netlink, index: u32) -> Result<bool, Error> {
    for link in host.links(&Filter::default())? {
        if host.redirects(link.index)?.contains(&index) {
            return Ok(true);
        }
    }
    Ok(false)
}
