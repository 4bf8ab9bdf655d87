//! The required and the forbidden facts of an attachment after its ADD.

use std::net::IpAddr;

use crate::look::{Facts, has_word};
use crate::node::{Att, Key};
use crate::plan::{Backend, Net};
use crate::site::{id, ifname};

/// Returns the missing and the superfluous facts.
pub(crate) fn lacks(net: &Net, key: Key, att: &Att, real: &Facts, ours: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    for ip in &att.ips {
        let content = format!("\"{} {}\"", id(key.1), ifname(key.0));
        let leased = real.iter().any(|fact| {
            fact.starts_with("lease ") && fact.contains(&format!("/{ip} ")) && fact.ends_with(&content)
        });
        if !leased {
            wrong.push(format!("has no lease for {ip}"));
        }
        let has = |start: &str| {
            real.iter().any(|fact| fact.starts_with(start) && fact.contains(&format!("\"{ip}/")))
        };
        if !has("pod") {
            wrong.push(format!("has no address {ip}"));
        }
    }
    let count = |start: &str| real.iter().filter(|fact| fact.starts_with(start)).count();
    let leases = count("lease ");
    if leases < att.ips.len() || (leases > att.ips.len() && !att.again) {
        wrong.push(format!("has {leases} leases"));
    }
    let up = real.iter().filter(|fact| fact.contains(&format!(" {} ", ifname(key.0))));
    if !up.into_iter().any(|fact| fact.starts_with("pod") && fact.contains(" up=true ")) {
        wrong.push("has no interface that is up".to_owned());
    }
    let master = if net.ptp { String::new() } else { format!("br{}", key.0) };
    let end = real.iter().find(|fact| fact.starts_with(&format!("link {} ", att.veth)));
    match end {
        None => wrong.push(format!("has no host's end {}", att.veth)),
        Some(end) if !end.contains(&format!("master={master} ")) => wrong.push(format!("is nowhere: {end}")),
        Some(end) if ours && !has_word(end, &id(key.1)) => wrong.push(format!("has no alias: {end}")),
        Some(_) => {}
    }
    if ours {
        for (start, wanted) in rules(net, att) {
            let found = real.iter().filter(|fact| fact.starts_with(start)).count();
            let right = match wanted {
                // The earlier attachment may have left more, and its address may belong to another pod.
                Wanted::Exactly(wanted) if att.inherits => found >= wanted,
                Wanted::Exactly(wanted) => found == wanted,
                Wanted::AtLeast(wanted) => found >= wanted,
            };
            if !right {
                wrong.push(format!("has {found} of \"{start}\" ({wanted:?} expected): {real:#?}"));
            }
        }
    }
    wrong
}

#[derive(Debug, Clone, Copy)]
enum Wanted {
    Exactly(usize),
    AtLeast(usize),
}

/// Returns the expected number of facts with each beginning.
fn rules(net: &Net, att: &Att) -> Vec<(&'static str, Wanted)> {
    use Wanted::{AtLeast, Exactly};
    let all = att.ips.len();
    let four = att.ips.iter().filter(|ip| IpAddr::is_ipv4(ip)).count();
    let if_so = |so: bool, count: usize| Exactly(if so { count } else { 0 });
    let masq = att.edition.masq(net);
    let ports = att.port.and(net.ports);
    let firewall = net.firewall.map(|(backend, _)| backend);
    let nft = Some(Backend::Nftables);
    let tables = usize::from(masq == Some(Backend::Iptables)) * 3
        + usize::from(ports == Some(Backend::Iptables))
        + usize::from(firewall == Some(Backend::Iptables)) * 2;
    vec![
        ("nft inet cnimble masq-", if_so(masq == nft, all)),
        ("nft bridge cnimble ports:", if_so(net.spoof, 1)),
        ("nft bridge cnimble sources:", if_so(net.spoof, 1)),
        ("nft bridge cnimble isolated-ports:", if_so(net.isolated && all > 0, 1)),
        ("nft inet cnimble portmap4:", if_so(ports == nft, four)),
        ("nft inet cnimble portmap6:", if_so(ports == nft, all - four)),
        ("nft inet cnimble portmap-hairpin-", if_so(ports == nft, all)),
        ("nft inet cnimble forward4:", if_so(firewall == nft, four)),
        ("nft inet cnimble forward6:", if_so(firewall == nft, all - four)),
        ("ip", if tables > 0 { AtLeast(tables * all) } else { Exactly(0) }),
        ("link bwp", if_so(net.shaped, 1)),
        ("tuning ", if_so(net.tuned, 1)),
        ("pod", AtLeast(1 + usize::from(net.sbr) * all)),
    ]
}
