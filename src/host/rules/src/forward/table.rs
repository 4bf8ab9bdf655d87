//! iptables' table `filter`: the names of our chains in it, its text, and changes to it.

use std::net::IpAddr;

use cnimble_cni::{Error, cidr};
use cnimble_netlink::nft::{Family, Nft, Table};

use crate::xtables;

pub(super) const FORWARD: &str = "FORWARD";
pub(crate) const PODS: &str = "CNI-FORWARD";
pub(crate) const ADMIN: &str = "CNI-ADMIN";
/// The chain that packets from bridges with a policy go through.
pub(super) const STAGE1: &str = "CNI-ISOLATION-STAGE-1";

pub(super) const TO_PODS: &str = "CNI firewall plugin rules";
pub(super) const TO_ADMIN: &str = "CNI firewall plugin admin overrides";

pub(super) fn filter(family: Family) -> Table<'static> {
    Table::new(family, "filter")
}

pub(super) fn pod_rules(ip: IpAddr) -> [String; 2] {
    let ip = cidr::host(ip);
    [
        format!("{PODS} -d {ip} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"),
        format!("{PODS} -s {ip} -j ACCEPT"),
    ]
}

pub(super) fn published_rules(ip: IpAddr, comment: &str) -> [String; 2] {
    let ip = cidr::host(ip);
    [("-d", "ORIGINAL"), ("-s", "REPLY")].map(|(end, direction)| {
        let comment = commented(comment);
        format!("{PODS} {end} {ip} {comment} -m conntrack --ctstate DNAT --ctdir {direction} -j ACCEPT")
    })
}

/// A table as iptables-save prints it.
pub(super) struct Saved<'a>(pub(super) Vec<&'a str>);

impl<'a> Saved<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Saved(text.lines().map(str::trim_end).collect())
    }

    pub(super) fn has_chain(&self, name: &str) -> bool {
        self.0.iter().any(|line| line.strip_prefix(':').and_then(|rest| rest.split(' ').next()) == Some(name))
    }

    pub(super) fn has(&self, rule: &str) -> bool {
        self.rules().any(|saved| saved == rule)
    }

    pub(super) fn rules(&self) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter_map(|line| line.strip_prefix("-A "))
    }
}

/// A rule without its comments, which may look like anything.
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

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) shared: Vec<String>,
    pub(super) policy: Vec<String>,
    /// Rules of the bridge, taken out and put back: that fails if a concurrent DEL has removed them.
    pub(super) kept: Vec<String>,
    pub(super) rules: Vec<String>,
    pub(super) incomplete: Option<String>,
}

impl Plan {
    pub(super) fn lacks(&mut self, line: &str) {
        self.incomplete.get_or_insert_with(|| line.to_owned());
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.shared.iter().chain(&self.kept).chain(&self.policy).chain(&self.rules).cloned().collect()
    }
}

pub(super) fn commented(comment: &str) -> String {
    format!("-m comment --comment \"{comment}\"")
}

pub(super) fn has_pods(nft: &mut Nft) -> Result<bool, Error> {
    for family in xtables::FAMILIES {
        let rules = nft.rules(filter(family), Some(PODS))?;
        let legacy = xtables::legacy_rules_of(family, "filter")?.unwrap_or_default();
        let of_pod = |rule: &String| xtables::in_chain(rule, PODS) && rule.ends_with(" -j ACCEPT");
        if rules.iter().any(|rule| rule.target().is_none()) || legacy.iter().any(of_pod) {
            return Ok(true);
        }
    }
    Ok(false)
}
