//! Lists packet rules with their owners, for people. Of iptables' nf_tables variant only the containers' chains are
//! listed, by the comments on the jumps to them. The legacy variant isn't looked at.

use cnimble_netlink::Result;
use cnimble_netlink::nft::{Family, Nft, Table};

use super::elements::Layout;
use super::forward::nftables::Forwarding;
use super::forward::{self, Policy};
use super::go_chains::{DNAT, MASQUERADE, names_in};
pub use super::listed::{Effect, OwnedRule, RuleOwner};
use super::masquerade::nftables::Masquerade;
use super::portmap::nftables::Portmap;
use super::spoof::Spoof;
use super::xtables::{FAMILIES, nat};

/// Returns the rules with an owner, sorted: masquerading, port mappings, forwarding and the MAC check in our tables,
/// and containers' chains of iptables. Port isolation is not listed.
pub fn list(nft: &mut Nft) -> Result<Vec<OwnedRule>> {
    let mut all = Masquerade::list(nft)?;
    all.extend(Portmap::list(nft)?);
    all.extend(Forwarding::list(nft)?);
    all.extend(Spoof::list(nft)?);
    all.extend(iptables(nft)?);
    all.sort_by(|a, b| (&a.effect, &a.owner).cmp(&(&b.effect, &b.owner)));
    all.dedup();
    Ok(all)
}

/// Returns the bridges with an `ingressPolicy` in our table, sorted by name.
pub fn policies(nft: &mut Nft) -> Result<Vec<(String, Policy)>> {
    forward::nftables::policies(nft)
}

/// Returns the containers' chains of the table `nat`, for masquerading and port mappings.
fn iptables(nft: &mut Nft) -> Result<Vec<OwnedRule>> {
    let mut found = Vec::new();
    for family in FAMILIES {
        let table: Table<'_> = nat(family);
        for (chains, purpose) in [(MASQUERADE, "masquerade"), (DNAT, "port mappings")] {
            for rule in nft.rules(table, Some(chains.parent))? {
                let (Some(owner), Some(target)) = (container(&rule.comment), rule.target()) else { continue };
                let effect = Effect::Iptables {
                    purpose: purpose.to_owned(),
                    family: if family == Family::Ipv6 { "ip6" } else { "ip" }.to_owned(),
                    chain: target,
                };
                found.push(OwnedRule { owner, effect });
            }
        }
    }
    Ok(found)
}

fn container(comment: &str) -> Option<RuleOwner> {
    let (network, container_id) = names_in(comment)?;
    Some(RuleOwner::Container { network: network.to_owned(), container_id: container_id.to_owned() })
}

#[cfg(test)]
mod tests {
    use cnimble_cni::{Attachment, Owner};

    use super::*;

    #[test]
    fn a_rule_names_its_owner() {
        let owner = Owner {
            network: "net".to_owned(),
            attachment: Attachment { container_id: "abc".to_owned(), ifname: "eth0".to_owned() },
        };
        let tag = owner.tag();
        assert!(RuleOwner::Comment(owner.comment()).is(&owner, &tag));
        assert!(!RuleOwner::Comment("x, net: net, if: eth0, id: abc".to_owned()).is(&owner, &tag));
        for comment in ["name: \"net\" id: \"abc\"", "dnat name: \"net\" id: \"abc\""] {
            assert!(container(comment).is_some_and(|named| named.is(&owner, &tag)), "{comment}");
        }
        assert_eq!(container("name: \"net\""), None);
        assert!(container("name: \"net\" id: \"ab\"").is_some_and(|named| !named.is(&owner, &tag)));
    }
}
