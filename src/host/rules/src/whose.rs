//! Tells which program made a packet rule, so that people know where to change it.

use std::collections::{HashMap, HashSet};

use cnimble_cni::Error;
use cnimble_netlink::nft::{Family, Nft, Rule, Table, Verdict};

use super::masquerade::nftables::GUARD;
use super::{command, xtables};

/// The table of cnimble's plugins.
const OWN: Table<'static> = Table::new(Family::Inet, "cnimble");

/// The programs that make tables of nf_tables, by the beginnings of the tables' names.
const MAKERS: [(&str, &str); 12] = [
    // The first that fits counts.
    ("cnimble-node", "cnimble node"),
    ("cnimble", "cnimble"),
    ("firewalld", "firewalld"),
    ("kube-proxy", "kube-proxy"),
    ("docker-bridges", "Docker"),
    ("netavark", "podman"),
    ("cni_hostport", "portmap of the Go plugins"),
    ("cni_plugins_masquerade", "bridge or ptp of the Go plugins"),
    ("nm-", "NetworkManager"),
    ("libvirt_network", "libvirt"),
    ("lxc", "LXC"),
    ("fw4", "OpenWrt's firewall"),
];

/// The programs that make chains of iptables, by the beginnings of the chains' names.
const CHAINS: [(&str, &str); 14] = [
    ("CNI-", "a CNI plugin"),
    ("DOCKER", "Docker"),
    ("KUBE-", "kube-proxy or the kubelet"),
    ("ufw", "ufw"),
    ("FLANNEL", "flannel"),
    ("cali-", "Calico"),
    ("CILIUM", "Cilium"),
    ("NETAVARK", "podman"),
    ("LIBVIRT", "libvirt"),
    ("WEAVE", "Weave Net"),
    ("ANTREA", "Antrea"),
    ("IN_", "firewalld"),
    ("FWD", "firewalld"),
    ("ts-", "Tailscale"),
];

/// iptables-nft keeps its rules in tables of these names.
const IPTABLES: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];

/// Returns who made the rules of this chain, for people. Only names tell: anybody can make a table or a chain of such a
/// name, so the text says that it judges by the name.
pub fn maker(family: Family, table: &str, chain: &str) -> String {
    if let Some((_, maker)) = MAKERS.iter().find(|(name, _)| table.starts_with(name)) {
        return format!("{maker}, judging by the table's name");
    }
    if xtables::FAMILIES.contains(&family) && IPTABLES.contains(&table) {
        return match CHAINS.iter().find(|(name, _)| chain.starts_with(name)) {
            Some((_, maker)) => format!("{maker}, judging by the chain's name"),
            None => "an administrator or a program, by iptables".to_owned(),
        };
    }
    "an administrator or another program".to_owned()
}

/// Returns a rule as the `nft` command prints it. `None` without that command, or if the rule has gone.
pub fn text_of(family: Family, table: &str, chain: &str, handle: u64) -> Option<String> {
    command::find_program("nft")?;
    let listed = command::run("nft", &["-a", "list", "chain", &family.to_string(), table, chain], "").ok()?;
    let ending = format!("# handle {handle}");
    let line = listed.lines().find_map(|line| line.trim().strip_suffix(&ending))?;
    Some(line.trim().to_owned())
}

/// The chains of one table, as far as they decide whether a packet can be dropped. The policies of base chains are not
/// among these.
#[derive(Debug, Default)]
pub struct TableRules {
    is_own: bool,
    chains: HashMap<String, ChainRules>,
}

#[derive(Debug, Default)]
struct ChainRules {
    /// Whether a rule of the chain itself could drop a packet.
    could_drop: bool,
    /// The chains that its rules lead to.
    targets: Vec<String>,
}

impl TableRules {
    /// Reads all rules of the table, once for all of its base chains.
    pub fn read(nft: &mut Nft, table: Table<'_>) -> Result<Self, Error> {
        let mut found = TableRules { is_own: table == OWN, chains: HashMap::new() };
        for rule in nft.rules(table, None)? {
            let chain = found.chains.entry(rule.chain.clone()).or_default();
            chain.could_drop |= rule_could_drop(&rule);
            chain.targets.extend(rule.target());
        }
        Ok(found)
    }

