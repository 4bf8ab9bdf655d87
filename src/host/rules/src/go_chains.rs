//! The chains that the Go plugins and our iptables backends make in iptables' table `nat`. Each container has a chain
//! with a hash in its name. Rules of a parent chain lead to it, with network and container in a comment.

use std::collections::BTreeSet;

use cnimble_cni::hash::sha512_hex;
use cnimble_cni::{Attachment, Error, Owner};
use cnimble_netlink as netlink;
use cnimble_netlink::nft::{Family, Nft};

use super::xtables::{self, FAMILIES, nat};

/// The length of a chain's name, in bytes. iptables takes no longer one.
const LENGTH: usize = 28;

/// One kind of containers' chains: the chain that jumps to them, the beginning of their names, and that of the
/// comments.
pub(super) struct GoChains {
    pub(super) parent: &'static str,
    prefix: &'static str,
    mark: &'static str,
}

pub(super) const MASQUERADE: GoChains = GoChains { parent: "POSTROUTING", prefix: "CNI-", mark: "" };
pub(super) const DNAT: GoChains = GoChains { parent: "CNI-HOSTPORT-DNAT", prefix: "CNI-DN-", mark: "dnat " };
/// portmap up to release 0.6 had such chains for source addresses, too.
pub(super) const OLD_SNAT: GoChains =
    GoChains { parent: "CNI-HOSTPORT-SNAT", prefix: "CNI-SN-", mark: "snat " };

impl GoChains {
    /// Returns the name of a container's chain: the prefix and as many digits of a hash as iptables takes.
    pub(super) fn name(&self, network: &str, container_id: &str) -> String {
        let mut name = format!("{}{}", self.prefix, sha512_hex(format!("{network}{container_id}"), 12));
        name.truncate(LENGTH);
        name
    }

    /// Returns the name of the chain of the owner's container.
    pub(super) fn name_of(&self, owner: &Owner) -> String {
        self.name(&owner.network, &owner.attachment.container_id)
    }

    /// Returns whether a name has the form of this kind.
    pub(super) fn has(&self, name: &str) -> bool {
        let digits = LENGTH - self.prefix.len();
        name.strip_prefix(self.prefix)
            .is_some_and(|hash| hash.len() == digits && hash.bytes().all(|b| b.is_ascii_hexdigit()))
    }

    /// Returns the comment on the jumps to a container's chain. It is not quoted for the command.
    pub(super) fn comment(&self, network: &str, container_id: &str) -> String {
        format!("{}{container_id}\"", self.comment_prefix(network))
    }

    /// Returns the beginning of the comments of all containers of a network.
    fn comment_prefix(&self, network: &str) -> String {
        format!("{}name: \"{network}\" id: \"", self.mark)
    }

    /// Removes the container's chain and the jumps to it from the nf_tables variant.
    pub(super) fn remove(&self, nft: &mut Nft, family: Family, owner: &Owner) -> netlink::Result<()> {
        xtables::remove_chains(nft, nat(family), self.parent, &[&self.name_of(owner)])
    }

    /// Removes from the nf_tables variant the chains of the network's containers that have no attachment in `valid`.
    pub(super) fn gc(&self, nft: &mut Nft, network: &str, valid: &[Attachment]) -> netlink::Result<()> {
        let kept = self.kept(network, valid);
        let prefix = self.comment_prefix(network);
        for family in FAMILIES {
            let chains = nft.chains(nat(family))?;
            if !chains.iter().any(|chain| self.has(chain) && !kept.contains(chain)) {
                continue;
            }
            let mut rules = nft.rules(nat(family), None)?;
            rules.retain(|rule| rule.comment.starts_with(&prefix));
            let named = rules.into_iter().flat_map(|rule| [rule.target(), Some(rule.chain)]);
            let stale: BTreeSet<String> =
                named.flatten().filter(|chain| self.has(chain) && !kept.contains(chain)).collect();
            for chain in &stale {
                xtables::remove_chains(nft, nat(family), self.parent, &[chain])?;
            }
        }
        Ok(())
    }

    /// Does what [`gc`](Self::gc) does, in the legacy variant.
    pub(super) fn gc_legacy(&self, network: &str, valid: &[Attachment]) -> Result<(), Error> {
        xtables::remove_legacy_chains(self.parent, |rules| self.stale_legacy(rules, network, valid))
    }

    /// Returns the chains to remove, of those in saved rules.
    pub(super) fn stale_legacy(
        &self,
        rules: &[String],
        network: &str,
        valid: &[Attachment],
    ) -> BTreeSet<String> {
        let kept = self.kept(network, valid);
        // iptables-save quotes a comment so.
        let mark = format!("--comment \"{}", self.comment_prefix(network).replace('"', "\\\""));
        let ours = rules.iter().filter(|rule| rule.contains(&mark));
        ours.flat_map(|rule| [rule.split(' ').nth(1), rule.rsplit(' ').next()])
            .flatten()
            .filter(|chain| self.has(chain) && !kept.contains(*chain))
            .map(str::to_owned)
            .collect()
    }

    /// Returns the names of the chains of valid attachments.
    fn kept(&self, network: &str, valid: &[Attachment]) -> BTreeSet<String> {
        valid.iter().map(|attachment| self.name(network, &attachment.container_id)).collect()
    }
}

/// Returns network and container ID in a comment, possibly among other words. `None` if it names none.
pub(super) fn names_in(comment: &str) -> Option<(&str, &str)> {
    let (_, rest) = comment.split_once("name: \"")?;
    let (network, rest) = rest.split_once("\" id: \"")?;
    let (container_id, _) = rest.split_once('"')?;
    Some((network, container_id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_named_as_the_reference_does() {
        let cid = "default-237eaf51aa0c1411433db10b2c8dac0f826f87ac6f48c62084ee84c3d9c20384";
        assert_eq!(MASQUERADE.name("bridge", cid), "CNI-4f6dd6c08c7e1a901788c768");
        assert_eq!(DNAT.name("net1", "cont1"), "CNI-DN-01d424cb2a9303e21c6e9");
        assert!(MASQUERADE.has(&MASQUERADE.name("bridge", cid)) && DNAT.has(&DNAT.name("net1", "cont1")));
        assert!(!MASQUERADE.has("CNI-HOSTPORT-DNAT") && !MASQUERADE.has("CNI-DN-4f6dd6c08c7e1a901788c"));
        assert!(!DNAT.has("CNI-SN-01d424cb2a9303e21c6e9") && OLD_SNAT.has("CNI-SN-01d424cb2a9303e21c6e9"));
    }

    #[test]
    fn a_comment_names_network_and_container() {
        for chains in [MASQUERADE, DNAT] {
            assert_eq!(names_in(&chains.comment("net", "abc")), Some(("net", "abc")));
        }
        for other in ["name: \"net\"", "x, net: net, if: eth0, id: abc", "-A POSTROUTING -j X"] {
            assert_eq!(names_in(other), None, "{other}");
        }
    }
}
