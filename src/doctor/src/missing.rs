//! Pods that live and have lost their packet rules, say by `nft flush ruleset`.
//!
//! Only what the cache knows can be put back: it has the configuration that the pod was added
//! with. The plugins firewall and portmap are asked by CHECK, and put their rules back by
//! another ADD, which changes nothing else. Bridge and ptp can't be called twice for a pod, so
//! what they do for `ipMasq` and `macspoofchk` is done here.

use ipnetwork::IpNetwork;
use serde_json::Value;

use cnimble_cni::list::ListEntry;
use cnimble_cni::{CniResult, Error, NetworkList, Owner, Verb, Version, json};
use cnimble_life::Verdict;
use cnimble_life::entries::Known;
use cnimble_life::world::World;
use cnimble_netlink::link::Mac;
use cnimble_netlink::nft::Nft;
use cnimble_rules::{masquerade, portmap, spoof};
use cnimble_runtime::{Entry, Invoker, PluginError};

use super::{Doctor, Finding, Kind, Whose};

/// How rules are put back.
#[derive(Debug, Clone)]
pub(super) enum Action {
    /// ADD of one plugin.
    Plugin {
        entry: Box<Entry>,
        list: Box<NetworkList>,
        plugin: ListEntry,
    },
    Masquerade {
        owner: Owner,
        backend: Option<String>,
        addrs: Vec<IpNetwork>,
    },
    Spoof {
        owner: Owner,
        port: String,
        mac: Mac,
    },
}

impl Action {
    pub(super) async fn run(&self, invoker: &Invoker) -> Result<(), Error> {
        let mut nft = Nft::new();
        match self {
            Action::Plugin { entry, list, plugin } => {
                let done = invoker.replay(Verb::Add, entry, list, plugin).await;
                done.map_err(|err| Error::new(cnimble_cni::Code::DELEGATE, err.to_string()))?;
                if plugin.plugin_type == "portmap" { portmap::note_links(&mut nft) } else { Ok(()) }
            }
            Action::Masquerade { owner, backend, addrs } => {
                let backend = masquerade::choose(backend.as_deref(), &mut nft)?;
                masquerade::add(backend, &mut nft, owner, addrs).map(drop)
            }
            Action::Spoof { owner, port, mac } => spoof::add(&mut nft, owner, port, *mac).map(drop),
        }
    }
}

/// Of all pods, or of those that `wanted` says.
pub(super) async fn findings(
    doctor: &Doctor<'_>,
    world: &World,
    wanted: impl Fn(&Known) -> bool,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for known in world.entries.iter().filter(|known| known.own && wanted(known)) {
        if known.verdict != Verdict::Lives || !known.is_there() {
            continue;
        }
        let (Ok(list), Some(result)) = (known.entry.network_list(), known.result()) else { continue };
        for plugin in &list.plugins {
            let lost = match plugin.plugin_type.as_str() {
                "bridge" | "ptp" => of_interface(known, world, plugin, &result),
                // Before 0.4.0 there was no CHECK, and no result for it.
                "firewall" | "portmap" if list.version >= Version::V0_4_0 => {
                    of_chained(doctor, known, &list, plugin).await.into_iter().collect()
                }
                _ => Vec::new(),
            };
            let lost = lost.into_iter().map(|(why, action)| finding(known, plugin, &why, action));
            findings.extend(lost);
        }
    }
    findings
}

fn finding(known: &Known, plugin: &ListEntry, why: &Error, action: Action) -> Finding {
    Finding {
        kind: Kind::MissingRules,
        what: format!("rules of plugin {}", plugin.plugin_type),
        whose: Whose::of(&known.entry.network, &known.attachment()),
        why: format!("the pod lives without them: {why}"),
        doubt: None,
        remedy: "put them back",
        action: super::Action::Missing(Box::new(action)),
    }
}

async fn of_chained(
    doctor: &Doctor<'_>,
    known: &Known,
    list: &NetworkList,
    plugin: &ListEntry,
) -> Option<(Error, Action)> {
    match doctor.invoker.replay(Verb::Check, &known.entry, list, plugin).await {
        Err(PluginError::Refused { error, .. }) => {
            let (entry, list) = (Box::new(known.entry.clone()), Box::new(list.clone()));
            let plugin = plugin.clone();
            Some((error, Action::Plugin { entry, list, plugin }))
        }
        Err(err) => {
            log::warn!("{}: {err}: its rules were not looked at", known.entry.container_id);
            None
        }
        Ok(()) => None,
    }
}

fn of_interface(
    known: &Known,
    world: &World,
    plugin: &ListEntry,
    result: &CniResult,
) -> Vec<(Error, Action)> {
    let mut nft = Nft::new();
    let mut lost = Vec::new();
    let owner = known.owner();
    let is = |key: &str| json::get(&plugin.document, key).and_then(Value::as_bool) == Some(true);
    let addrs: Vec<IpNetwork> = result.ips.iter().map(|ip| ip.address).collect();
    if is("ipMasq")
        && !addrs.is_empty()
        && let Err(why) = masquerade::check(&mut nft, &owner, &addrs)
    {
        let backend = json::get(&plugin.document, "ipMasqBackend").and_then(Value::as_str);
        let action = Action::Masquerade { owner: owner.clone(), backend: backend.map(str::to_owned), addrs };
        lost.push((why, action));
    }
    if is("macspoofchk")
        && let Some((port, mac)) = port_and_mac(world, result)
        && let Err(why) = spoof::check(&mut nft, &owner, &port, mac)
    {
        lost.push((why, Action::Spoof { owner, port, mac }));
    }
    lost
}

/// The pod's port of its bridge, and the pod's MAC.
fn port_and_mac(world: &World, result: &CniResult) -> Option<(String, Mac)> {
    let is_port = |name: &str| {
        world.links.iter().any(|link| link.name == name && link.kind == "veth" && link.master.is_some())
    };
    let port = result.interfaces.iter().find(|of| of.sandbox.is_empty() && is_port(&of.name))?;
    let pod = result.interfaces.iter().find(|of| !of.sandbox.is_empty())?;
    Some((port.name.clone(), Mac::parse(&pod.mac)?))
}
