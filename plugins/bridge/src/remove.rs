//! DEL, with whatever information still exists about the attachment.

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

/// Removes an attachment in the order that protects concurrent pods and keeps the wait short:
///
/// 1. the rules, while the lease still reserves the address for this pod;
/// 2. the veth pair, which takes longest: meanwhile the rules' grace period passes (see `docs/NFTABLES.md`);
/// 3. the lease, because an address is free only when no interface has it;
/// 4. the bridge, if the configuration has `removeUnusedBridge` and no pod uses it ([`unused::remove`]).
///
/// A step that fails does not keep the later ones from being tried, with one exception: the lease stays while the
/// interface exists. If the rules could not be removed, the lease goes back all the same. The returned error then makes
/// the caller repeat the DEL, which finds the rules by their owner.
pub(crate) fn attachment(call: &Call) -> Result<(), Error> {
    let owner = call.owner();
    let mut host = Netlink::open()?;
    let mut nft = Nft::new();

    let veth = remove::find_host_end(call, &mut host, &owner, HostEnd::Port);
    let rules = remove_rules(call, &mut nft, &owner, veth.as_ref().ok());
    let veth = veth.and_then(|veth| remove::veth(call, &mut host, veth));
    let lease = delegate::release(call, &veth, Command::Del);
    let bridge = unused::remove(call, &mut host);
    all([veth, lease, rules, bridge])
}

/// Removes the rules of `owner` for masquerading, the MAC check and isolation. The configuration may have changed since
/// ADD, so its keys do not decide. Only isolation can be skipped: if the port is known not to be isolated. Without a
/// known port, because it is gone or the look for it failed, isolation is skipped if the configuration has no
/// `portIsolation`.
///
/// The addresses in prevResult and the port `veth` spare a listing of all rules. `None` means that the look for the
/// port failed, and `Some(None)` that it is gone.
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
