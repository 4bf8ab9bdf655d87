//! The readers of what iptables-save prints, for fuzzers.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cnimble_cni::{Attachment, Owner};

use super::go_chains::{DNAT, MASQUERADE, OLD_SNAT};
use super::masquerade::{self, iptables as masquerading};
use super::xtables::{self, in_chain, jumps_to};
use super::{forward, survey};

const NETWORK: &str = "net";

/// Takes any bytes for a table, of whatever variant.
pub fn iptables(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let attachment = Attachment { container_id: "c1".to_owned(), ifname: "eth0".to_owned() };
    let owner = Owner { network: NETWORK.to_owned(), attachment: attachment.clone() };
    let pod = IpAddr::from([10, 0, 0, 2]);
    forward::iptables::fuzz(&text);
    masquerading::fuzz(&text, &owner, pod.into());

    let rules = xtables::rules_in(&text);
    let _ = xtables::drops(&text, "FORWARD");
    let _ = rules.iter().filter(|rule| masquerade::reference::legacy_mentions(rule, pod)).count();
    let valid = [attachment];
    let mut found = survey::fuzz(&rules);
    for chains in [MASQUERADE, DNAT] {
        let stale = chains.stale_legacy(&rules, NETWORK, &valid);
        found.extend(stale.into_iter().map(|chain| (chains.parent, chain)));
    }
    for (parent, chain) in found {
        removal(&rules, parent, &chain);
    }
}

fn removal(rules: &[String], parent: &str, chain: &str) {
    assert!([MASQUERADE, DNAT, OLD_SNAT].iter().any(|chains| chains.has(chain)), "{chain}");
    for line in xtables::removal(rules, parent, &BTreeSet::from([chain.to_owned()])) {
        let whole = [format!("-F {chain}"), format!("-X {chain}")].contains(&line);
        assert!(whole || line.starts_with("-D ") && in_chain(&line, parent), "{line}");
        assert!(whole || jumps_to(&line, parent, chain), "{line}");
    }
}
