//! Measures ADD and DEL of bridge and host-local in comparison with other plugins.
//!
//! For each kind of network every contender gets a separate host: a network namespace with a bridge and leases. Pods
//! are added until the wanted number is reached. Then one more pod is added and deleted again and again. The contenders
//! take turns and swap the order, so that other load on the machine affects all of them.
//!
//! With many pods, the contenders run one after the other. The kernel slows down with all of its namespaces, and a node
//! has the pods of one set of plugins.
//!
//! The measured time is that of one process, from just before it is spawned until it has been waited for. This is the
//! time that a runtime waits. The pods' namespaces are created outside of the measurement.

mod api;
mod args;
mod chain;
mod cluster;
mod concurrency;
mod cri;
mod gc;
mod goals;
mod growth;
mod host;
mod invoker;
mod kinds;
mod leases;
mod load;
mod netavark;
mod plot;
mod podman;
mod ports;
mod process;
mod report;
mod sandbox;
mod series;
mod services;
mod stats;
mod ten;
mod traffic;
mod way;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use args::Args;
use host::Host;
use report::{Cell, Report};
use sandbox::Sandbox;

/// These errors are only printed, never handled.
type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// A set of plugins, or the floor, which is a program that does the minimum (floor.c).
#[derive(Debug, Clone)]
struct Contender {
    name: String,
    /// The directory of the plugins, or the floor's program.
    dir: std::path::PathBuf,
    floor: bool,
    /// Whether its DEL waits for the kernel itself (`CNIMBLE_DEL_WAIT=1`).
    waits: bool,
    /// The backend of packet rules that its chain names. Without a name the plugins choose.
    backend: Option<&'static str>,
}

/// A kind of network.
#[derive(Debug, Clone, Copy)]
struct Scenario {
    name: &'static str,
    masquerade: bool,
    dual_stack: bool,
}

const SCENARIOS: [Scenario; 4] = [
    Scenario { name: "plain", masquerade: false, dual_stack: false },
    Scenario { name: "ipMasq", masquerade: true, dual_stack: false },
    Scenario { name: "dual", masquerade: false, dual_stack: true },
    Scenario { name: "dual+ipMasq", masquerade: true, dual_stack: true },
];

/// Measures a section.
type Measure = fn(&Args, &Sandbox, &mut Report) -> Result<()>;

/// The sections, in their order.
const SECTIONS: [(&str, Measure); 13] = [
    ("pods", pods),
    ("concurrency", concurrency::measure),
    ("gc", gc::measure),
    ("leases", leases::measure),
    ("invoker", invoker::measure),
    ("chain", chain::measure),
    ("kinds", |args, _, report| kinds::measure(args, report)),
    ("ports", ports::measure),
    ("growth", growth::measure),
    ("traffic", traffic::measure),
    ("api", api::measure),
    ("cluster", cluster::measure),
    ("runtime", |args, _, report| {
        podman::measure(args, report)?;
        cri::measure(args, report)
    }),
];

/// The runs before any counts, which fill caches and load kernel modules.
const WARM_UP: usize = 2;
/// The number of pods up to which the contenders take turns.
const FEW: usize = 10;
/// The number of traced runs for the memory, which hardly varies.
const TRACED: usize = 2;

