//! GC: what belongs to attachments that the runtime no longer knows.

use cnimble::net::Netlink;
use cnimble::net::link::Filter;
use cnimble::net::nft::Nft;
use cnimble::plugin::{Call, Command, delegate};
use cnimble::rules::{masquerade, spoof};
use cnimble::spec::{Attachment, Error};
use cnimble::veth::remove::{self, all};

/// Removes host veths, rules and leases of this network's attachments that aren't valid.
/// Nothing stops at an error; all are reported. As for DEL, only the network's name and its
/// IPAM plugin matter: a configuration that has gone bad must not keep what is stale.
pub(crate) fn network(call: &Call) -> Result<(), Error> {
    // No list: nothing may be cleaned. The skeleton doesn't even come here.
    let Some(valid) = &call.config.valid_attachments else { return Ok(()) };
    let network = &call.config.name;
    let mut nft = Nft::new();
    let masquerade = masquerade::gc(&mut nft, network, valid);
    let spoof = spoof::gc(&mut nft, network, valid);
    let veths = veths(network, valid);
    let leases = match (&veths, call.config.ipam_type.as_str()) {
        (Err(_), _) | (_, "") => Ok(()),
        (Ok(()), ipam) => delegate::call(call, ipam, Command::Gc),
    };
    all([veths, leases, masquerade, spoof])
}

/// Of whatever bridge: its name in the configuration may have changed, and leases go with
/// the network.
fn veths(network: &str, valid: &[Attachment]) -> Result<(), Error> {
    let all = Filter { master: None, kind: Some("veth") };
    remove::stale(&mut Netlink::open()?, network, valid, &all)
}
