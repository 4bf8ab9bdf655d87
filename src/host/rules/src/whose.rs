//! Tells which program made a packet rule, so that people know where to change it.

use cnimble_netlink::nft::Family;

use super::{command, xtables};

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

/// Returns who made the rules of this chain, for people. Only names tell: anybody can make a table or a chain of such a
/// name, so the text says that it judges by the name.
pub fn maker(family: Family, table: &str, chain: &str) -> String {
    if let Some((_, maker)) = MAKERS.iter().find(|(name, _)| table.starts_with(name)) {
        return format!("{maker}, judging by the table's name");
    }
    if xtables::FAMILIES.contains(&family) && xtables::TABLES.contains(&table) {
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
}
