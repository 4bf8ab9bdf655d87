//! Measures a hundred concurrent ADDs and then a hundred concurrent DELs: the time until all are done, the median and
//! the 99th percentile of a call, the slowest call against the fastest, the memory of all, and the errors. The same
//! calls follow one after the other. Our plugins take part twice, the second time with DELs that wait for the kernel
//! themselves.

use std::time::Duration;

use crate::args::Args;
use crate::host::{Burst, Host};
use crate::report::{Report, Row};
use crate::sandbox::Sandbox;
use crate::stats::quantile;
use crate::{Contender, Result, SCENARIOS, Scenario, announce, process, progress};

/// The number of concurrent calls.
const CALLS: usize = 100;
/// Enough for quartiles. A round of the slowest contender takes seconds.
const ROUNDS: usize = 6;

/// Returns the name of our plugins with DELs that wait for the kernel themselves.
pub(crate) fn waiting(name: &str) -> String {
    format!("{name}, waiting itself")
}

pub(crate) fn del_name(network: &str) -> String {
    name("DEL", network)
}

fn name(verb: &str, network: &str) -> String {
    format!("{CALLS} {verb}s at once, {network}")
}

/// The rows of one verb.
struct Rows {
    all: Row,
    median: Row,
    last: Row,
    fairness: Row,
    memory: Row,
    in_turn: Row,
}

pub(crate) fn measure(args: &Args, sandbox: &Sandbox, report: &mut Report) -> Result<()> {
    let mut contenders: Vec<Contender> = args.plugins().cloned().collect();
    // Our plugins are the last, if there are others.
    if let [_, .., ours] = contenders.as_slice() {
        contenders.push(Contender { name: waiting(&ours.name), waits: true, ..ours.clone() });
    }
    for scenario in SCENARIOS.iter().filter(|scenario| !scenario.dual_stack) {
        announce(&format!("{CALLS} at once, {}", scenario.name));
        let host = |contender| -> Result<([Rows; 2], Host<'_>)> {
            let host = Host::named(sandbox, contender, scenario, "burst")?;
            Ok((["ADD", "DEL"].map(|verb| Rows::new(verb, scenario, host.name())), host))
        };
        let mut hosts = contenders.iter().map(host).collect::<Result<Vec<_>>>()?;
        for round in 0..ROUNDS {
            progress(&format!("{CALLS} at once, {}: round {} of {ROUNDS}", scenario.name, round + 1));
            let mut turns: Vec<_> = hosts.iter_mut().collect();
            if round % 2 == 1 {
                turns.reverse();
            }
            for (rows, host) in turns {
                // The first pod creates the bridge, which the others find, as on a real node.
                if round == 0 {
                    host.populate()?;
                }
                at_once(host, rows)?;
            }
        }
        for (rows, host) in &mut hosts {
            progress(&format!("{}: memory, and {CALLS} in turn, {}", host.name(), scenario.name));
            weigh(host, rows)?;
            in_turn(host, rows)?;
        }
        report.rows.extend(hosts.into_iter().flat_map(|(rows, _)| rows).flat_map(Rows::into_rows));
    }
    Ok(())
}

fn at_once(host: &mut Host<'_>, [adds, dels]: &mut [Rows; 2]) -> Result<()> {
    let pods = host.new_pods(CALLS)?;
    let (add, results) = host.add_at_once(&pods)?;
    adds.push(&add);
    dels.push(&host.del_at_once(&pods, results)?);
    Ok(())
}

/// Measures the memory of one more round, because that takes time from the calls.
fn weigh(host: &mut Host<'_>, [adds, dels]: &mut [Rows; 2]) -> Result<()> {
    let pods = host.new_pods(CALLS)?;
    let (add, kib) = process::weighed(|| host.add_at_once(&pods))?;
    adds.memory.samples.push(kib as f64 / 1024.0);
    let (_, results) = add?;
    let (del, kib) = process::weighed(|| host.del_at_once(&pods, results))?;
    dels.memory.samples.push(kib as f64 / 1024.0);
    del?;
    Ok(())
}

/// Makes the same calls one after the other.
fn in_turn(host: &mut Host<'_>, [adds, dels]: &mut [Rows; 2]) -> Result<()> {
    let pods = host.new_pods(CALLS)?;
    let added = pods.iter().map(|pod| host.add(pod)).collect::<Result<Vec<_>>>()?;
    let add: Duration = added.iter().map(|(_, run)| run.wall).sum();
    let mut del = Duration::ZERO;
    for (pod, (result, _)) in pods.iter().zip(added) {
        del += host.del(pod, result)?.wall;
    }
    adds.in_turn.samples.push(ms(add));
    dels.in_turn.samples.push(ms(del));
    Ok(())
}

impl Rows {
    fn new(verb: &str, scenario: &Scenario, contender: &str) -> Self {
        let name = name(verb, scenario.name);
        let row = |what: String, unit| Row { unit, ..Row::new("concurrency", what, contender) };
        Rows {
            median: row(format!("{name}: median of a call"), "ms"),
            last: row(format!("{name}: p99 of a call"), "ms"),
            fairness: row(format!("{name}: slowest to fastest"), "×"),
            memory: row(format!("{name}: memory of all"), "MiB"),
            in_turn: row(format!("{CALLS} {verb}s in turn, {}", scenario.name), "ms"),
            all: row(name, "ms"),
        }
    }

    fn push(&mut self, burst: &Burst) {
        let calls: Vec<f64> = burst.calls.iter().copied().map(ms).collect();
        self.all.samples.push(ms(burst.wall));
        self.median.samples.push(quantile(&calls, 0.5));
        self.last.samples.push(quantile(&calls, 0.99));
        self.fairness.samples.push(quantile(&calls, 1.0) / quantile(&calls, 0.0));
        self.all.errors += burst.errors.len();
        self.all.duplicates += burst.duplicates;
        if let Some(error) = burst.errors.first() {
            eprintln!("{}: {error}", self.all.contender);
        }
    }

    fn into_rows(self) -> [Row; 6] {
        [self.all, self.median, self.last, self.fairness, self.memory, self.in_turn]
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
