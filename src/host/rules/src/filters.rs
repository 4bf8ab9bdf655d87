//! The packet rules of a pod's interface: MAC check, isolation and masquerading, in one nf_tables transaction.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use nix::errno::Errno;

use cnimble_cni::{Error, Owner};
use cnimble_netlink as netlink;
use cnimble_netlink::link::Mac;
use cnimble_netlink::nft::Nft;

use super::backend::Backend;
use super::elements;
use super::failures::UNSUPPORTED;
use super::isolation::{self, Isolation};
use super::masquerade::nftables::{self as masquerading, Masquerade};
use super::masquerade::{self, Sources, Translation};
use super::retry::OVERTAKEN;
use super::spoof::{self, Spoof};
pub use super::undo::Applied;
use super::undo::undone;

/// The packet rules that a pod wants.
#[derive(Debug, Clone, Default)]
pub struct PodRules<'a> {
    /// The host's interface that is the pod's port of its bridge. Only the MAC check and the isolation need it.
    pub port: &'a str,
    /// The one MAC address that frames from the port may have as their source (`macspoofchk`). `None` checks nothing.
    pub mac: Option<Mac>,
    /// The pod's addresses, if its port is isolated (`portIsolation`).
    pub isolated: Option<Vec<IpAddr>>,
    /// The addresses to masquerade, or `None`.
    pub masquerade: Option<Masqueraded<'a>>,
}

/// The masquerading of a pod.
#[derive(Debug, Clone, Default)]
pub struct Masqueraded<'a> {
    /// The pod's addresses, with the prefix length of their network.
    pub addrs: Vec<IpNetwork>,
    /// The configured backend (`ipMasqBackend`).
    pub backend: Option<&'a str>,
    /// The exceptions.
    pub translation: Translation,
}

impl Masqueraded<'_> {
    /// Fails with code 103 and what is missing, or the rule of others that has no effect because of ours.
    pub fn check(&self, nft: &mut Nft, owner: &Owner) -> Result<(), Error> {
        masquerade::check(nft, owner, self.sources())?;
        masquerade::check_exemptions(self.backend, nft, owner, self.sources())
    }

    pub fn sources(&self) -> Sources<'_> {
        Sources { addrs: &self.addrs, translation: &self.translation }
    }
}

impl PodRules<'_> {
    /// Returns whether there are no rules to add.
    pub fn is_empty(&self) -> bool {
        self.names().next().is_none()
    }

    /// Returns the name of the step for the log: `set up the MAC check, masquerading`.
    pub fn step(&self) -> String {
        format!("set up {}", self.names().collect::<Vec<_>>().join(", "))
    }

    fn names(&self) -> impl Iterator<Item = &'static str> {
        let masquerades = self.masquerade.as_ref().is_some_and(|of| !of.addrs.is_empty());
        let rules = [
            ("the MAC check", self.mac.is_some()),
            ("port isolation", self.isolated.is_some()),
            ("masquerading", masquerades),
        ];
        rules.into_iter().filter(|(_, is_wanted)| *is_wanted).map(|(name, _)| name)
    }
}

/// Adds the rules, in one transaction if the kernel can do it. Returns what takes them back. A second call changes
/// nothing. If it fails half-way, it takes back what it did. Fails with code 7 for an unknown backend.
pub fn add(nft: &mut Nft, owner: &Owner, wanted: &PodRules<'_>) -> Result<Applied, Error> {
    let backend = match &wanted.masquerade {
        Some(of) => masquerade::choose_for(of.backend, nft, of.sources())?.0,
        None => Backend::Nftables,
    };
    let several = backend.variant().is_none() && wanted.names().nth(1).is_some();
    let mut undo = Applied::default();
    let added = match several.then(|| add_together(nft, owner, wanted, &mut undo)) {
        // The kernel may lack something that one rule needs, or a concurrent process has removed something. Added one
        // by one, each rule has its own error, and masquerading can use iptables.
        Some(Err(err)) if UNSUPPORTED.contains(&err.errno) && undo.is_empty() => {
            log::debug!("the rules are added one by one: {err}");
            add_each(nft, owner, wanted, backend, &mut undo)
        }
        Some(added) => added.map_err(Error::from),
        None => add_each(nft, owner, wanted, backend, &mut undo),
    };
    match added {
        Ok(()) => Ok(undo),
        Err(err) => Err(undone(err, undo.run())),
    }
}

/// Adds all rules in one transaction of nf_tables. Adds to `undo` what takes them back, also if the last step fails.
fn add_together(
    nft: &mut Nft,
    owner: &Owner,
    wanted: &PodRules<'_>,
    undo: &mut Applied,
) -> netlink::Result<()> {
    let mac = wanted.mac.map(|mac| spoof::wanted(owner, wanted.port, mac)).unwrap_or_default();
    let isolated = wanted
        .isolated
        .as_ref()
        .map(|addrs| isolation::wanted(owner, wanted.port, addrs))
        .unwrap_or_default();
    let masquerade =
        wanted.masquerade.as_ref().map(|of| masquerading::wanted(owner, of.sources())).unwrap_or_default();
    // ENOENT may stand for an expression that the kernel lacks, so it is not repeated here. The caller then adds each
    // rule alone.
    let overtaken = OVERTAKEN.into_iter().filter(|errno| *errno != Errno::ENOENT).collect::<Vec<_>>();
    let (mut mac, isolated, masquerade) = elements::transact(nft, &overtaken, |transaction, nft| {
        Ok((
            transaction.add::<Spoof>(nft, &mac)?,
            transaction.add::<Isolation>(nft, &isolated)?,
            transaction.add::<Masquerade>(nft, &masquerade)?,
        ))
    })?;
    let outcome = spoof::forget_replaced(nft, &mut mac);
    undo.push_changes::<Spoof>(mac);
    undo.push_changes::<Isolation>(isolated);
    undo.push_changes::<Masquerade>(masquerade);
    outcome
}

/// Adds one rule after the other. Adds to `undo` what takes them back, also if one fails.
fn add_each(
    nft: &mut Nft,
    owner: &Owner,
    wanted: &PodRules<'_>,
    backend: Backend,
    undo: &mut Applied,
) -> Result<(), Error> {
    if let Some(mac) = wanted.mac {
        undo.join(spoof::add(nft, owner, wanted.port, mac)?);
    }
    if let Some(addrs) = &wanted.isolated {
        undo.join(isolation::add(nft, owner, wanted.port, addrs)?);
    }
    if let Some(of) = &wanted.masquerade {
        undo.join(masquerade::add(backend, nft, owner, of.sources())?);
    }
    Ok(())
}