    /// Returns whether a rule of a base chain, or of a chain that it leads to, could drop a packet.
    pub fn could_drop(&self, base: &str) -> bool {
        // This chain drops only invalid packets. One that begins a connection is valid, and so is its answer.
        if self.is_own && base == GUARD {
            return false;
        }
        let (mut open, mut seen) = (vec![base], HashSet::new());
        while let Some(name) = open.pop() {
            let Some(chain) = self.chains.get(name).filter(|_| seen.insert(name)) else { continue };
            if chain.could_drop {
                return true;
            }
            open.extend(chain.targets.iter().map(String::as_str));
        }
        false
    }
}

/// Returns whether a rule could drop a packet. A map can lead to any verdict, and a queue to a program that drops.
fn rule_could_drop(rule: &Rule) -> bool {
    let verdict = rule.verdict();
    let by_map = verdict.is_none() && rule.has("lookup") && !is_translation(rule);
    verdict == Some(Verdict::Drop) || by_map || rule.has("queue")
}

/// Returns whether a rule translates addresses. What it looks up is an address and no verdict.
fn is_translation(rule: &Rule) -> bool {
    ["masq", "nat", "redir"].iter().any(|expression| rule.has(expression))
}

/// Returns the rules and policies of legacy iptables that can drop packets, as commands `iptables -t TABLE -A …` or `-P
/// …`. The kernel's trace of nf_tables does not show them.
pub fn legacy_drops(family: Family) -> Result<Vec<String>, Error> {
    let command = xtables::legacy_command(family, "save").replace("-save", "");
    let mut found = Vec::new();
    for table in IPTABLES {
        let Some(saved) = xtables::legacy_table(family, table)? else { continue };
        let lines = saved.lines().filter_map(legacy_drop);
        found.extend(lines.map(|line| format!("{command} -t {table} {line}")));
    }
    Ok(found)
}

/// Returns what follows the table in the command for a line of iptables-save(8), or `None` if the line can't drop
/// packets. Policies look like `:FORWARD DROP [0:0]`.
fn legacy_drop(line: &str) -> Option<String> {
    if let Some(chain) = line.strip_prefix(':') {
        let (chain, rest) = chain.split_once(' ')?;
        return rest.starts_with("DROP ").then(|| format!("-P {chain} DROP"));
    }
    let drops = [" -j DROP", " -j REJECT", " -j NFQUEUE"].iter().any(|target| line.contains(target));
    drops.then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makers_are_told_apart() {
        assert_eq!(maker(Family::Inet, "cnimble", "forward"), "cnimble, judging by the table's name");
        assert_eq!(
            maker(Family::Inet, "cnimble-node", "masquerade"),
            "cnimble node, judging by the table's name"
        );
        let firewalld = maker(Family::Inet, "firewalld", "filter_FORWARD");
        assert_eq!(firewalld, "firewalld, judging by the table's name");
        assert_eq!(maker(Family::Ipv4, "filter", "DOCKER-USER"), "Docker, judging by the chain's name");
        assert_eq!(maker(Family::Ipv4, "filter", "FORWARD"), "an administrator or a program, by iptables");
        assert_eq!(maker(Family::Inet, "own", "DOCKER"), "an administrator or another program");
    }

    #[test]
    fn dropping_lines_of_legacy_tables_are_found() {
        assert_eq!(legacy_drop(":FORWARD DROP [0:0]").as_deref(), Some("-P FORWARD DROP"));
        assert_eq!(legacy_drop(":FORWARD ACCEPT [0:0]"), None);
        let rule = "-A FORWARD -i br0 -j REJECT --reject-with icmp-port-unreachable";
        assert_eq!(legacy_drop(rule).as_deref(), Some(rule));
        assert_eq!(legacy_drop("-A FORWARD -j DOCKER"), None);
    }
}
