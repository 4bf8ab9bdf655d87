//! Writes living pods' rules as the Go plugins make them, then removes them from our tables, which the Go plugins' DEL
//! ignores.
//!
//! | for | in |
//! |---|---|
//! | `ipMasq` | a chain `CNI-…` in iptables' table `nat`, and a rule of POSTROUTING |
//! | port mappings | a chain `CNI-DN-…` there, and rules of `CNI-HOSTPORT-DNAT` |
//! | firewall | rules in `CNI-FORWARD`; its bridge's policy in the chains `CNI-ISOLATION-STAGE-1` and `-2` |
//! | `macspoofchk` | chains `cni-br-iface-…` in nf_tables' table `bridge nat` |
//!
//! **Both forms overlap.** Two NAT chains don't both change a connection, and two accepts are as good as one. After a
//! kill our DEL removes both, and the hand-over can be repeated.
//!
//! **A concurrent DEL** of ours removes its elements first and then looks for the other form. If a pod's elements exist
//! after the other form was written, that DEL removes both. Otherwise the form is [removed](HandOver::take_back).

mod pod;

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use cnimble_cni::{Error, Owner};
use cnimble_netlink::nft::{Family, Nft};

use super::elements::Placed;
use super::forward::{self, Policy, published};
use super::masquerade::{Sources, Translation};
use super::portmap::{Forward, hand_over as ports};
use super::retry::retry_command;
use pod::without_iptables;
pub use pod::{Pod, Settings};

use super::survey::{PARTS, Part, Trace};
use super::xtables::{self, FAMILIES};
use super::{command, masquerade, portmap, reference_spoof, spoof};

#[derive(Debug, Default)]
pub struct HandOver {
    pods: Vec<Pod>,
    policies: Vec<(String, Policy)>,
    bridges: Vec<Placed>,
}

