//! GC: what belongs to attachments that the runtime no longer knows.

use cnimble::net::Netlink;
use cnimble::net::link::Filter;
use cnimble::net::nft::Nft;
use cnimble::plugin::{Call, Command, delegate};
use cnimble::rules::{masquerade, spoof};
use cnimble::spec::{Attachment, Error};
use cnimble::veth::remove::{self, all};

use crate::config::Config;

/// Removes host veths, rules and leases of this network's attachments that aren't valid.
/// Nothing stops at an error; all are reported.
pub(crate) fn network(call: &Call) -> Result<(), Error> {
    let config = Config::read(&call.config)?;
    // No list: nothing may be cleaned. The skeleton doesn't even come here.
    let Some(valid) = &call.config.valid_attachments else { return Ok(()) };
    let mut nft = Nft::new();
    let masquerade = masquerade::gc(&mut nft, &config.network, valid);
    let spoof = spoof::gc(&mut nft, &config.network, valid);
    let veths = veths(&config, valid);
    let leases = match (&veths, &config.ipam) {
        (Ok(()), Some(ipam)) => delegate::call(call, ipam, Command::Gc),
        _ => Ok(()),
    };
    all([veths, leases, masquerade, spoof])
}

/// The ports of the bridge.
fn veths(config: &Config, valid: &[Attachment]) -> Result<(), Error> {
    let mut host = Netlink::open()?;
    let Some(bridge) = host.find_link(&config.bridge)? else { return Ok(()) };
    let ports = Filter { master: Some(bridge.index), kind: Some("veth") };
    remove::stale(&mut host, &config.network, valid, &ports)
}
