//! Finds addresses of pods with a DHCP lease. The kernel removes them when the lease ends, because the Go plugins'
//! lease daemon does not renew their lifetimes.

use std::path::Path;

use ipnetwork::IpNetwork;
use serde_json::Value;

use cnimble_cni::Error;
use cnimble_liveness::Verdict;
use cnimble_liveness::cache_entries::JudgedEntry;
use cnimble_liveness::node::Node;
use cnimble_netlink::addr;
use cnimble_netlink::link::Link;
use cnimble_netlink::{NetNs, Netlink};
use cnimble_rules::objects::lifetime;

use super::Subject;

/// A pod's interface with temporary addresses.
pub(super) struct Ending {
    pub(super) subject: Subject,
    pub(super) nets: Vec<IpNetwork>,
    netns: NetNs,
    link: Link,
}

/// Returns the interfaces with temporary addresses of living pods. A missing namespace or interface is no error.
pub(super) fn find_endings(node: &Node) -> Result<Vec<Ending>, Error> {
    let mut endings = Vec::new();
    for known in node.entries.iter().filter(|known| known.verdict == Verdict::Lives && has_lease(known)) {
        let Some(path) = known.entry.namespace() else { continue };
        let Some(netns) = NetNs::find(Path::new(path))? else { continue };
        let mut inside = Netlink::open_in(&netns)?;
        let Some(link) = inside.find_link(&known.entry.ifname)? else { continue };
        let leased = inside.addrs(link.index)?.into_iter().filter(is_leased);
        let nets: Vec<IpNetwork> = leased.map(|addr| addr.net).collect();
        if !nets.is_empty() {
            let subject = Subject::from_attachment(&known.entry.network, &known.attachment());
            endings.push(Ending { subject, nets, netns, link });
        }
    }
    Ok(endings)
}

/// Returns whether an address ends with a lease. One of IPv6 with a shorter prefix is renewed by router advertisements.
fn is_leased(addr: &addr::Addr) -> bool {
    !addr.permanent && (addr.net.is_ipv4() || addr.net.prefix() == 128)
}

/// Returns whether the addresses of an entry's network end with a lease.
fn has_lease(known: &JudgedEntry) -> bool {
    let plugins = known.entry.network_list().map(|list| list.plugins).unwrap_or_default();
    plugins
        .iter()
        .filter_map(|plugin| plugin.document.pointer("/ipam/type").and_then(Value::as_str))
        .any(lifetime::ends)
}

impl Ending {
    /// Makes the addresses permanent. A lease daemon of cnimble that has set their lifetimes leaves them so while it
    /// runs. One that is started later gives them a lifetime again in its first round.
    pub(super) fn make_permanent(&self) -> Result<(), Error> {
        let mut inside = Netlink::open_in(&self.netns)?;
        for net in &self.nets {
            inside.execute(addr::set_lifetime(self.link.index, &self.link.name, *net, u32::MAX, u32::MAX))?;
        }
        Ok(())
    }
}