impl HandOver {
    /// The rules of these pods, and of the given bridges.
    pub fn new<'t>(
        nft: &mut Nft,
        pods: Vec<Pod>,
        bridges: impl IntoIterator<Item = &'t Trace>,
    ) -> Result<Self, Error> {
        let bridges: Vec<Placed> =
            bridges.into_iter().filter_map(|trace| Some(trace.element()?.1.clone())).collect();
        let mut policies = Vec::new();
        if !bridges.is_empty() {
            policies = forward::nftables::policies(nft)?;
            let named: Vec<String> = bridges.iter().filter_map(forward::nftables::bridge).collect();
            policies.retain(|(bridge, _)| named.contains(bridge));
        }
        Ok(HandOver { pods, policies, bridges })
    }

    pub fn pods(&self) -> &[Pod] {
        &self.pods
    }

    /// The bridges with a policy, each with it, for people.
    pub fn policies(&self) -> impl Iterator<Item = String> {
        self.policies.iter().map(|(bridge, policy)| format!("ingressPolicy {policy} of bridge {bridge}"))
    }

    /// Why the policies can't be handed over, if they can't.
    pub fn problem(&self) -> Option<String> {
        if self.policies.is_empty() { None } else { without_iptables() }
    }

    /// Returns the pods without policies, which stay in our table.
    #[must_use]
    pub fn without_policies(self) -> Self {
        HandOver { pods: self.pods, ..HandOver::default() }
    }

    /// Writes everything in the Go plugins' form, beside our own. Idempotent. Written rules stay after a failure.
    pub fn write(&self, nft: &mut Nft) -> Result<(), Error> {
        FAMILIES.into_iter().try_for_each(|family| self.write_nat(nft, family))?;
        let mut forwarded: BTreeMap<&str, Vec<IpAddr>> = BTreeMap::new();
        for pod in self.pods.iter().filter(|pod| !pod.forwarded().is_empty()) {
            forwarded.entry(pod.admin_chain()).or_default().extend(pod.forwarded());
        }
        forward::hand_over::write(nft, forwarded, &self.policies)?;
        for pod in &self.pods {
            for (port, mac) in pod.of(Part::Spoof).filter_map(spoof::pair_in) {
                reference_spoof::add(nft, &pod.owner.attachment, &port, mac)?;
            }
            ports::open_for_good(&pod.mapped())?;
        }
        Ok(())
    }

    /// Changes the table `nat` of a family in one step.
    fn write_nat(&self, nft: &mut Nft, family: Family) -> Result<(), Error> {
        retry_command(|| match self.nat_lines(nft, family)?.as_slice() {
            [] => Ok(()),
            lines => command::restore(family, "nat", lines),
        })
    }

    fn nat_lines(&self, nft: &mut Nft, family: Family) -> Result<Vec<String>, Error> {
        let is_of = |addr: &IpNetwork| addr.is_ipv4() == (family == Family::Ipv4);
        let mut containers: BTreeMap<(&str, &str), (&Owner, Translation, Vec<IpNetwork>)> = BTreeMap::new();
        for pod in &self.pods {
            // A chain is a container's, with all of its interfaces in the network.
            let key = (pod.owner.network.as_str(), pod.owner.attachment.container_id.as_str());
            let addrs = pod.masqueraded().into_iter().filter(is_of);
            containers
                .entry(key)
                .or_insert_with(|| (&pod.owner, pod.translation(), Vec::new()))
                .2
                .extend(addrs);
        }
        containers.retain(|_, (_, _, addrs)| !addrs.is_empty());
        let mapped: Vec<(&Owner, Vec<Forward>)> =
            self.pods.iter().map(|pod| (&pod.owner, pod.mapped())).collect();
        let any = mapped.iter().flat_map(|(_, forwards)| forwards).flat_map(|of| &of.addrs).any(is_of);
        if containers.is_empty() && !any {
            return Ok(Vec::new());
        }
        let saved = command::run(&command::tool(family, "save"), &["-t", "nat"], "")?;
        let mut lines = ports::lines(nft, family, &mapped, &xtables::rules_in(&saved))?;
        for (owner, translation, addrs) in containers.values() {
            let sources = Sources { addrs, translation };
            lines.extend(masquerade::iptables::missing(owner, family, sources, &saved));
        }
        Ok(lines)
    }

    /// The pods with a part that has no element any more: a DEL came. Ask before [`HandOver::let_go`].
    pub fn departed(&self, nft: &mut Nft) -> Result<Vec<&Pod>, Error> {
        let mut present = Vec::new();
        for part in PARTS {
            present.extend((part.operations().all)(nft)?.into_iter().map(|placed| (part, placed)));
        }
        let has_lost = |pod: &&Pod| {
            PARTS.into_iter().any(|part| {
                let mut of_part = pod.elements.iter().filter(|(of, _)| *of == part).peekable();
                of_part.peek().is_some() && !of_part.any(|element| present.contains(element))
            })
        };
        Ok(self.pods.iter().filter(has_lost).collect())
    }

    /// Removes the written rules of pods that are gone, in every form, as DEL does.
    pub fn take_back(&self, nft: &mut Nft, gone: &[&Pod]) -> Result<(), Error> {
        for pod in gone {
            log::info!("{} is gone by now", pod.owner.attachment.container_id);
            self.clear(nft, pod)?;
        }
        Ok(())
    }

    fn clear(&self, nft: &mut Nft, pod: &Pod) -> Result<(), Error> {
        let (addrs, translation) = (&pod.masqueraded(), &pod.translation());
        masquerade::remove(nft, &pod.owner, Sources { addrs, translation })?;
        portmap::remove(nft, &pod.owner, None)?;
        let is_its = |comment: &str| pod.owner.owns(comment);
        published::remove(nft, &is_its).and(published::remove_legacy(&is_its))?;
        spoof::remove(nft, &pod.owner, None)?;
        let mut addrs = pod.forwarded();
        // The rules go by the address, whichever pod has it.
        addrs.retain(|ip| !self.pods.iter().any(|of| of.owner != pod.owner && of.forwarded().contains(ip)));
        if addrs.is_empty() { Ok(()) } else { forward::hand_over::take_back(nft, &addrs) }
    }

    /// Removes our elements that have not changed, and what is unused without them; connections stay.
    pub fn let_go(&self, nft: &mut Nft) -> Result<(), Error> {
        for part in PARTS {
            let mut elements: Vec<Placed> = self.pods.iter().flat_map(|pod| pod.of(part)).cloned().collect();
            if part == Part::Forward {
                elements.extend(self.bridges.iter().cloned());
            }
            if !elements.is_empty() {
                (part.operations().let_go)(nft, &elements)?;
            }
        }
        Ok(())
    }
}

/// Removes chains and sets without elements, tables without chains, and the guard of our iptables backend. Returns what
/// stays of our tables, for people.
pub fn finish(nft: &mut Nft) -> Result<Vec<String>, Error> {
    super::survey::remove_idle(nft)?;
    if !nft.is_supported()? {
        return Ok(Vec::new());
    }
    ports::remove_guard(nft)?;
    let mut remaining = Vec::new();
    for table in super::survey::TABLES {
        if nft.has_table(table)? {
            remaining.push(match forward::nftables::admin_rules(nft)? {
                0 => format!("table {table}, which is in use"),
                rules => format!("table {table}, with {rules} rules of yours in the chain admin"),
            });
        }
    }
    Ok(remaining)
}
