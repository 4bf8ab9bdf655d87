//! Compares the interfaces of prevResult with links, and removes single links.

use cnimble_cni::{Code, Error, Interface, IpConfig};
use cnimble_netlink::addr::Addr;
use cnimble_netlink::kind::{Kind, MacvlanMode};
use cnimble_netlink::link::Link;
use cnimble_netlink::{IfPresent, Netlink};

use super::check;
use crate::Call;

/// Removes a link, by its index and its name. A link that has gone is no error.
pub fn delete(netlink: &mut Netlink, link: &Link) -> Result<(), Error> {
    netlink.remove_link(link.index, &link.name).if_present()?;
    Ok(())
}

/// Returns whether prevResult has another MAC for the pod's interface of this name. The path of a dead pod may lead to
/// another pod. False without evidence.
pub fn is_another(call: &Call, link: &Link) -> bool {
    find_told(call, link).is_some_and(|told| check::same_mac(link, told).is_err())
}

/// Returns the entry of prevResult with the name CNI_IFNAME in a sandbox, if its MAC is evidence about `link`. It is
/// none for ipvlan, vlan, and macvlan in mode passthru: such a link has its master's MAC, also after a change.
pub(super) fn find_told<'c>(call: &'c Call, link: &Link) -> Option<&'c Interface> {
    let follows = match link.settings {
        Some(Kind::Macvlan(macvlan)) => macvlan.mode == MacvlanMode::Passthru,
        _ => ["ipvlan", "vlan"].contains(&link.kind.as_str()),
    };
    let mut interfaces = call.config.prev_result.iter().flat_map(|prev| &prev.interfaces);
    interfaces.find(|told| told.name == call.ifname && !told.sandbox.is_empty()).filter(|_| !follows)
}

/// Returns the host's ends of veth pairs in prevResult, by their names. A bridge is left out, because it may have the
/// MAC of any of its ports.
pub(super) fn ends_on_host(call: &Call) -> impl Iterator<Item = &Interface> {
    let interfaces = call.config.prev_result.iter().flat_map(|prev| &prev.interfaces);
    interfaces.filter(|interface| interface.sandbox.is_empty() && interface.name.starts_with("veth"))
}

/// Returns whether the link has the MAC of the result. False if the result has none.
pub(super) fn has_mac(link: &Link, interface: &Interface) -> bool {
    !interface.mac.is_empty() && check::same_mac(link, interface).is_ok()
}

/// Fails with code 102 if an address in `assigned` is among the `present` ones of the interface `what`. Such an address
/// is still in use and must not be released.
pub fn not_in_use<'t>(
    call: &Call,
    assigned: impl IntoIterator<Item = &'t IpConfig>,
    present: &[Addr],
    what: &str,
) -> Result<(), Error> {
    let assigned: Vec<_> = assigned.into_iter().map(|ip| ip.address.ip()).collect();
    let Some(used) = present.iter().find(|addr| assigned.contains(&addr.net.ip())) else { return Ok(()) };
    Err(Error::new(Code::CONFLICT, format!("address {} is in use by {what}", used.net))
        .details(format!("in {}; hint: delete that interface and call DEL again", call.netns)))
}
