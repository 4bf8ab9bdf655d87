//! Measures a chain of ten plugins.

use serde_json::{Value, json};

use crate::args::Args;
use crate::chain::Node;
use crate::report::{Report, Row};
use crate::sandbox::Sandbox;
use crate::{Result, announce, progress};

/// Settings of the pod's interface, each for one plugin tuning.
const SETTINGS: [&str; 5] = ["arp_filter", "arp_notify", "log_martians", "proxy_arp", "rp_filter"];

pub(crate) fn measure(args: &Args, sandbox: &Sandbox, report: &mut Report) -> Result<()> {
    announce("chain of ten plugins");
    let rounds = (args.samples / 2).max(5);
    let mut nodes = Vec::new();
    for contender in args.plugins() {
        let mut node = Node::new(sandbox, contender, "ten", &chained())?;
        match node.populate() {
            Ok(_) => nodes.push((node, ["ADD", "DEL"].map(|verb| row(verb, &contender.name)))),
            Err(err) => announce(&format!("{} is left out: {err}", contender.name)),
        }
    }
    for round in 0..=rounds {
        progress(&format!("ten plugins: round {round} of {rounds}"));
        let mut turns: Vec<_> = nodes.iter_mut().collect();
        if round % 2 == 1 {
            turns.reverse();
        }
        for (node, [adds, dels]) in turns {
            let (add, del) = node.life()?;
            // The first run has cold kernel caches.
            if round > 0 {
                adds.push(&add);
                dels.push(&del);
            }
        }
    }
    report.rows.extend(nodes.into_iter().flat_map(|(_, rows)| rows));
    Ok(())
}

fn row(verb: &str, contender: &str) -> Row {
    Row::new("chain", format!("{verb} of a chain of ten plugins"), contender)
}

/// Returns the plugins after bridge.
fn chained() -> Vec<(&'static str, Value)> {
    let rates = json!({
        "ingressRate": 1_000_000_000, "ingressBurst": 10_000_000,
        "egressRate": 1_000_000_000, "egressBurst": 10_000_000,
    });
    let mut all =
        vec![("portmap", Value::Null), ("firewall", Value::Null), ("bandwidth", rates), ("sbr", Value::Null)];
    all.extend(
        SETTINGS.map(|name| ("tuning", json!({"sysctl": {format!("net.ipv4.conf.IFNAME.{name}"): "1"}}))),
    );
    all
}
