//! The subcommand `cnimble cri set-pod-cidr`.

use ipnetwork::IpNetwork;
use serde_json::json;

use cnimble_cri::{Client, Cni, CriError};

use super::report;
use crate::output::print_note;
use crate::report::{Exit, Report, usage};
use crate::style::joined;
use crate::{Session, print_json};

/// Gives the runtime the node's podCIDRs, and notes if that has no effect on its network.
///
/// # Errors
/// Fails with a usage error for two networks of a family, and for a network with host bits. It fails with
/// [`Exit::Plugin`] if the runtime lacks the call.
pub(super) async fn set(session: &Session, client: &Client, cidrs: &[IpNetwork]) -> Result<(), Report> {
    let what = "can't give the runtime the podCIDRs";
    let families = cidrs.iter().filter(|cidr| cidr.is_ipv6()).count();
    if families > 1 || cidrs.len() - families > 1 {
        return Err(usage("give at most one network for each address family"));
    }
    if let Some(cidr) = cidrs.iter().find(|cidr| cidr.network() != cidr.ip()) {
        let network = cidr.network();
        return Err(usage(format!("{cidr} is no network: did you mean {network}/{}?", cidr.prefix())));
    }
    let before = client.status().await.map_err(|err| report(what, &err))?.cni;
    let list = cidrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    match client.set_pod_cidr(&list).await {
        Err(CriError::Unimplemented { method }) => {
            let name = &client.version().name;
            return Err(Report::because(Exit::Plugin, what, format!("{name} doesn't implement {method}"))
                .hint("write the network's configuration into its directory"));
        }
        outcome => outcome.map_err(|err| report(what, &err))?,
    }
    let effect = effect(client, before.as_ref());
    let words = format!("{} was told {}", client.version().name, joined(cidrs));
    if session.json {
        print_json(&json!({"podCIDR": list, "note": effect}))
    } else {
        effect.iter().for_each(|effect| print_note(effect));
        session.done(&words, &json!(null))
    }
}

/// Returns why an accepted CIDR has no effect on the runtime, or that this is unknown. It returns `None` if it has one.
/// `cni` is what the runtime reported before, if it reports its networks.
fn effect(client: &Client, cni: Option<&Cni>) -> Option<String> {
    let name = &client.version().name;
    match cni {
        Some(cni) if cni.conf_template.is_none() => {
            Some(format!("{name} accepts it without effect, because it has no conf_template"))
        }
        Some(cni) if !cni.networks.is_empty() => {
            Some(format!("{name} accepts it without effect, because it has already loaded a configuration"))
        }
        Some(_) => None,
        None => Some(format!("{name} does not report whether it has an effect")),
    }
}
