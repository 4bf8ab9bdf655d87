//! GC: what belongs to attachments that the runtime no longer knows.

use cnimble::net::Netlink;
use cnimble::net::link::{self, Filter};
use cnimble::net::nft::Nft;
use cnimble::plugin::{Call, Command, delegate};
use cnimble::rules::{Owner, masquerade, spoof};
use cnimble::spec::{Attachment, Error};

use crate::config::Config;
use crate::remove::all;

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

/// Host ends are told by their alias; links without one are left alone: who made them
/// can't be known.
fn veths(config: &Config, valid: &[Attachment]) -> Result<(), Error> {
    let mut host = Netlink::open()?;
    let Some(bridge) = host.find_link(&config.bridge)? else { return Ok(()) };
    let keep: Vec<Owner> = valid
        .iter()
        .map(|attachment| Owner { network: config.network.clone(), attachment: attachment.clone() })
        .collect();
    let ports = host.links(&Filter { master: Some(bridge.index), kind: Some("veth") })?;
    let stale: Vec<_> = ports
        .into_iter()
        .filter(|port| Owner::in_network(&port.alias, &config.network))
        .filter(|port| !keep.iter().any(|owner| owner.owns(&port.alias)))
        .collect();
    all(stale.iter().map(|port| match host.execute(link::del(port.index, &port.name)) {
        Err(err) if !err.is_missing() => Err(err.into()),
        _ => Ok(()),
    }))
}
