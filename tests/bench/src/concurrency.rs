//! Measures a hundred concurrent ADDs and then a hundred concurrent DELs, with their errors. Our plugins take part
//! twice, the second time with DELs that wait for the kernel themselves.

use crate::args::Args;
use crate::host::Host;
use crate::report::{Report, Row};
use crate::sandbox::Sandbox;
use crate::{Contender, Result, SCENARIOS, announce, progress};

/// The number of concurrent calls.
const CALLS: usize = 100;
/// Enough for quartiles. A round of the slowest contender takes seconds.
const ROUNDS: usize = 6;

/// Returns the name of our plugins with DELs that wait for the kernel themselves.
pub(crate) fn waiting(name: &str) -> String {
    format!("{name}, waiting itself")
}

pub(crate) fn del_name(network: &str) -> String {
    format!("{CALLS} DELs at once, {network}")
}

pub(crate) fn measure(args: &Args, sandbox: &Sandbox, report: &mut Report) -> Result<()> {
    let mut contenders: Vec<Contender> = args.plugins().cloned().collect();
    // Our plugins are the last, if there are others.
    if let [_, .., ours] = contenders.as_slice() {
        contenders.push(Contender { name: waiting(&ours.name), waits: true, ..ours.clone() });
    }
    for scenario in SCENARIOS.iter().filter(|scenario| !scenario.dual_stack) {
        announce(&format!("{CALLS} at once, {}", scenario.name));
        let mut hosts = contenders
            .iter()
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
                // The first pod creates the bridge, which the others find, as on a real node.
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
