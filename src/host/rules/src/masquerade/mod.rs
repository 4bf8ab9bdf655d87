//! Source NAT for what leaves the pod network (`ipMasq`). With either backend, removal also looks for rules of the Go
//! plugins (`reference`): a node may switch while its pods run.

mod config;
pub(crate) mod iptables;
pub(super) mod nftables;
pub(super) mod reference;
mod translation;

use ipnetwork::IpNetwork;

pub use super::backend::Backend;
use cnimble_cni::{Attachment, Code, Error, Owner, PluginConfig, Verb, json};
use cnimble_netlink::nft::Nft;

use super::command;
use super::elements::Layout;
use super::failures::{Failures, has_nf_tables};
use super::go_chains::MASQUERADE;
use super::nat::{self, Decision};
pub use super::undo::Applied;
use super::xtables::Variant;
pub use config::Settings;
use nftables::Masquerade;
pub use translation::{Sources, Translation};

/// The configured backend (`ipMasqBackend`); for `None` nf_tables where it works and iptables elsewhere.
pub fn choose(configured: Option<&str>, nft: &mut Nft) -> Result<Backend, Error> {
    match configured {
        Some("nftables") => Ok(Backend::Nftables),
        Some("iptables") => Ok(Backend::Iptables),
        Some(other) => Err(Error::config(format!("ipMasqBackend: unknown backend \"{other}\""))
            .details("allowed are \"nftables\" and \"iptables\"")),
        // An error about nf_tables tells more than one about a missing command.
        None if !nft.is_supported()? && command::installed() => Ok(Backend::Iptables),
        None => Ok(Backend::Auto),
    }
}

/// The backend of [`choose`], or iptables where a rule of others may exempt packets from these sources.
pub(super) fn choose_for(
    configured: Option<&str>,
    nft: &mut Nft,
    sources: Sources<'_>,
) -> Result<(Backend, Option<Decision>), Error> {
    let backend = choose(configured, nft)?;
    backend.honouring(nft, &sources.traffic())
}

/// Returns true if a verb may run iptables: by this configuration, or for what was made before with another one.
pub fn may_run_iptables(config: &PluginConfig, verb: Verb) -> bool {
    let key = |key: &str| json::get(config.document(), key);
    let masquerades = || key("ipMasq").is_some_and(|value| value.as_bool() != Some(false));
    match verb {
        Verb::Add | Verb::Status => {
            masquerades() && key("ipMasqBackend").and_then(|value| value.as_str()) != Some("nftables")
        }
        // The Go plugins may have made the pod.
        Verb::Check => masquerades(),
        Verb::Del | Verb::Gc => true,
        _ => false,
    }
}

/// The families of a pod's addresses that are masqueraded (`ipMasqFamily`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Families {
    #[default]
    Both,
    V4,
    V6,
}

impl Families {
    /// An empty key is both.
    pub fn read(key: &str) -> Result<Self, Error> {
        match key {
            "" => Ok(Families::Both),
            "ipv4" => Ok(Families::V4),
            "ipv6" => Ok(Families::V6),
            other => {
                let other = other.escape_debug();
                Err(Error::config(format!("ipMasqFamily: unknown family \"{other}\", expected ipv4 or ipv6")))
            }
        }
    }

    pub fn of(self, addrs: impl Iterator<Item = IpNetwork>) -> Vec<IpNetwork> {
        addrs
            .filter(|addr| match self {
                Families::Both => true,
                Families::V4 => addr.is_ipv4(),
                Families::V6 => addr.is_ipv6(),
            })
            .collect()
    }
}

/// Masquerades what the owner's addresses send out of their network, except multicast and excluded destinations.
/// Idempotent. Takes back what it did if it fails half-way.
pub fn add<'a>(
    backend: Backend,
    nft: &mut Nft,
    owner: &Owner,
    sources: impl Into<Sources<'a>>,
) -> Result<Applied, Error> {
    let sources = sources.into();
    if sources.addrs.is_empty() {
        return Ok(Applied::default());
    }
    backend.add(
        "masquerading",
        nft,
        |nft| nftables::add(nft, owner, sources).map(Applied::of::<Masquerade>),
        |nft| iptables::add(nft, owner, sources, backend.variant().unwrap_or(Variant::Usual)),
    )
}