fn main() -> ExitCode {
    let outcome = Args::parse(std::env::args().skip(1)).and_then(|args| match args {
        Some(args) => run(&args),
        None => {
            print!("{}", args::HELP);
            Ok(())
        }
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("error: {err}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Err("this needs root: it makes network namespaces".into());
    }
    let sandbox = Sandbox::enter(&args.state_dir)?;
    process::inherit()?;
    let mut report = Report::new(args)?;
    for contender in args.plugins() {
        report.ways.extend(way::taken(&sandbox, contender)?);
    }
    for way in &report.ways {
        announce(way);
    }
    for (_, measure) in SECTIONS.iter().filter(|(name, _)| args.has(name)) {
        measure(args, &sandbox, &mut report)?;
    }
    progress("");
    report.print()?;
    if let Some(dir) = &args.plots {
        plot::write(dir, &series::of(&report))?;
    }
    let files = [
        (&args.json, report.to_json()),
        (&args.markdown, report.to_markdown()),
        (&args.report, goals::to_markdown(args, &report)),
    ];
    for (path, text) in files {
        if let Some(path) = path {
            std::fs::write(path, text).map_err(|err| format!("{}: {err}", path.display()))?;
        }
    }
    Ok(())
}

/// Measures every kind of network.
fn pods(args: &Args, sandbox: &Sandbox, report: &mut Report) -> Result<()> {
    args.scenarios().try_for_each(|scenario| many_pods_or_few(args, scenario, sandbox, report))
}

/// Measures one kind of network, with all numbers of pods.
fn many_pods_or_few(args: &Args, scenario: &Scenario, sandbox: &Sandbox, report: &mut Report) -> Result<()> {
    // The floor has no masquerading, as its minimum cost depends on the method.
    let contenders = args.contenders.iter().filter(|contender| !contender.floor || !scenario.masquerade);
    let (few, many): (Vec<_>, Vec<_>) = args.pods.iter().partition(|pods| **pods <= FEW);
    let together = (few, contenders.clone().collect());
    let alone = contenders.map(|contender| (many.clone(), vec![contender]));
    let first = report.cells.len();
    for (turn, (numbers, contenders)) in std::iter::once(together).chain(alone).enumerate() {
        let tag = format!("pods{turn}");
        let hosts = contenders.iter().map(|contender| Host::named(sandbox, contender, scenario, &tag));
        let mut hosts = hosts.collect::<Result<Vec<_>>>()?;
        if args.services > 0 {
            for host in &hosts {
                services::add(host.namespace(), args.services)?;
            }
        }
        for pods in numbers {
            measure(args, scenario, &mut hosts, pods, report)?;
        }
        drop(hosts);
        sandbox.settle()?;
    }
    if let Some(cells) = report.cells.get_mut(first..) {
        cells.sort_by_key(|cell| cell.pods);
    }
    Ok(())
}

/// Measures one kind of network with `pods` pods in it.
fn measure(
    args: &Args,
    scenario: &Scenario,
    hosts: &mut [Host<'_>],
    pods: usize,
    report: &mut Report,
) -> Result<()> {
    announce(&format!("{}, {pods} pods", scenario.name));
    for host in hosts.iter_mut() {
        while host.pods() < pods {
            progress(&format!("{}: {} has {} of {pods} pods", scenario.name, host.name(), host.pods()));
            host.populate()?;
        }
    }

    let mut cells: Vec<Cell> = hosts.iter().map(|host| Cell::new(scenario.name, pods, host.name())).collect();
    for round in 0..WARM_UP + args.samples + TRACED {
        progress(&format!(
            "{}, {pods} pods: round {} of {}",
            scenario.name,
            round + 1,
            WARM_UP + args.samples + TRACED
        ));
        let mut turns: Vec<_> = hosts.iter_mut().zip(&mut cells).collect();
        if round % 2 == 1 {
            turns.reverse();
        }
        for (host, cell) in turns {
            if round < WARM_UP + args.samples {
                let (add, del) = host.add_and_del(process::timed)?;
                if round >= WARM_UP {
                    cell.add.push(&add);
                    cell.del.push(&del);
                }
            } else {
                let (add, del) = host.add_and_del(process::traced)?;
                cell.add.footprint(&add.figure);
                cell.del.footprint(&del.figure);
            }
        }
    }
    for host in hosts.iter() {
        host.verify()?;
    }
    report.cells.append(&mut cells);
    Ok(())
}

/// Shows the current step on stderr: a line that is overwritten on a terminal, nothing elsewhere.
fn progress(text: &str) {
    let mut stderr = std::io::stderr();
    if stderr.is_terminal() {
        let _ = write!(stderr, "\r\x1b[K{text}");
        let _ = stderr.flush();
    }
}

/// Prints the next large step if stderr is no terminal.
fn announce(text: &str) {
    if !std::io::stderr().is_terminal() {
        eprintln!("{text}");
    }
}
