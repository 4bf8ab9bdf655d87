//! DEL: everything that ADD made, from whatever is left to find it by.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use cnimble_cni::{Error, Owner};
use cnimble_netlink::Netlink;
use cnimble_netlink::link::Link;
use cnimble_netlink::nft::Nft;
use cnimble_plugin::interface::remove::{self, all};
use cnimble_plugin::{Call, Command, delegate};
use cnimble_rules::{apart, masquerade, spoof};

use crate::config::Config;
use crate::unused;

/// Removes the attachment. The order keeps others safe and the caller's wait short:
///
/// 1. rules, while the lease still keeps the address from being given to another pod;
/// 2. the veth pair: its removal takes the kernel longest, and the rules' own grace period
///    passes meanwhile (see `docs/NFTABLES.md`);
/// 3. the lease: an address is free only when no interface has it any more;
/// 4. the bridge, if it was made to go with its last pod.
///
/// A failure doesn't stop the steps behind it, except that the lease stays while the
/// interface does.
pub(crate) fn attachment(call: &Call) -> Result<(), Error> {
    let owner = call.owner();
    let mut host = Netlink::open()?;
    let mut nft = Nft::new();

    let veth = remove::find(call, &mut host, &owner, true);
    let rules = remove_rules(call, &mut nft, &owner, veth.as_ref().ok());
    let veth = veth.and_then(|veth| remove::veth(call, &mut host, veth));
    let lease = delegate::release(call, &veth, Command::Del);
    let bridge = unused::remove(call, &mut host);
    all([veth, lease, rules, bridge])
}

/// Whether the network has rules is not asked: the configuration may have changed since.
/// Known addresses and ports save listing the rules of all pods.
fn remove_rules(call: &Call, nft: &mut Nft, owner: &Owner, veth: Option<&Option<Link>>) -> Result<(), Error> {
    let addrs: Vec<IpNetwork> =
        call.config.prev_result.iter().flat_map(|prev| &prev.ips).map(|ip| ip.address).collect();
    let veth = veth.and_then(Option::as_ref);
    let port = veth.map(|veth| veth.name.as_str());
    let masquerade = masquerade::remove(nft, owner, &addrs);
    let spoof = spoof::remove(nft, owner, port);
    let is_isolated = match veth {
        Some(veth) => veth.port.unwrap_or_default().isolated,
        None => Config::read(&call.config).map_or(true, |config| config.isolated),
    };
    let apart = if is_isolated {
        let addrs: Vec<IpAddr> = addrs.iter().map(IpNetwork::ip).collect();
        apart::remove(nft, owner, port, &addrs)
    } else {
        Ok(())
    };
    all([masquerade, spoof, apart])
}
