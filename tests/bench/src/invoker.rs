//! Measures the time that the runtime library adds to the plugins that it runs.
//!
//! Two hosts get the same pods in turns, one through the library and one by running only the plugin. The difference is
//! the library's own work: finding plugins, building configurations, validating results and writing the cache.

use serde_json::json;

use cnimble_runtime::{Attach, ConfDir, Invoker};

use crate::args::Args;
use crate::host::Host;
use crate::report::{Report, Row};
use crate::sandbox::Sandbox;
use crate::{Result, SCENARIOS, announce, progress};

/// The number of pods that are added and then deleted.
const PODS: usize = 300;

pub(crate) fn measure(args: &Args, sandbox: &Sandbox, report: &mut Report) -> Result<()> {
    // Our plugins are the last set of plugins.
    let (Some(contender), Some(scenario)) = (args.plugins().last(), SCENARIOS.first()) else {
        return Ok(());
    };
    announce(&format!("{PODS} pods through the runtime library"));
    let mut direct = Host::named(sandbox, contender, scenario, "direct")?;
    let mut through = Host::named(sandbox, contender, scenario, "through")?;

    let dir = sandbox.state_dir().join("net.d");
    std::fs::create_dir_all(&dir)?;
    let network = json!({"cniVersion": "1.0.0", "name": "bench", "plugins": [through.config()]});
    std::fs::write(dir.join("10-bench.conflist"), network.to_string())?;
    let network = ConfDir::new(&dir).load("bench")?;
    let invoker = Invoker::new([contender.dir.clone()]).with_cache_dir(sandbox.state_dir().join("cache"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;

    let mut rows = [("ADD", "plugin alone"), ("ADD", "library"), ("DEL", "plugin alone"), ("DEL", "library")]
        .map(|(verb, what)| Row::new("invoker", format!("{verb} of {PODS} pods"), what));
    let mut pods = Vec::new();
    for number in 0..PODS {
        progress(&format!("through the library: ADD {number} of {PODS}"));
        let (pod, other) = (direct.pod()?, through.pod()?);
        let attach = Attach::new(&other.container_id, &other.netns, "eth0");
        let (result, run) = direct.add(&pod)?;
        through.namespace().enter()?;
        let start = std::time::Instant::now();
        runtime.block_on(invoker.add(&network, &attach))?;
        let [alone, library, ..] = &mut rows;
        library.samples.push(start.elapsed().as_secs_f64() * 1e3);
        alone.samples.push(run.wall.as_secs_f64() * 1e3);
        pods.push((pod, result, attach));
    }
    for (number, (pod, result, attach)) in pods.into_iter().enumerate() {
        progress(&format!("through the library: DEL {number} of {PODS}"));
        let run = direct.del(&pod, result)?;
        through.namespace().enter()?;
        let start = std::time::Instant::now();
        runtime.block_on(invoker.del(&network, &attach))?;
        let [.., alone, library] = &mut rows;
        library.samples.push(start.elapsed().as_secs_f64() * 1e3);
        alone.samples.push(run.wall.as_secs_f64() * 1e3);
    }
    report.rows.extend(rows);
    Ok(())
}
