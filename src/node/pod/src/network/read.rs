//! Reads a pod's addresses in its namespace.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cnimble_netlink::{Error, NetNs, Netlink, Result};

/// `RT_SCOPE_UNIVERSE`, in rtnetlink(7).
const GLOBAL: u8 = 0;

/// Returns the global addresses of an interface, IPv4 first. It reads on a thread that may block.
pub(super) async fn addresses(netns: PathBuf, ifname: &'static str) -> Result<Vec<IpAddr>> {
    tokio::task::spawn_blocking(move || read(&netns, ifname))
        .await
        .unwrap_or_else(|err| Err(Error::io("read the addresses of a pod", &std::io::Error::other(err))))
}

fn read(netns: &Path, ifname: &str) -> Result<Vec<IpAddr>> {
    let mut netlink = Netlink::open_in(&NetNs::open(netns)?)?;
    let index = netlink.link(ifname)?.index;
    let mut ips: Vec<IpAddr> = netlink
        .addrs(index)?
        .into_iter()
        .filter(|addr| addr.scope == GLOBAL && !addr.duplicate)
        .map(|addr| addr.net.ip())
        .collect();
    // Stable: keeps the kernel's order within a family.
    ips.sort_by_key(IpAddr::is_ipv6);
    Ok(ips)
}
