//! Checks that a pod's rules are in place and have an effect, and that those of a new pod would have one.

use cnimble_cni::{Code, Error, Owner};
use cnimble_netlink::nft::{Family, Nft};

use super::nftables::{self, Forwarding};
use super::walk::{ChainEffect, Pods};
use super::{Admin, Backend, Forward, choose, firewalld, iptables, others, table};
use crate::elements::Layout;
use crate::failures::{UNSUPPORTED, not_available};
use crate::xtables::Variant;
use crate::{backend as rules, command, xtables};

/// Fails with code 103 if rules are missing or have no effect. The details say what is missing, or what drops the
/// packets and what to do about it.
///
/// Rules in nf_tables and in iptables count alike if they have an effect, but with the configured backend iptables only
/// the latter. If firewalld is running, or configured, the pod's addresses must be in its zone instead, unless another
/// backend is configured.
pub fn check(
    configured: Option<Backend>,
    nft: &mut Nft,
    owner: &Owner,
    forward: &Forward,
) -> Result<(), Error> {
    let has_nf_tables = nft.is_supported()?;
    let usual = configured.is_none() && has_nf_tables && firewalld::is_running(nft)?;
    if usual || configured == Some(Backend::Firewalld) {
        let mut missing = firewalld::check(&forward.zone, &forward.addrs)?;
        if missing.is_none() && !forward.policed().is_empty() {
            missing = nftables::check(nft, owner, forward)?;
        }
        return missing.map_or(Ok(()), |missing| Err(absent().details(missing)));
    }
    let found = match nftables::check(nft, owner, forward) {
        // The kernel lacks nf_tables, or this family of it.
        Err(err) if UNSUPPORTED.contains(&err.errno) => Some(err.to_string()),
        found => found?,
    };
    let missing = match found {
        None if configured != Some(Backend::Iptables) => {
            let Some(problem) = passed_by(configured, nft, forward)? else { return Ok(()) };
            if iptables::check(nft, forward)?.is_none() {
                return in_front(nft, forward);
            }
            return Err(problem);
        }
        None => "nf_tables has them, but not iptables, which is configured".to_owned(),
        Some(missing) => missing,
    };
    match iptables::check(nft, forward)? {
        None => in_front(nft, forward),
        Some(also) => Err(absent().details(missing).details(also)),
    }
}

fn absent() -> Error {
    Error::check("rules for forwarding are missing")
}

/// Returns why rules in nf_tables are not enough, or `None` if they are.
fn passed_by(configured: Option<Backend>, nft: &mut Nft, forward: &Forward) -> Result<Option<Error>, Error> {
    if configured.is_none() && forward.admin.needs_iptables() {
        let why =
            format!("the administrator's chain {} does not see the pod's packets", forward.admin.chain());
        return Ok(Some(Error::check(why).details("hint: cnimble doctor --repair")));
    }
    for family in xtables::FAMILIES {
        if forward.of_family(family).next().is_none() {
            continue;
        }
        // With configured nf_tables, a rule with a condition may be the administrator's and let the pods pass.
        let shut = match others::way(nft, family, Pods::Refused)? {
            ChainEffect::Open => false,
            ChainEffect::Shut { surely } => surely || configured.is_none(),
        };
        if shut {
            return Ok(Some(
                Error::check(format!("{} FORWARD drops what the pod sends", table::filter(family))).details(
                    "its rules are in nf_tables, which can't overrule that; hint: cnimble doctor --repair, \
                     or let it pass there yourself and set \"backend\": \"nftables\"",
                ),
            ));
        }
    }
    Ok(None)
}

/// Fails with code 103 if `FORWARD` drops the pod's packets before they reach its rules in iptables. Call it only if
/// the pod has such rules.
pub(super) fn in_front(nft: &mut Nft, forward: &Forward) -> Result<(), Error> {
    for family in xtables::FAMILIES {
        if forward.of_family(family).next().is_none() {
            continue;
        }
        if let Some((chain, remedy)) = in_the_way(nft, family, Pods::Accepted)? {
            return Err(Error::check(format!("{chain} drops what the pod sends")).details(remedy));
        }
    }
    Ok(())
}

/// Returns the chain that drops what pods send before the plugin's chain accepts it, and what to do about it.
fn in_the_way(nft: &mut Nft, family: Family, pods: Pods) -> Result<Option<(String, String)>, Error> {
    for variant in [Variant::Nft, Variant::Legacy] {
        let way = others::way_in(nft, family, variant, pods)?;
        let is_in_the_way = match pods {
            Pods::Accepted => way != ChainEffect::Open,
            // A rule with a condition may let them pass.
            Pods::Refused | Pods::Added => way == ChainEffect::Shut { surely: true },
        };
        if !is_in_the_way {
            continue;
        }
        let chain = match variant {
            Variant::Legacy => format!("FORWARD of the legacy variant in {}", table::filter(family)),
            _ => format!("{} FORWARD", table::filter(family)),
        };
        let command = variant.command(family, "restore").replace("-restore", "");
        return Ok(Some((
            chain,
            format!(
                "a rule drops it before {0} accepts it; see `{command} -S FORWARD`, and move the jump to {0} to the \
                 front",
                table::PODS
            ),
        )));
    }
    Ok(None)
}

/// Fails with code 50 if the backend that ADD would [`choose`] can't be used. Fails with code 51 if `FORWARD` would
/// surely drop what pods send all the same.
pub fn status(configured: Option<Backend>, admin: &Admin, nft: &mut Nft) -> Result<(), Error> {
    let backend = choose(configured, admin, nft).map_err(not_available)?.backend;
    let (rules, pods) = match backend {
        Backend::Nftables => (rules::Backend::Nftables, Pods::Refused),
        Backend::Iptables => (rules::Backend::Iptables, Pods::Added),
        Backend::Firewalld => return firewalld::running().map_err(not_available),
    };
    rules.status(|| Forwarding::usable(nft), || command::usable("filter", "backend"))?;
    for family in xtables::FAMILIES {
        if let Some((chain, remedy)) = in_the_way(nft, family, pods)? {
            let error = Error::new(Code::LIMITED_CONNECTIVITY, format!("{chain} drops what pods send"));
            return Err(match backend {
                Backend::Iptables => error.details(remedy),
                _ => error.details("let pods pass there, or don't set \"backend\""),
            });
        }
    }
    Ok(())
}
