//! Source NAT for what leaves the pod network (`ipMasq`). With either backend, removal also looks for rules of the Go
//! plugins (`reference`). A node may switch between the two sets of plugins while its pods run.

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

/// Returns the configured backend (`ipMasqBackend`). For `None` it is nf_tables where that works, and iptables
/// elsewhere. Fails with code 7 for any other name.
pub fn choose(configured: Option<&str>, nft: &mut Nft) -> Result<Backend, Error> {
    match configured {
        Some("nftables") => Ok(Backend::Nftables),
        Some("iptables") => Ok(Backend::Iptables),
        Some(other) => Err(Error::config(format!("ipMasqBackend: unknown backend \"{other}\""))
            .details("allowed are \"nftables\" and \"iptables\"")),
        // Without the commands of iptables nf_tables is tried, because its error says more than that a command is
        // missing.
        None if !nft.is_supported()? && command::installed() => Ok(Backend::Iptables),
        None => Ok(Backend::Auto),
    }
}

/// Does what [`choose`] does, but looks at rules of others in iptables if no backend is configured. If one of them may
/// exempt packets of these sources, returns iptables in that variant, and the rule.
pub(super) fn choose_for(
    configured: Option<&str>,
    nft: &mut Nft,
    sources: Sources<'_>,
) -> Result<(Backend, Option<Decision>), Error> {
    let backend = choose(configured, nft)?;
    backend.honouring(nft, &sources.traffic())
}

/// Returns true if a verb may run the commands of iptables, for this configuration or for rules that were made with
/// another one.
pub fn may_run_iptables(config: &PluginConfig, verb: Verb) -> bool {
    match verb {
        Verb::Add | Verb::Status => {
            let backend = json::get(config.document(), "ipMasqBackend");
            masquerades(config) && backend.and_then(|value| value.as_str()) != Some("nftables")
        }
        // The Go plugins may have made the pod's rules.
        Verb::Check => masquerades(config),
        Verb::Del | Verb::Gc => true,
        _ => false,
    }
}

/// Returns whether the configuration masquerades pods. A value that is no boolean counts as true.
fn masquerades(config: &PluginConfig) -> bool {
    json::get(config.document(), "ipMasq").is_some_and(|value| value.as_bool() != Some(false))
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
    /// Reads `ipv4`, `ipv6` or an empty text, which stands for both. Fails with code 7 for any other.
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

    /// Returns the addresses of these families.
    pub fn filter(self, addrs: impl Iterator<Item = IpNetwork>) -> Vec<IpNetwork> {
        addrs
            .filter(|addr| match self {
                Families::Both => true,
                Families::V4 => addr.is_ipv4(),
                Families::V6 => addr.is_ipv6(),
            })
            .collect()
    }
}

/// Masquerades what the owner's addresses send out of their network, except to multicast groups and excluded
/// destinations. Returns what takes it back. A second call changes nothing. If it fails half-way, it takes back what it
/// did.
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
        |nft| nftables::add(nft, owner, sources).map(Applied::from_changes::<Masquerade>),
        |nft| iptables::add(nft, owner, sources, backend.variant().unwrap_or(Variant::Usual)),
    )
}

/// Removes all masquerading of the owner, with any backend, and in the form of the Go plugins.
///
/// `sources` come from prevResult and save a listing. They may be outdated or missing. But in iptables a chain serves
/// all interfaces of a container, and only the addresses tell which jumps are the owner's. Without them the chain is
/// removed. If a step fails, the others are tried before the error is returned.
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

/// Fails with code 103 and the missing object if an address is not masqueraded. Without exceptions, rules of the Go
/// plugins are as good as ours. They know no exceptions, so with any only our own rules count.
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

/// Fails with code 103 if the owner's rules are in nf_tables, while a rule of others in iptables exempts packets from
/// masquerading. Such a rule has no effect on nf_tables.
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

/// Returns whether the Go plugins or our iptables backend masquerade all of these addresses.
fn check_reference(nft: &mut Nft, owner: &Owner, addrs: &[IpNetwork]) -> Result<bool, Error> {
    for addr in addrs {
        if !reference::is_masqueraded(nft, owner, addr.ip())? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes the rules of all attachments of `network` that are not in `valid`. If a step fails, the others are tried
/// before the error is returned.
pub fn gc(nft: &mut Nft, network: &str, valid: &[Attachment]) -> Result<(), Error> {
    let mut failures = Failures::default();
    if has_nf_tables(nft, &mut failures) {
        failures.note(Masquerade::gc(nft, network, valid).map(drop));
        failures.note(reference::gc_nf_tables(nft, network, valid));
    }
    failures.note(MASQUERADE.gc_legacy(network, valid));
    failures.outcome()
}

/// Fails with code 50 if the `configured` backend, or the one that ADD would choose, can't be used now.
pub fn status(configured: Option<&str>) -> Result<(), Error> {
    let nft = &mut Nft::new();
    let backend = choose(configured, nft).map_err(|err| {
        Error::new(Code::NOT_AVAILABLE, "masquerading can't be used").details(err.to_string())
    })?;
    backend.status(|| Masquerade::usable(nft), || command::usable("nat", "ipMasqBackend"))
}
