//! Measures a GC of a hundred dead attachments among two hundred, and the same work as a hundred DELs.

use serde_json::{Value, json};

use crate::args::Args;
use crate::host::{Host, Pod};
use crate::report::{Report, Row};
use crate::sandbox::Sandbox;
use crate::{Result, SCENARIOS, announce, process, progress};

/// The number of living pods, and of dead pods.
const PODS: usize = 100;
const ROUNDS: usize = 6;

pub(crate) const GC: &str = "GC of 100 dead of 200";

pub(crate) fn measure(args: &Args, sandbox: &Sandbox, report: &mut Report) -> Result<()> {
    for scenario in SCENARIOS.iter().filter(|scenario| !scenario.dual_stack) {
        for contender in args.plugins() {
            announce(&format!("{}: GC, {}", contender.name, scenario.name));
            let mut host = Host::named(sandbox, contender, scenario, "gc")?;
            let living = add(&mut host)?;
            let name = |what: &str| format!("{what}, {}", scenario.name);
            let mut gcs = Row::new("gc", name(GC), &contender.name);
            let mut dels = Row::new("gc", name("100 DELs, one after the other"), &contender.name);
            for round in 0..ROUNDS {
                progress(&format!("{}: GC, round {} of {ROUNDS}", contender.name, round + 1));
                let mut dead = add(&mut host)?;
                let time = collect(&host, &living)?;
                let collected = host.leases()? == PODS;
                if collected {
                    gcs.samples.push(time);
                }
                // One run is enough for so many calls.
                if round == 0 || !collected {
                    if collected {
                        dead = add(&mut host)?;
                    }
                    dels.samples.push(delete(&host, &dead)?);
                }
                // The GC of some releases removes nothing of this.
                if !collected {
                    break;
                }
            }
            report.rows.extend([gcs, dels].into_iter().filter(|row| !row.samples.is_empty()));
        }
        sandbox.settle()?;
    }
    Ok(())
}

/// Adds [`PODS`] more pods.
fn add(host: &mut Host<'_>) -> Result<Vec<Pod>> {
    let mut pods = Vec::with_capacity(PODS);
    for _ in 0..PODS {
        let pod = host.pod()?;
        host.add(&pod)?;
        pods.push(pod);
    }
    Ok(pods)
}

/// Calls DEL for each pod, and returns the milliseconds.
fn delete(host: &Host<'_>, pods: &[Pod]) -> Result<f64> {
    let mut all = 0.0;
    for pod in pods {
        all += host.del(pod, Value::Null)?.wall.as_secs_f64() * 1e3;
    }
    Ok(all)
}

/// Calls GC, and returns the milliseconds.
fn collect(host: &Host<'_>, living: &[Pod]) -> Result<f64> {
    let Some(pod) = living.first() else { return Err("nobody lives".into()) };
    let (mut command, config) = host.command("GC", pod, None);
    for variable in ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"] {
        command.env_remove(variable);
    }
    let mut config: Value = serde_json::from_slice(&config)?;
    let listed = living.iter().map(|pod| json!({"containerID": pod.container_id, "ifname": "eth0"}));
    let listed: Vec<Value> = listed.collect();
    if let Some(config) = config.as_object_mut() {
        config.insert("cniVersion".into(), "1.1.0".into());
        config.insert("cni.dev/valid-attachments".into(), listed.into());
    }
    host.namespace().enter()?;
    let (_, run) = process::timed(command, config.to_string().as_bytes())?;
    Ok(run.wall.as_secs_f64() * 1e3)
}
