//! Writes the rules of pods and bridges into iptables' chains, and takes them back.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cnimble_cni::Error;
use cnimble_netlink::nft::Nft;

use super::{Admin, Forward, Policy, direct, iptables};
use crate::undo::Applied;
use crate::xtables::FAMILIES;

/// Writes rules for pods and policies for bridges. `pods` are the addresses by the administrator's chain that comes
/// before them. A second call changes nothing. Written rules stay after a failure.
pub(crate) fn write(
    nft: &mut Nft,
    pods: BTreeMap<&str, Vec<IpAddr>>,
    policies: &[(String, Policy)],
) -> Result<(), Error> {
    for (admin, addrs) in pods {
        let admin = Admin::Named(admin.to_owned());
        let forward = Forward { addrs, admin, ..Forward::default() };
        iptables::add(nft, &forward)?;
    }
    for (bridge, policy) in policies {
        let forward = Forward { policy: *policy, interfaces: vec![bridge.clone()], ..Forward::default() };
        for family in FAMILIES {
            iptables::add_family(nft, family, &forward, &[], &mut Applied::default())?;
        }
    }
    Ok(())
}

/// Removes all rules of these addresses from both variants, whichever pod has them. Policies stay.
pub(crate) fn take_back(nft: &mut Nft, addrs: &[IpAddr]) -> Result<(), Error> {
    if nft.is_supported()? {
        direct::remove(nft, addrs, &|_| false)?;
    }
    iptables::remove_legacy(addrs, &|_| false).map(drop)
}
