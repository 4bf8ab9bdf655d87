//! Measures portmap alone: one more port on a node that maps none, one or thousands.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use crate::args::Args;
use crate::chain::{Node, Pod};
use crate::process::Run;
use crate::report::{Report, Row};
use crate::sandbox::Sandbox;
use crate::{Result, announce, progress};

/// The number of ports that are already mapped.
pub(crate) const SIZES: [usize; 5] = [0, 1, 100, 1000, 10_000];
/// The most ports of the other contenders: each has some rules of its own, which take longer and longer.
const MOST_OF_OTHERS: usize = 1000;
/// The number of ports of each pod with ports.
const PORTS_OF_A_POD: usize = 100;
/// The port that is added and removed.
const PORT: u16 = 30_000;

/// A node with mapped ports, and the pod that gets one more.
struct Mapped<'a> {
    node: Node<'a>,
    pod: Pod,
}

pub(crate) fn measure(args: &Args, sandbox: &Sandbox, report: &mut Report) -> Result<()> {
    let mut nodes: Vec<(Mapped<'_>, [Row; 2])> = Vec::new();
    let ours = args.plugins().last().map(|ours| &ours.name);
    for contender in args.plugins() {
        for size in SIZES {
            if size > MOST_OF_OTHERS && Some(&contender.name) != ours {
                continue;
            }
            announce(&format!("{}: {size} mapped ports", contender.name));
            let node = Node::new(sandbox, contender, &format!("ports{size}"), &[("portmap", Value::Null)])?;
            let rows =
                [("portmap ADD", add_name(size)), ("portmap DEL", format!("portmap DEL among {size} ports"))];
            let row = |(series, what)| Row::new("ports", what, &contender.name).at(series, "ports", size);
            nodes.push((Mapped::fill(node, size)?, rows.map(row)));
        }
    }
    for round in 0..=args.samples {
        progress(&format!("ports: round {round} of {}", args.samples));
        let mut turns: Vec<_> = nodes.iter_mut().collect();
        if round % 2 == 1 {
            turns.reverse();
        }
        for (mapped, [adds, dels]) in turns {
            let times = ["ADD", "DEL"].map(|verb| mapped.run(verb));
            let [add, del] = times;
            let (add, del) = (add?, del?);
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

impl<'a> Mapped<'a> {
    /// Only the pod of the measured port is real, because portmap does not use the others.
    fn fill(mut node: Node<'a>, size: usize) -> Result<Self> {
        let mut pod = node.pod()?;
        pod.result = node.call(0, "ADD", &pod, &[], None)?.0;
        let ports: Vec<u16> = (0..size).map(|port| 10_000 + u16::try_from(port).unwrap_or(0)).collect();
        for (number, ports) in ports.chunks(PORTS_OF_A_POD).enumerate() {
            let other = node.pod()?;
            let result = at(Ipv4Addr::from(0x0a63_0100 + u32::try_from(number)?));
            node.call(1, "ADD", &other, ports, Some(&result))?;
        }
        Ok(Mapped { node, pod })
    }

    fn run(&self, verb: &str) -> Result<Run> {
        Ok(self.node.call(1, verb, &self.pod, &[PORT], Some(&self.pod.result))?.1)
    }
}

/// Returns the result of a pod with this address.
fn at(address: Ipv4Addr) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "eth0", "sandbox": "/somewhere"}],
        "ips": [{"address": format!("{address}/16"), "interface": 0}],
    })
}

pub(crate) fn add_name(size: usize) -> String {
    format!("portmap ADD among {size} ports")
}