/// Removes all masquerading of the owner, also the Go plugins' with either backend and in older forms. `sources` (from
/// prevResult) save a listing; they may be stale or missing. Tries everything before it fails.
pub fn remove<'a>(nft: &mut Nft, owner: &Owner, sources: impl Into<Sources<'a>>) -> Result<(), Error> {
    let sources = sources.into();
    let addrs = sources.addrs;
    let mut failures = Failures::default();
    if has_nf_tables(nft, &mut failures) {
        failures.note(nftables::remove(nft, owner, sources));
        failures.note(reference::remove_nf_tables(nft, owner, addrs));
    }
    failures.note(reference::remove_legacy(owner, addrs));
    failures.outcome()
}

/// Fails with code 103 and the missing object if the masquerading is not there. Objects of the Go plugins, which have
/// no exceptions, count as well.
pub fn check<'a>(nft: &mut Nft, owner: &Owner, sources: impl Into<Sources<'a>>) -> Result<(), Error> {
    let Sources { addrs, translation } = sources.into();
    for addr in addrs {
        let missing = match nftables::check(nft, owner, *addr, translation) {
            Ok(None) => continue,
            Ok(Some(missing)) => missing,
            Err(err) => err.to_string(),
        };
        let is_there = if translation.is_plain() {
            reference::is_masqueraded(nft, owner, addr.ip())?
        } else {
            iptables::is_whole(owner, addr, translation)?
        };
        if !is_there {
            let what = format!("masquerade of {} is missing", addr.ip());
            return Err(Error::check(what).details(missing));
        }
    }
    Ok(())
}

/// Fails with code 103 if a rule of others exempts packets, and the owner's rules are where it has no effect.
pub fn check_exemptions<'a>(
    configured: Option<&str>,
    nft: &mut Nft,
    owner: &Owner,
    sources: impl Into<Sources<'a>>,
) -> Result<(), Error> {
    let sources = sources.into();
    let mut in_nf_tables = false;
    for addr in sources.addrs {
        in_nf_tables |= matches!(nftables::check(nft, owner, *addr, sources.translation), Ok(None));
    }
    if !in_nf_tables {
        return Ok(());
    }
    match choose_for(configured, nft, sources)? {
        (_, None) => Ok(()),
        (_, Some(rule)) => Err(nat::passed_over("ipMasq", &rule)),
    }
}

fn check_reference(nft: &mut Nft, owner: &Owner, addrs: &[IpNetwork]) -> Result<bool, Error> {
    for addr in addrs {
        if !reference::is_masqueraded(nft, owner, addr.ip())? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes what attachments of `network` outside `valid` left. Tries everything before it fails.
pub fn gc(nft: &mut Nft, network: &str, valid: &[Attachment]) -> Result<(), Error> {
    let mut failures = Failures::default();
    if has_nf_tables(nft, &mut failures) {
        failures.note(Masquerade::gc(nft, network, valid).map(drop));
        failures.note(reference::gc_nf_tables(nft, network, valid));
    }
    failures.note(MASQUERADE.gc_legacy(network, valid));
    failures.outcome()
}

/// Fails with code 50 if the `configured` backend, or the one that would be chosen, can't be used now.
pub fn status(configured: Option<&str>) -> Result<(), Error> {
    let nft = &mut Nft::new();
    let backend = choose(configured, nft).map_err(|err| {
        Error::new(Code::NOT_AVAILABLE, "masquerading can't be used").details(err.to_string())
    })?;
    backend.status(|| Masquerade::usable(nft), || command::usable("nat", "ipMasqBackend"))
}
