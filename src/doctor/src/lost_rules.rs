//! Pods that live and have lost their packet rules, say by `nft flush ruleset`.
//!
//! Only what the cache knows can be put back: it has the configuration that the pod was added
//! with. Which plugin has which rules is in [`cnimble_made::rules`].

use cnimble_cni::list::ListEntry;
use cnimble_cni::{CniResult, Error, NetworkList, Verb};
use cnimble_life::Verdict;
use cnimble_life::cache_entries::Known;
use cnimble_life::node::Node;
use cnimble_made::rules::{self, Lost, Way};
use cnimble_netlink::nft::Nft;
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
    Rules(Lost),
}

impl Action {
    pub(super) async fn run(&self, invoker: &Invoker) -> Result<(), Error> {
        let mut nft = Nft::new();
        match self {
            Action::Plugin { entry, list, plugin } => {
                let done = invoker.replay(Verb::Add, entry, list, plugin).await;
                done.map_err(|err| Error::new(cnimble_cni::Code::DELEGATE, err.to_string()))?;
                rules::after_add(plugin, &mut nft)
            }
            Action::Rules(lost) => lost.put_back(&mut nft),
        }
    }
}

/// Of all pods, or of those that `wanted` says.
pub(super) async fn findings(
    doctor: &Doctor<'_>,
    node: &Node,
    wanted: impl Fn(&Known) -> bool,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for known in node.entries.iter().filter(|known| known.own && wanted(known)) {
        if known.verdict != Verdict::Lives || !known.is_there() {
            continue;
        }
        let (Ok(list), Some(result)) = (known.entry.network_list(), known.result()) else { continue };
        for plugin in &list.plugins {
            let lost = match rules::way(&list, plugin) {
                Some(Way::Keys) => of_keys(known, node, plugin, &result),
                Some(Way::Verbs) => of_verbs(doctor, known, &list, plugin).await.into_iter().collect(),
                None => Vec::new(),
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

fn of_keys(known: &Known, node: &Node, plugin: &ListEntry, result: &CniResult) -> Vec<(Error, Action)> {
    let lost = rules::lost(plugin, &known.owner(), result, &node.links);
    lost.into_iter().map(|(why, lost)| (why, Action::Rules(lost))).collect()
}

async fn of_verbs(
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
