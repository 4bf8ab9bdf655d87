//! Adds and deletes a pod on a node, with the time of each step.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use serde_json::{Value, json};

use cnimble_tests::{Attachment, Host, Network, Outcome, Pod, configs, leases};

/// The steps, in the order of [`Node::life`]'s times: each plugin's ADD and DEL.
pub(crate) const STEPS: [&str; 10] = [
    "ADD bridge",
    "ADD portmap",
    "ADD firewall",
    "DEL firewall",
    "DEL portmap",
    "DEL bridge",
    "ADD ptp",
    "DEL ptp",
    "ADD floor",
    "DEL floor",
];

/// A host with a network of each kind.
pub(crate) struct Node<'h> {
    host: &'h Host,
    /// The chain of bridge, portmap and firewall.
    chain: [Network<'h>; 3],
    ptp: Network<'h>,
    floor: Option<Floor>,
    /// A pod that stays, to keep tables, bridge and sets.
    _first: Pod,
}

/// The C program that does the minimum, and the index of its bridge.
struct Floor {
    program: PathBuf,
    bridge: String,
}

/// The time of a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Time {
    pub(crate) clock: Duration,
    /// The processor time of the process and the children that it waited for.
    pub(crate) processor: Duration,
}

/// The processor time of all children that this process has waited for.
fn processor() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    let time =
        |of: TimeVal| Duration::from_micros(u64::try_from(of.tv_sec() * 1_000_000 + of.tv_usec()).unwrap());
    time(usage.user_time()) + time(usage.system_time())
}

fn timed(call: impl FnOnce() -> Outcome) -> (Value, Time) {
    let (before, begun) = (processor(), Instant::now());
    let outcome = call();
    let time = Time { clock: begun.elapsed(), processor: processor() - before };
    let stdout = outcome.success().stdout;
    (serde_json::from_slice(&stdout).unwrap_or(Value::Null), time)
}

fn floor_call(host: &Host, program: &PathBuf, words: &[&str]) -> Command {
    let mut command = host.command(program);
    command.args(words);
    command
}

impl<'h> Node<'h> {
    pub(crate) fn new(host: &'h Host, floor: Option<PathBuf>) -> Self {
        let mut bridge = configs::v4(host);
        bridge["ipMasq"] = true.into();
        let mut ptp = bridge.clone();
        ptp.as_object_mut().unwrap().retain(|key, _| key != "bridge" && key != "isGateway");
        ptp["type"] = "ptp".into();
        ptp["name"] = "netptp".into();
        ptp["ipam"]["ranges"] = json!([[{"subnet": "10.3.4.0/24"}]]);
        let chained = |more: Value| {
            let mut config = json!({"cniVersion": configs::newest(), "name": "net4"});
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            Network::new(host, config)
        };
        let ports = json!({"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]});
        let chain = [
            Network::new(host, bridge),
            chained(json!({"type": "portmap", "runtimeConfig": ports})),
            chained(json!({"type": "firewall"})),
        ];
        let floor = floor.map(|program| {
            let mut setup = floor_call(host, &program, &["setup", "floor0", "10.99.0.1/16"]);
            let bridge = Outcome::of(&mut setup).success().text().trim().to_owned();
            Floor { program, bridge }
        });
        let first = Pod::new();
        let att = Attachment::new("stays", &first);
        let result = chain[0].added(&att);
        chain[1]
            .with("/runtimeConfig/portMappings/0/hostPort", 9090.into())
            .call("ADD", &att, Some(&result))
            .run()
            .success();
        chain[2].call("ADD", &att, Some(&result)).run().success();
        Node { host, chain, ptp: Network::new(host, ptp), floor, _first: first }
    }

    /// Runs ADD and DEL by every plugin. The times are in the order of [`STEPS`].
    pub(crate) fn life(&mut self, number: usize) -> Vec<Time> {
        let mut times = Vec::new();
        let pod = Pod::new();
        let att = Attachment::new(&format!("life{number}"), &pod);
        let mut result = None;
        for net in &self.chain {
            let (made, time) = timed(|| net.call("ADD", &att, result.as_ref()).run());
            result = Some(made);
            times.push(time);
        }
        for net in self.chain.iter().rev() {
            times.push(timed(|| net.del(&att, result.as_ref())).1);
        }
        let pod = Pod::new();
        let att = Attachment::new(&format!("ptp{number}"), &pod);
        let (result, time) = timed(|| self.ptp.add(&att));
        times.push(time);
        times.push(timed(|| self.ptp.del(&att, Some(&result))).1);
        if let Some(Floor { program, bridge }) = &self.floor {
            let (pod, name) = (Pod::new(), format!("v{number}"));
            let add = ["add", pod.path(), bridge, &name, "10.99.0.7/16", "10.99.0.1"];
            times.push(timed(|| Outcome::of(&mut floor_call(self.host, program, &add))).1);
            times.push(timed(|| Outcome::of(&mut floor_call(self.host, program, &["del", &name]))).1);
        }
        times
    }

    /// Checks that only the pod that stays has left something.
    pub(crate) fn assert_empty(&self) {
        let leases = leases(&self.host.data_dir());
        let addresses = leases.iter().filter(|line| line.contains("/10.")).count();
        assert_eq!(addresses, 1, "{leases:#?}");
        let rules = self.host.nft("list table inet cnimble");
        assert!(rules.contains("stays") && !rules.contains("life") && !rules.contains("ptp"), "{rules}");
    }
}
