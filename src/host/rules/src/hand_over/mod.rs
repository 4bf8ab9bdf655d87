//! Hands living pods over to the Go plugins: writes their rules in the form of these, then removes them from our
//! tables. The Go plugins' DEL ignores our tables.
//!
//! | for | in |
//! |---|---|
//! | `ipMasq` | a chain `CNI-…` in iptables' table `nat`, and a rule of POSTROUTING |
//! | port mappings | a chain `CNI-DN-…` there, and rules of `CNI-HOSTPORT-DNAT` |
//! | firewall | rules in `CNI-FORWARD`; its bridge's policy in the chains `CNI-ISOLATION-STAGE-1` and `-2` |
//! | `macspoofchk` | chains `cni-br-iface-…` in nf_tables' table `bridge nat` |
//!
//! The rules of [`isolation`](crate::isolation) have no such form and are not written.
//!
//! **Both forms exist side by side for a while.** Only the first of two NAT chains changes a connection, and two
//! accepts are as good as one. If the process is killed meanwhile, our DEL removes both forms, and the hand-over can be
//! repeated.
//!
//! **A concurrent DEL** of ours first removes its elements and then looks for the other form. If a pod's elements still
//! exist after the other form was written, a later DEL removes both. Otherwise the other form is
//! [removed](HandOver::take_back) here.

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

/// What is handed over. Call [`write`](Self::write), [`departed`](Self::departed), [`take_back`](Self::take_back) and
/// [`let_go`](Self::let_go) in this order.
#[derive(Debug, Default)]
pub struct HandOver {
    pods: Vec<Pod>,
    /// The policies of the bridges.
    policies: Vec<(String, Policy)>,
    /// The elements of these policies.
    bridges: Vec<Placed>,
}

impl HandOver {
    /// Returns the hand-over of these pods and of the policies of these bridges. Reads the policies from our table.
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

    /// Returns a text for people about each bridge with a policy.
    pub fn policies(&self) -> impl Iterator<Item = String> {
        self.policies.iter().map(|(bridge, policy)| format!("ingressPolicy {policy} of bridge {bridge}"))
    }

    /// Returns why the policies can't be handed over, or `None` if they can.
    pub fn problem(&self) -> Option<String> {
        if self.policies.is_empty() { None } else { without_iptables() }
    }

    /// Leaves the policies out, so that they stay in our table.
    #[must_use]
    pub fn without_policies(self) -> Self {
        HandOver { pods: self.pods, ..HandOver::default() }
    }

    /// Writes all rules in the Go plugins' form, beside ours. A second call changes nothing. Written rules stay after a
    /// failure.
    pub fn write(&self, nft: &mut Nft) -> Result<(), Error> {
        FAMILIES.into_iter().try_for_each(|family| self.write_nat(nft, family))?;
        let mut forwarded: BTreeMap<&str, Vec<IpAddr>> = BTreeMap::new();
        for pod in self.pods.iter().filter(|pod| !pod.forwarded().is_empty()) {
            forwarded.entry(pod.admin_chain()).or_default().extend(pod.forwarded());
        }
        forward::hand_over::write(nft, forwarded, &self.policies)?;
        for pod in &self.pods {
            for (port, mac) in pod.elements_of(Part::Spoof).filter_map(spoof::pair_in) {
                reference_spoof::add(nft, &pod.owner.attachment, &port, mac)?;
            }
            ports::open_for_good(&pod.mapped())?;
        }
        Ok(())
    }

    /// Writes masquerading and port mappings of a family, all or none.
    fn write_nat(&self, nft: &mut Nft, family: Family) -> Result<(), Error> {
        retry_command(|| match self.nat_lines(nft, family)?.as_slice() {
            [] => Ok(()),
            lines => command::restore(family, "nat", lines),
        })
    }

    fn nat_lines(&self, nft: &mut Nft, family: Family) -> Result<Vec<String>, Error> {
        let is_ipv4 = family == Family::Ipv4;
        let mut containers: BTreeMap<(&str, &str), (&Owner, Translation, Vec<IpNetwork>)> = BTreeMap::new();
        for pod in &self.pods {
            // A container has one chain for all of its interfaces in the network.
            let key = (pod.owner.network.as_str(), pod.owner.attachment.container_id.as_str());
            let addrs = pod.masqueraded().into_iter().filter(|addr| addr.is_ipv4() == is_ipv4);
            containers
                .entry(key)
                .or_insert_with(|| (&pod.owner, pod.translation(), Vec::new()))
                .2
                .extend(addrs);
        }
        containers.retain(|_, (_, _, addrs)| !addrs.is_empty());
        let mapped: Vec<(&Owner, Vec<Forward>)> =
            self.pods.iter().map(|pod| (&pod.owner, pod.mapped())).collect();
        let mut mapped_addrs =
            mapped.iter().flat_map(|(_, forwards)| forwards).flat_map(|forward| &forward.addrs);
        if containers.is_empty() && !mapped_addrs.any(|addr| addr.is_ipv4() == is_ipv4) {
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

    /// Returns the pods that have lost all their elements of some part, because a DEL came meanwhile. Ask before
    /// [`let_go`](Self::let_go), which removes the elements itself.
    pub fn departed(&self, nft: &mut Nft) -> Result<Vec<&Pod>, Error> {
        let mut present = Vec::new();
        for part in PARTS {
            present.extend((part.operations().all)(nft)?.into_iter().map(|placed| (part, placed)));
        }
        Ok(self.pods.iter().filter(|pod| pod.has_lost_a_part(&present)).collect())
    }

    /// Removes all rules of pods that are gone, in either form, as DEL does.
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
        // These rules are found by the address, which may be another pod's by now.
        addrs.retain(|ip| !self.pods.iter().any(|of| of.owner != pod.owner && of.forwarded().contains(ip)));
        if addrs.is_empty() { Ok(()) } else { forward::hand_over::take_back(nft, &addrs) }
    }

    /// Removes our elements that have not changed, and what is unused without them. The pods' connections go on.
    pub fn let_go(&self, nft: &mut Nft) -> Result<(), Error> {
        for part in PARTS {
            let mut elements: Vec<Placed> =
                self.pods.iter().flat_map(|pod| pod.elements_of(part)).cloned().collect();
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

/// Removes what no pod uses: empty sets, unused parts and tables of ours, and the guard of our iptables backend.
/// Returns what is left of our tables, for people.
pub fn finish(nft: &mut Nft) -> Result<Vec<String>, Error> {
    super::survey::remove_idle(nft)?;
    if !nft.is_supported()? {
        return Ok(Vec::new());
    }
    ports::remove_guard(nft)?;
    let mut remaining = Vec::new();
    for table in super::survey::TABLES {
        if !nft.has_table(table)? {
            continue;
        }
        // The table of bridges has no chain `admin`.
        let rules = if table.family == Family::Bridge { 0 } else { forward::nftables::admin_rules(nft)? };
        remaining.push(match rules {
            0 => format!("table {table}, which is in use"),
            rules => format!("table {table}, with {rules} rules of yours in the chain admin"),
        });
    }
    Ok(remaining)
}
