//! DEL and GC.

use ipnetwork::IpNetwork;

use cnimble_cni::{Attachment, Error};
use cnimble_netlink::Netlink;
use cnimble_netlink::nft::Nft;
use cnimble_plugin::interface::remove::{self, HostEnd, all};
use cnimble_plugin::{Call, Command, delegate};
use cnimble_rules::masquerade::{self, Sources};

use crate::config::Config;

/// Removes the rules first, while the lease still reserves the address, then the pair, then the lease. A step that
/// fails does not stop the others, but the lease stays while the pair exists. The first error is returned, with the
/// others in its details.
///
/// The configuration may have changed since ADD, so DEL looks for rules with any configuration.
pub(crate) fn attachment(call: &Call) -> Result<(), Error> {
    let owner = call.owner();
    let mut host = Netlink::open()?;
    let mut nft = Nft::new();
    let addrs: Vec<IpNetwork> =
        call.config.prev_result.iter().flat_map(|prev| &prev.ips).map(|ip| ip.address).collect();

    let translation =
        Config::read(&call.config).map(|config| config.masquerade.translation).unwrap_or_default();
    let sources = Sources { addrs: &addrs, translation: &translation };
    let rules = masquerade::remove(&mut nft, &owner, sources);
    let pair = remove::find_host_end(call, &mut host, &owner, HostEnd::Routed)
        .and_then(|found| remove::veth(call, &mut host, found));
    let lease = delegate::release(call, &pair, Command::Del);
    all([pair, lease, rules])
}

/// Removes the rules, pairs and leases of the network's attachments that are not `valid`. Leases stay if a pair could
/// not be removed. Continues after errors and returns all of them.
pub(crate) fn network(call: &Call, valid: &[Attachment]) -> Result<(), Error> {
    let network = &call.config.name;
    let mut nft = Nft::new();
    let rules = masquerade::gc(&mut nft, network, valid);
    let pairs = Netlink::open()
        .map_err(Error::from)
        .and_then(|mut host| remove::stale(&mut host, "veth", network, valid));
    let leases = delegate::release(call, &pairs, Command::Gc);
    all([pairs, leases, rules])
}
