//! GC of attachments that the runtime no longer knows.

use cnimble_cni::{Attachment, Error};
use cnimble_netlink::Netlink;
use cnimble_netlink::nft::Nft;
use cnimble_plugin::interface::remove::{self, all};
use cnimble_plugin::{Call, Command, delegate};
use cnimble_rules::{isolation, masquerade, spoof};

use crate::unused;

/// Continues after errors. An invalid configuration must not prevent the removal: only the network's name and its IPAM
/// plugin matter.
pub(crate) fn network(call: &Call, valid: &[Attachment]) -> Result<(), Error> {
    let network = &call.config.name;
    let mut nft = Nft::new();
    let masquerade = masquerade::gc(&mut nft, network, valid);
    let spoof = spoof::gc(&mut nft, network, valid);
    let isolation = isolation::gc(&mut nft, network, valid);
    // Of any bridge: its name may have changed, and leases depend on the network only.
    let veths = Netlink::open()
        .map_err(Error::from)
        .and_then(|mut host| remove::stale(&mut host, "veth", network, valid));
    let leases = delegate::release(call, &veths, Command::Gc);
    let bridge = Netlink::open().map_err(Error::from).and_then(|mut host| unused::remove(call, &mut host));
    all([veths, leases, masquerade, spoof, isolation, bridge])
}
