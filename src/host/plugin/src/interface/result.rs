//! Compares the interfaces of prevResult with links, and removes single links.

use cnimble_cni::{Code, Error, Interface, IpConfig};
use cnimble_netlink::addr::Addr;
use cnimble_netlink::link::Link;
use cnimble_netlink::{IfPresent, Netlink};

use super::check;
use crate::Call;

/// Removes a link, if it still exists.
///
/// # Errors
/// Fails if the kernel refuses the request.
pub fn delete(netlink: &mut Netlink, link: &Link) -> Result<(), Error> {
    netlink.remove_link(link.index, &link.name).if_present()?;
    Ok(())
}

/// Returns the host's ends in prevResult. A bridge is left out, because it may have the MAC of any of its ports.
pub(super) fn ends_on_host(call: &Call) -> impl Iterator<Item = &Interface> {
    let interfaces = call.config.prev_result.iter().flat_map(|prev| &prev.interfaces);
    interfaces.filter(|interface| interface.sandbox.is_empty() && interface.name.starts_with("veth"))
}

/// Whether the link has the MAC of the result. False if the result has none.
pub(super) fn has_mac(link: &Link, interface: &Interface) -> bool {
    !interface.mac.is_empty() && check::same_mac(link, interface).is_ok()
}

/// Fails if an address in `assigned` is among the `present` ones of the interface `what`. Such an address is still in use
/// and must not be released.
///
/// # Errors
/// Fails with code 102 and the address.
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
