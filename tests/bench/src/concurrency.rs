//! A hundred ADDs at once: how fast, and whether anything goes wrong.

use crate::args::Args;
use crate::host::{Host, Sandbox};
use crate::report::{Report, Row};
use crate::{Result, SCENARIOS, announce, progress};

/// Calls at once.
const CALLS: usize = 100;
/// Enough for quartiles; a round of the slowest takes seconds.
const ROUNDS: usize = 6;

pub(crate) fn measure(args: &Args, sandbox: &Sandbox, report: &mut Report) -> Result<()> {
    for scenario in SCENARIOS.iter().filter(|scenario| !scenario.dual_stack) {
        announce(&format!("{CALLS} at once, {}", scenario.name));
        let mut hosts = args
            .plugins()
            .map(|contender| Host::named(sandbox, contender, scenario, "burst"))
            .collect::<Result<Vec<_>>>()?;
        let mut rows: Vec<[Row; 2]> = hosts
            .iter()
            .map(|host| {
                ["ADD", "DEL"].map(|verb| {
                    Row::new(
                        "concurrency",
                        format!("{CALLS} {verb}s at once, {}", scenario.name),
                        host.name(),
                    )
                })
            })
            .collect();
        for round in 0..ROUNDS {
            progress(&format!("{CALLS} at once, {}: round {} of {ROUNDS}", scenario.name, round + 1));
            let mut turns: Vec<_> = hosts.iter_mut().zip(&mut rows).collect();
            if round % 2 == 1 {
                turns.reverse();
            }
            for (host, rows) in turns {
                // The first makes the bridge, which the others find: so does a node.
                if round == 0 {
                    host.populate()?;
                }
                let (add, del) = host.burst(CALLS)?;
                for (row, burst) in rows.iter_mut().zip([add, del]) {
                    row.samples.push(burst.wall.as_secs_f64() * 1e3);
                    row.errors += burst.errors.len();
                    row.duplicates += burst.duplicates;
                    if let Some(error) = burst.errors.first() {
                        eprintln!("{}: {error}", row.contender);
                    }
                }
            }
        }
        report.rows.extend(rows.into_iter().flatten());
    }
    Ok(())
}
