//! All packet rules with their owners, for people to look at.
//!
//! The rules of the nf_tables backends are read whole. Of the rules in iptables' nf_tables variant
//! (made by the Go plugins, or by our iptables backends) only the chain is named, since its comment
//! names the owner. The legacy variant isn't looked at.

use cnimble_netlink::Result;
use cnimble_netlink::nft::{Family, Nft, Table};

pub use super::listed::{Effect, Listed, Whose};
use super::xtables::{FAMILIES, nat};
use super::{forward, masquerade, portmap, spoof};

/// All rules with an owner, sorted.
///
/// # Errors
/// Fails if the kernel refuses the request.
pub fn list(nft: &mut Nft) -> Result<Vec<Listed>> {
    let mut all = masquerade::list(nft)?;
    all.extend(portmap::list(nft)?);
    all.extend(forward::list(nft)?);
    all.extend(spoof::list(nft)?);
    all.extend(iptables(nft)?);
    all.sort_by(|a, b| (&a.effect, &a.owner).cmp(&(&b.effect, &b.owner)));
    all.dedup();
    Ok(all)
}

/// The bridges with an `ingressPolicy`, and which.
///
/// # Errors
/// Fails if the kernel refuses the request.
pub fn policies(nft: &mut Nft) -> Result<Vec<(String, forward::Policy)>> {
    forward::policies(nft)
}

/// The rules that lead to a container's chain.
fn iptables(nft: &mut Nft) -> Result<Vec<Listed>> {
    let mut found = Vec::new();
    for family in FAMILIES {
        let table: Table<'_> = nat(family);
        for (chain, purpose) in [("POSTROUTING", "masquerade"), ("CNI-HOSTPORT-DNAT", "port mappings")] {
            for rule in nft.rules(table, Some(chain))? {
                let (Some(owner), Some(target)) = (container(&rule.comment), rule.target()) else { continue };
                let effect = Effect::Iptables {
                    purpose: purpose.to_owned(),
                    family: if family == Family::Ipv6 { "ip6" } else { "ip" }.to_owned(),
                    chain: target,
                };
                found.push(Listed { owner, effect });
            }
        }
    }
    Ok(found)
}

/// `[dnat ]name: "NETWORK" id: "CONTAINER"`
fn container(comment: &str) -> Option<Whose> {
    let rest = comment.strip_prefix("dnat ").unwrap_or(comment);
    let (network, container_id) = rest.strip_prefix("name: \"")?.split_once("\" id: \"")?;
    let container_id = container_id.strip_suffix('"')?;
    Some(Whose::Container { network: network.to_owned(), container_id: container_id.to_owned() })
}

#[cfg(test)]
mod tests {
    use cnimble_cni::{Attachment, Owner};

    use super::*;

    #[test]
    fn rules_say_whose_they_are() {
        let owner = Owner {
            network: "net".to_owned(),
            attachment: Attachment { container_id: "abc".to_owned(), ifname: "eth0".to_owned() },
        };
        let tag = owner.tag();
        assert!(Whose::Comment(owner.comment()).is(&owner, &tag));
        assert!(!Whose::Comment("x, net: net, if: eth0, id: abc".to_owned()).is(&owner, &tag));
        for comment in ["name: \"net\" id: \"abc\"", "dnat name: \"net\" id: \"abc\""] {
            assert!(container(comment).is_some_and(|whose| whose.is(&owner, &tag)), "{comment}");
        }
        assert_eq!(container("name: \"net\""), None);
        assert!(container("name: \"net\" id: \"ab\"").is_some_and(|whose| !whose.is(&owner, &tag)));
    }
}
