//! GC of attachments that the runtime no longer knows.

use cnimble_cni::{Attachment, Error};
use cnimble_netlink::Netlink;
use cnimble_netlink::nft::Nft;
use cnimble_plugin::interface::remove::{self, all};
use cnimble_plugin::{Call, Command, delegate};
use cnimble_rules::{isolation, masquerade, spoof};

use crate::unused;

/// Removes the rules, veth pairs and leases of all attachments of the network that are not `valid`, and an unused
/// bridge. Leases stay if a veth pair could not be removed.
///
/// Continues after errors and returns all of them. An invalid configuration must not prevent the removal, so only the
/// network's name and its IPAM plugin matter. The bridge alone needs a valid one.
pub(crate) fn network(call: &Call, valid: &[Attachment]) -> Result<(), Error> {
    let network = &call.config.name;
    let mut nft = Nft::new();
    let masquerade = masquerade::gc(&mut nft, network, valid);
    let spoof = spoof::gc(&mut nft, network, valid);
    let isolation = isolation::gc(&mut nft, network, valid);
    // The veth pairs may be on any bridge. Its name may have changed since ADD, and the leases depend on the network
    // only.
    let veths = Netlink::open()
        .map_err(Error::from)
        .and_then(|mut host| remove::stale(&mut host, "veth", network, valid));
    let leases = delegate::release(call, &veths, Command::Gc);
    let bridge = Netlink::open().map_err(Error::from).and_then(|mut host| unused::remove(call, &mut host));
    all([veths, leases, masquerade, spoof, isolation, bridge])
}
