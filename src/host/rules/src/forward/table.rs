//! The table `filter` of iptables: the names of the plugin's chains, the saved text, and changes.

use std::net::IpAddr;

use cnimble_cni::{Error, cidr};
use cnimble_netlink::nft::{Family, Nft, Table};

use crate::xtables;

pub(super) const FORWARD: &str = "FORWARD";
/// The chain with the rules of pods.
pub(crate) const PODS: &str = "CNI-FORWARD";
/// The default chain with the administrator's rules.
pub(crate) const ADMIN: &str = "CNI-ADMIN";
/// The chain that packets from bridges with a policy go through.
pub(super) const STAGE1: &str = "CNI-ISOLATION-STAGE-1";

/// The comment of the jump from FORWARD to the chain of pods.
pub(super) const TO_PODS: &str = "CNI firewall plugin rules";
/// The comment of the jump from the chain of pods to the administrator's.
pub(super) const TO_ADMIN: &str = "CNI firewall plugin admin overrides";

pub(super) fn filter(family: Family) -> Table<'static> {
    Table::new(family, "filter")
}

/// Returns the rules that accept answers to a pod and all that it sends, without `-A`.
pub(super) fn pod_rules(ip: IpAddr) -> [String; 2] {
    let ip = cidr::host(ip);
    [
        format!("{PODS} -d {ip} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"),
        format!("{PODS} -s {ip} -j ACCEPT"),
    ]
}

/// Returns the rules that accept connections by a published port of a pod and the answers, without `-A`.
pub(super) fn published_rules(ip: IpAddr, comment: &str) -> [String; 2] {
    let ip = cidr::host(ip);
    [("-d", "ORIGINAL"), ("-s", "REPLY")].map(|(end, direction)| {
        let comment = commented(comment);
        format!("{PODS} {end} {ip} {comment} -m conntrack --ctstate DNAT --ctdir {direction} -j ACCEPT")
    })
}

/// The lines of a table as `iptables-save` prints it.
pub(super) struct SavedTable<'a>(pub(super) Vec<&'a str>);

impl<'a> SavedTable<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        SavedTable(text.lines().map(str::trim_end).collect())
    }

    pub(super) fn has_chain(&self, name: &str) -> bool {
        self.0.iter().any(|line| line.strip_prefix(':').and_then(|rest| rest.split(' ').next()) == Some(name))
    }

    /// Returns whether the table has exactly this rule, which is without `-A`.
    pub(super) fn has(&self, rule: &str) -> bool {
        self.rules().any(|saved| saved == rule)
    }

    /// Returns the rules without `-A`.
    pub(super) fn rules(&self) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter_map(|line| line.strip_prefix("-A "))
    }
}

/// Returns a rule without its comments. These may contain anything, and they differ between releases of the Go plugin.
pub(super) fn uncommented(rule: &str) -> String {
    const MATCH: &str = " -m comment --comment ";
    let mut rest = rule;
    let mut out = String::new();
    while let Some((before, after)) = rest.split_once(MATCH) {
        out.push_str(before);
        rest = match after.strip_prefix('"') {
            None => after.find(' ').and_then(|end| after.get(end..)).unwrap_or_default(),
            Some(text) => {
                let mut escaped = false;
                let end = text.char_indices().find(|(_, c)| {
                    let ends = *c == '"' && !escaped;
                    escaped = *c == '\\' && !escaped;
                    ends
                });
                end.and_then(|(at, _)| text.get(at + 1..)).unwrap_or_default()
            }
        };
    }
    out.push_str(rest);
    out
}

/// Lines for `iptables-restore` that add what is missing.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RestoreLines {
    /// The chains and jumps that pods share. An undo removes them only if they are unused.
    pub(super) shared: Vec<String>,
    /// The rules of the bridge's policy to add, and outdated ones to delete.
    pub(super) policy: Vec<String>,
    /// Present rules of the bridge, each deleted and inserted again. If a concurrent DEL has removed one since the
    /// look, the deletion fails, and with it the whole restore.
    pub(super) kept: Vec<String>,
    /// The pod's rules.
    pub(super) rules: Vec<String>,
    /// The first line that CHECK reports as missing. `None` if nothing is.
    pub(super) incomplete: Option<String>,
}

impl RestoreLines {
    /// Notes a line for CHECK, unless there is one already.
    pub(super) fn lacks(&mut self, line: &str) {
        self.incomplete.get_or_insert_with(|| line.to_owned());
    }

    /// Returns all lines in the order in which they must be restored.
    pub(super) fn lines(&self) -> Vec<String> {
        self.shared.iter().chain(&self.kept).chain(&self.policy).chain(&self.rules).cloned().collect()
    }
}

/// Returns the match of iptables that adds a comment to a rule.
pub(super) fn commented(comment: &str) -> String {
    format!("-m comment --comment \"{comment}\"")
}

/// Returns whether some pod has rules in the chain of pods, in either variant. Jumps don't count.
pub(super) fn has_pods(nft: &mut Nft) -> Result<bool, Error> {
    for family in xtables::FAMILIES {
        let rules = nft.rules(filter(family), Some(PODS))?;
        let legacy = xtables::legacy_rules_of(family, "filter")?.unwrap_or_default();
        if rules.iter().any(|rule| rule.target().is_none())
            || legacy.iter().any(|rule| xtables::in_chain(rule, PODS) && rule.ends_with(" -j ACCEPT"))
        {
            return Ok(true);
        }
    }
    Ok(false)
}
