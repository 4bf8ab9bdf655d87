//! DEL, with any remaining information.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use cnimble_cni::{Error, Owner};
use cnimble_netlink::Netlink;
use cnimble_netlink::link::Link;
use cnimble_netlink::nft::Nft;
use cnimble_plugin::interface::remove::{self, HostEnd, all};
use cnimble_plugin::{Call, Command, delegate};
use cnimble_rules::masquerade::{self, Sources};
use cnimble_rules::{isolation, spoof};

use crate::config::Config;
use crate::unused;

/// The order protects concurrent pods and keeps the wait short: 1. Rules are removed while the lease still reserves the
/// address. 2. The veth pair takes longest. Meanwhile the rules' grace period passes (see `docs/NFTABLES.md`). 3. The
/// lease follows: an address is free only when no interface has it. 4. The bridge is removed if it was made for that.
/// Later steps run even after a failure, but the lease stays while the interface exists.
pub(crate) fn attachment(call: &Call) -> Result<(), Error> {
    let owner = call.owner();
    let mut host = Netlink::open()?;
    let mut nft = Nft::new();

    let veth = remove::find(call, &mut host, &owner, HostEnd::Port);
    let rules = remove_rules(call, &mut nft, &owner, veth.as_ref().ok());
    let veth = veth.and_then(|veth| remove::veth(call, &mut host, veth));
    let lease = delegate::release(call, &veth, Command::Del);
    let bridge = unused::remove(call, &mut host);
    all([veth, lease, rules, bridge])
}

/// The configuration may have changed, so it doesn't matter. Known addresses and ports avoid a listing of all rules.
fn remove_rules(call: &Call, nft: &mut Nft, owner: &Owner, veth: Option<&Option<Link>>) -> Result<(), Error> {
    let addrs: Vec<IpNetwork> =
        call.config.prev_result.iter().flat_map(|prev| &prev.ips).map(|ip| ip.address).collect();
    let veth = veth.and_then(Option::as_ref);
    let port = veth.map(|veth| veth.name.as_str());
    let translation =
        Config::read(&call.config).map(|config| config.masquerade.translation).unwrap_or_default();
    let masquerade = masquerade::remove(nft, owner, Sources { addrs: &addrs, translation: &translation });
    let spoof = spoof::remove(nft, owner, port);
    let is_isolated = match veth {
        Some(veth) => veth.port.unwrap_or_default().isolated,
        None => Config::read(&call.config).map_or(true, |config| config.isolated),
    };
    let isolation = if is_isolated {
        let addrs: Vec<IpAddr> = addrs.iter().map(IpNetwork::ip).collect();
        isolation::remove(nft, owner, port, &addrs)
    } else {
        Ok(())
    };
    all([masquerade, spoof, isolation])
}
