//! The networks that this node's pods had before its podCIDRs changed. Pods with an address of such a network keep it,
//! and the bridge keeps their gateway, until the last lease of it is gone.
//!
//! The runtime's file has the new networks only. So the earlier ones are in a file of their own beside it, which an agent
//! reads after a restart.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use ipnetwork::IpNetwork;

use cnimble_cni::cidr;
use cnimble_netlink::addr;
use cnimble_netlink::route::NewRoute;
use cnimble_netlink::{self as netlink, IfPresent, Netlink};
use cnimble_os::files::{self as files, Links};

use crate::LIMIT;
use crate::conflist::{BRIDGE, Conflist};

/// The earlier networks, by whether a pod may still have an address of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Earlier {
    /// An address of these is leased.
    pub(crate) living: Vec<IpNetwork>,
    /// No address of these is leased, but the runtime's file has them. An ADD that has read the file may be at work.
    pub(crate) in_file: Vec<IpNetwork>,
    /// No address of these is leased, and the runtime's file does not have them.
    departed: Vec<IpNetwork>,
}

impl Earlier {
    /// Returns the earlier networks of a node that now has `now`: those of the record and of the runtime's file. If the
    /// leases can't be read, all count as living.
    pub(crate) fn read(conflist: &Conflist, now: &[IpNetwork]) -> Self {
        let in_file = conflist.ranges();
        let all: BTreeSet<IpNetwork> = in_file.iter().copied().chain(recorded(conflist)).collect();
        let all = all.into_iter().filter(|cidr| !now.contains(cidr));
        let leases = conflist.leases();
        let (living, departed): (Vec<_>, Vec<_>) = all.partition(|cidr| match &leases {
            Ok(leases) => leases.iter().any(|ip| cidr.contains(*ip)),
            Err(_) => true,
        });
        let (in_file, departed) = departed.into_iter().partition(|cidr| in_file.contains(cidr));
        Earlier { living, in_file, departed }
    }

    /// Records all earlier networks, before the runtime's file loses them. Returns whether the record was written.
    pub(crate) fn record(&self, conflist: &Conflist) -> io::Result<bool> {
        write_record(conflist, self.living.iter().chain(&self.in_file).chain(&self.departed))
    }

    /// Takes the departed networks out of the record. Returns whether the record was written.
    pub(crate) fn forget_departed(&self, conflist: &Conflist) -> io::Result<bool> {
        write_record(conflist, self.living.iter().chain(&self.in_file))
    }

    /// Takes the gateways of departed networks off the bridge, whose routes would keep another node from getting them.
    /// Returns whether it removed one.
    pub(crate) fn remove_gateways(&self, netlink: &mut Netlink) -> netlink::Result<bool> {
        if self.departed.is_empty() {
            return Ok(false);
        }
        let Some(bridge) = netlink.find_link(BRIDGE)? else { return Ok(false) };
        let present = netlink.addrs(bridge.index)?;
        let mut has_removed = false;
        for gateway in self.departed.iter().filter_map(gateway) {
            if present.iter().any(|addr| addr.net == gateway) {
                netlink.execute(addr::del(bridge.index, BRIDGE, gateway)).if_present()?;
                has_removed = true;
            }
        }
        Ok(has_removed)
    }

    /// Takes the bridge's routes to departed networks out of `routes`. They go with the gateways, before the agent's own
    /// routes come.
    pub(crate) fn ignore_routes(
        &self,
        netlink: &mut Netlink,
        routes: &mut Vec<(NewRoute, u8)>,
    ) -> netlink::Result<()> {
        if !self.departed.is_empty()
            && let Some(bridge) = netlink.find_link(BRIDGE)?
        {
            routes.retain(|(route, _)| route.index != bridge.index || !self.departed.contains(&route.dst));
        }
        Ok(())
    }
}

/// Writes the record, or removes it if there are no networks. Returns whether that changed anything.
fn write_record<'n>(conflist: &Conflist, networks: impl Iterator<Item = &'n IpNetwork>) -> io::Result<bool> {
    let networks: BTreeSet<IpNetwork> = networks.copied().collect();
    if networks == recorded(conflist) {
        return Ok(false);
    }
    if networks.is_empty() {
        return remove_record(conflist);
    }
    let text: String = networks.iter().map(|cidr| format!("{cidr}\n")).collect();
    let path = path(conflist);
    conflist.replace(&path, &path.with_extension("cnimble-new"), &text)?;
    Ok(true)
}

/// Returns the path of the record. Runtimes ignore it because of its extension.
fn path(conflist: &Conflist) -> PathBuf {
    conflist.dir.join(format!(".{}.cnimble-earlier", conflist.name))
}

/// Returns the networks of the record. There are none without a readable record.
fn recorded(conflist: &Conflist) -> BTreeSet<IpNetwork> {
    let text = files::read(&path(conflist), LIMIT, Links::Refuse).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().filter_map(|line| line.parse().ok()).collect()
}

/// Removes the record. Returns whether there was one.
pub(crate) fn remove_record(conflist: &Conflist) -> io::Result<bool> {
    Ok(files::IfPresent::if_present(std::fs::remove_file(path(conflist)))?.is_some())
}

/// Gives the bridge the gateways of `own` beside those of living pods. The plugin bridge would replace an address with
/// that of its new pod (`forceAddress`). Returns whether it added one. Does nothing without the bridge.
pub(crate) fn add_gateways(netlink: &mut Netlink, own: &[IpNetwork]) -> netlink::Result<bool> {
    let Some(bridge) = netlink.find_link(BRIDGE)? else { return Ok(false) };
    let present = netlink.addrs(bridge.index)?;
    let mut has_added = false;
    for gateway in own.iter().filter_map(gateway) {
        if !present.iter().any(|addr| addr.net == gateway) {
            let added = netlink.execute(addr::add(bridge.index, BRIDGE, gateway));
            added.default_for(&[nix::errno::Errno::EEXIST])?;
            has_added = true;
        }
    }
    Ok(has_added)
}

/// Returns the address that the plugin bridge has as the gateway of a podCIDR, or `None` for a single address.
fn gateway(cidr: &IpNetwork) -> Option<IpNetwork> {
    let first: IpAddr = cidr::first_address(*cidr);
    IpNetwork::new(first, cidr.prefix()).ok().filter(|gateway| gateway.ip() != cidr.ip())
}
