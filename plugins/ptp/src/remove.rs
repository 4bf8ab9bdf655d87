use ipnetwork::IpNetwork;

use cnimble_cni::{Attachment, Error};
use cnimble_netlink::Netlink;
use cnimble_netlink::nft::Nft;
use cnimble_plugin::interface::remove::{self, HostEnd, all};
use cnimble_plugin::{Call, Command, delegate};
use cnimble_rules::masquerade::{self, Sources};

use crate::config::Config;

/// Rules go first, while the lease still reserves the address, then the pair, then the lease if the pair is gone. All
/// steps run even after a failure. The configuration may have changed, so DEL always looks for rules.
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
    let pair = remove::find(call, &mut host, &owner, HostEnd::Routed)
        .and_then(|found| remove::veth(call, &mut host, found));
    let lease = delegate::release(call, &pair, Command::Del);
    all([pair, lease, rules])
}

/// Continues after errors and reports all.
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
