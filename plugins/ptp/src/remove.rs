//! DEL and GC. Addresses and routes go with the pair.

use cnimble::net::Netlink;
use cnimble::net::link::Filter;
use cnimble::net::nft::Nft;
use cnimble::plugin::{Call, Command, delegate};
use cnimble::rules::{Owner, masquerade};
use cnimble::spec::Error;
use cnimble::veth::remove::{self, all};
use ipnetwork::IpNetwork;

/// DEL: rules first, while the lease still keeps the address from being given to another
/// pod; then the pair; the lease last, and not while the pair is there. Nothing else stops
/// at a failure. Whether the configuration has rules isn't asked: it may have changed.
pub(crate) fn attachment(call: &Call, owner: &Owner) -> Result<(), Error> {
    let mut host = Netlink::open()?;
    let mut nft = Nft::new();
    let addrs: Vec<IpNetwork> =
        call.config.prev_result.iter().flat_map(|prev| &prev.ips).map(|ip| ip.address).collect();

    let rules = masquerade::remove(&mut nft, owner, &addrs);
    let pair = remove::find(call, &mut host, owner, false)
        .and_then(|found| remove::veth(call, &mut host, owner, found));
    let lease = match (&pair, call.config.ipam_type.as_str()) {
        (Err(_), _) | (_, "") => Ok(()),
        (Ok(()), ipam) => delegate::call(call, ipam, Command::Del),
    };
    all([pair, lease, rules])
}

/// GC: the same for all attachments of this network that aren't valid. Nothing stops at an
/// error; all are reported.
pub(crate) fn network(call: &Call) -> Result<(), Error> {
    // No list: nothing may be cleaned. The skeleton doesn't even come here.
    let Some(valid) = &call.config.valid_attachments else { return Ok(()) };
    let network = &call.config.name;
    let mut nft = Nft::new();
    let rules = masquerade::gc(&mut nft, network, valid);
    let pairs = pairs(network, valid);
    let leases = match (&pairs, call.config.ipam_type.as_str()) {
        (Err(_), _) | (_, "") => Ok(()),
        (Ok(()), ipam) => delegate::call(call, ipam, Command::Gc),
    };
    all([pairs, leases, rules])
}

fn pairs(network: &str, valid: &[cnimble::spec::Attachment]) -> Result<(), Error> {
    let mut host = Netlink::open()?;
    remove::stale(&mut host, network, valid, &Filter { master: None, kind: Some("veth") })
}
