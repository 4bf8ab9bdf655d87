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

/// Of whatever bridge: its name in the configuration may have changed, and leases go with
/// the network.
fn veths(config: &Config, valid: &[Attachment]) -> Result<(), Error> {
    let all = Filter { master: None, kind: Some("veth") };
    remove::stale(&mut Netlink::open()?, &config.network, valid, &all)
}
