//! The table on the terminal, and the same as JSON.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde_json::{Value, json};

use crate::args::Args;
use crate::host::Measured;
use crate::process::{Footprint, Run};
use crate::stats::{median, quantile};
use crate::{Contender, Result, series};

/// The measurements of one verb.
#[derive(Debug, Default)]
pub(crate) struct Verb {
    pub(crate) runs: Vec<Run>,
    /// The kernel's share, in milliseconds, as the floor measures it.
    pub(crate) kernel: Vec<f64>,
    footprint: Footprint,
}

impl Verb {
    /// Adds a run to the samples.
    pub(crate) fn push(&mut self, run: &Measured<Run>) {
        self.runs.push(run.figure);
        self.kernel.extend(run.kernel_ns.map(|ns| ns as f64 / 1e6));
    }

    /// Returns the peak memory of the largest process, in KiB.
    pub(crate) fn peak_kib(&self) -> u64 {
        self.footprint.peak_kib
    }

    /// Keeps the maximum of each resource.
    pub(crate) fn footprint(&mut self, seen: &Footprint) {
        self.footprint.peak_kib = self.footprint.peak_kib.max(seen.peak_kib);
        self.footprint.programs = self.footprint.programs.max(seen.programs);
    }

    /// Returns the wall-clock times in milliseconds.
    pub(crate) fn wall(&self) -> Vec<f64> {
        self.runs.iter().map(|run| run.wall.as_secs_f64() * 1e3).collect()
    }

    /// Returns the processor times in milliseconds.
    pub(crate) fn cpu(&self) -> Vec<f64> {
        self.runs.iter().map(|run| run.cpu.as_secs_f64() * 1e3).collect()
    }

    fn to_json(&self) -> Value {
        let wall = self.wall();
        json!({
            "wall_ms": {
                "median": median(&wall),
                "p25": quantile(&wall, 0.25),
                "p75": quantile(&wall, 0.75),
                "min": quantile(&wall, 0.0),
                "max": quantile(&wall, 1.0),
                "samples": wall,
            },
            "cpu_ms": {"median": median(&self.cpu())},
            "kernel_ms": self.kernel,
            "peak_kib": self.footprint.peak_kib,
            "programs": self.footprint.programs,
        })
    }
}

/// The results of one contender in one network with `pods` pods.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) scenario: &'static str,
    pub(crate) pods: usize,
    pub(crate) contender: String,
    pub(crate) add: Verb,
    pub(crate) del: Verb,
}

impl Cell {
    pub(crate) fn new(scenario: &'static str, pods: usize, contender: &str) -> Self {
        Cell { scenario, pods, contender: contender.to_owned(), add: Verb::default(), del: Verb::default() }
    }

    pub(crate) fn verb(&self, name: &str) -> &Verb {
        if name == "ADD" { &self.add } else { &self.del }
    }
}

/// A row of a section other than pods.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) section: &'static str,
    pub(crate) what: String,
    pub(crate) contender: String,
    /// In milliseconds, or in another unit.
    pub(crate) samples: Vec<f64>,
    /// The processor time of the same calls, in milliseconds, if known.
    pub(crate) cpu: Vec<f64>,
    pub(crate) unit: &'static str,
    /// The number of calls that failed.
    pub(crate) errors: usize,
    /// The number of addresses that were assigned twice.
    pub(crate) duplicates: usize,
    pub(crate) place: Option<Place>,
}

/// The place of a row in a series.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) series: String,
    /// The kind of things that the series is over, such as pods.
    pub(crate) things: &'static str,
    /// The number of things that are there.
    pub(crate) size: usize,
}

impl Row {
    pub(crate) fn new(section: &'static str, what: String, contender: &str) -> Self {
        let contender = contender.to_owned();
        Row {
            section,
            what,
            contender,
            samples: Vec::new(),
            cpu: Vec::new(),
            unit: "ms",
            errors: 0,
            duplicates: 0,
            place: None,
        }
    }

    /// Makes the row a point of a series.
    pub(crate) fn at(self, series: &str, things: &'static str, size: usize) -> Self {
        Row { place: Some(Place { series: series.to_owned(), things, size }), ..self }
    }

    /// Adds a run to the samples.
    pub(crate) fn push(&mut self, run: &Run) {
        self.samples.push(run.wall.as_secs_f64() * 1e3);
        self.cpu.push(run.cpu.as_secs_f64() * 1e3);
    }

    /// Describes the errors. Returns an empty text if there are none.
    pub(crate) fn faults(&self) -> String {
        match (self.errors, self.duplicates) {
            (0, 0) => String::new(),
            (errors, duplicates) => format!("{errors} errors, {duplicates} duplicate addresses"),
        }
    }
}

/// All measurements.
pub(crate) struct Report {
    contenders: Vec<(Contender, Size, String)>,
    samples: usize,
    /// The process that waits for the kernel in a DEL, for each contender.
    pub(crate) ways: Vec<String>,
    pub(crate) cells: Vec<Cell>,
    pub(crate) rows: Vec<Row>,
}

impl Report {
    pub(crate) fn new(args: &Args) -> Result<Self> {
        let contenders = args
            .plugins()
            .map(|contender| Ok((contender.clone(), Size::of(&contender.dir)?, about(contender))))
            .collect::<Result<_>>()?;
        Ok(Report {
            contenders,
            samples: args.samples,
            ways: Vec::new(),
            cells: Vec::new(),
            rows: Vec::new(),
        })
    }

    /// Returns the sets of plugins with their size on disk, in bytes.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = (&str, u64, usize)> {
        self.contenders.iter().map(|(contender, size, _)| (contender.name.as_str(), size.bytes, size.plugins))
    }

    /// Prints the sections besides pods on stdout.
    fn print_rows(&self) {
        for row in &self.rows {
            println!(
                "{:<48} {:<18}{:>9.2} {}  [{:.2}–{:.2}]  {}  {}",
                row.what,
                row.contender,
                median(&row.samples),
                row.unit,
                quantile(&row.samples, 0.25),
                quantile(&row.samples, 0.75),
                if row.cpu.is_empty() { String::new() } else { format!("cpu {:.2} ms", median(&row.cpu)) },
                row.faults(),
            );
        }
        if !self.rows.is_empty() {
            println!();
        }
    }

    /// Prints how fast each series grows.
    fn print_growth(&self) {
        let all = series::of(self);
        for series in &all {
            for line in &series.lines {
                let Some(exponent) = line.exponent() else { continue };
                let cpu = line.exponent_of_cpu().map(|exponent| format!("  cpu ^{exponent:.2}"));
                let cpu = cpu.unwrap_or_default();
                println!("{:<48} {:<18}{}^{exponent:.2}{cpu}", series.title, line.name, series.things);
            }
        }
        if !all.is_empty() {
            println!();
        }
    }

    /// Prints the table on stdout.
    pub(crate) fn print(&self) -> Result<()> {
        self.print_cells();
        self.print_rows();
        self.print_growth();
        for (contender, size, about) in &self.contenders {
            println!(
                "{}: {} plugins, {:.1} MB; of these bridge, host-local and loopback {:.1} MB ({about}, {})",
                contender.name,
                size.plugins,
                size.bytes as f64 / 1e6,
                size.common as f64 / 1e6,
                contender.dir.display(),
            );
        }
        for way in &self.ways {
            println!("{way}");
        }
        Ok(())
    }

    fn print_cells(&self) {
        if self.cells.is_empty() {
            return;
        }
        println!(
            "bridge + host-local, one pod more: median [quartiles] of {} runs, interleaved",
            self.samples
        );
        println!("peak: the largest process; programs: started by one call, the plugin included\n");
        println!(
            "{:<12}{:>5}  {:<4} {:<12}{:>9}  {:<17}{:>7}{:>9}{:>11}{:>9}",
            "network",
            "pods",
            "verb",
            "plugins",
            "ms",
            "[quartiles]",
            "ratio",
            "cpu ms",
            "peak KiB",
            "programs"
        );
        for group in self.cells.chunk_by(|a, b| (a.scenario, a.pods) == (b.scenario, b.pods)) {
            for name in ["ADD", "DEL"] {
                let first = group.first().map_or(f64::NAN, |cell| median(&cell.verb(name).wall()));
                for cell in group {
                    let verb = cell.verb(name);
                    let wall = verb.wall();
                    let spread = format!("[{:.2}–{:.2}]", quantile(&wall, 0.25), quantile(&wall, 0.75));
                    println!(
                        "{:<12}{:>5}  {:<4} {:<12}{:>9.2}  {spread:<17}{:>7.1}{:>9.2}{:>11}{:>9}",
                        cell.scenario,
                        cell.pods,
                        name,
                        cell.contender,
                        median(&wall),
                        first / median(&wall),
                        median(&verb.cpu()),
                        verb.footprint.peak_kib,
                        verb.footprint.programs,
                    );
                }
            }
        }
        println!();
    }

    /// Returns only the medians, with a row for each network and number of pods. The first contender is the reference,
    /// and each other one has its speed-up.
    pub(crate) fn to_markdown(&self) -> String {
        let (mut head, mut rule) = ("| network | pods |".to_owned(), "|---|--:|".to_owned());
        for name in ["ADD", "DEL"] {
            for (contender, ..) in &self.contenders {
                head += &format!(" {name} {} |", contender.name);
                rule += "--:|";
            }
        }
        let mut table = format!("{head}\n{rule}\n");
        for group in self.cells.chunk_by(|a, b| (a.scenario, a.pods) == (b.scenario, b.pods)) {
            let Some(first) = group.first() else { continue };
            table += &format!("| {} | {} |", first.scenario, first.pods);
            for name in ["ADD", "DEL"] {
                let measure = median(&first.verb(name).wall());
                for (index, cell) in group.iter().enumerate().filter(|(_, cell)| self.is_plugins(cell)) {
                    let ms = median(&cell.verb(name).wall());
                    table += &match index {
                        0 => format!(" {ms:.1} ms |"),
                        _ => format!(" {ms:.1} ms (**{:.1}×**) |", measure / ms),
                    };
                }
            }
            table += "\n";
        }
        table
    }

    /// Returns true for a set of plugins, and false for the floor.
    fn is_plugins(&self, cell: &Cell) -> bool {
        self.contenders.iter().any(|(contender, ..)| contender.name == cell.contender)
    }

    /// Returns the figures with every sample.
    pub(crate) fn to_json(&self) -> String {
        let contenders: Vec<Value> = self
            .contenders
            .iter()
            .map(|(contender, size, about)| {
                json!({
                    "name": contender.name,
                    "dir": contender.dir,
                    "about": about,
                    "plugins": size.plugins,
                    "bytes": size.bytes,
                    "bytes_bridge_host_local_loopback": size.common,
                })
            })
            .collect();
        let results: Vec<Value> = self
            .cells
            .iter()
            .map(|cell| {
                json!({
                    "network": cell.scenario,
                    "pods": cell.pods,
                    "plugins": cell.contender,
                    "ADD": cell.add.to_json(),
                    "DEL": cell.del.to_json(),
                })
            })
            .collect();
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let cpus = std::thread::available_parallelism().map_or(0, usize::from);
        let report = json!({
            "kernel": kernel.trim(),
            "cpus": cpus,
            "samples": self.samples,
            "who_waits": self.ways,
            "contenders": contenders,
            "results": results,
            "other": self.rows.iter().map(|row| json!({
                "section": row.section, "what": row.what, "plugins": row.contender,
                "median_ms": median(&row.samples), "samples_ms": row.samples, "cpu_samples_ms": row.cpu,
                "errors": row.errors, "duplicates": row.duplicates,
            })).collect::<Vec<Value>>(),
        });
        format!("{report:#}\n")
    }
}

/// The size of a directory of plugins on disk, with hard links counted once.
#[derive(Debug, Default)]
struct Size {
    plugins: usize,
    bytes: u64,
    /// The size of the plugins that every contender has.
    common: u64,
}

impl Size {
    fn of(dir: &Path) -> Result<Self> {
        let mut size = Size::default();
        let (mut all, mut common) = (HashSet::new(), HashSet::new());
        let entries = std::fs::read_dir(dir).map_err(|err| format!("{}: {err}", dir.display()))?;
        for entry in entries {
            let entry = entry?;
            let file = std::fs::metadata(entry.path())?;
            if !file.is_file() || file.mode() & 0o111 == 0 {
                continue;
            }
            size.plugins += 1;
            let key = (file.dev(), file.ino());
            if all.insert(key) {
                size.bytes += file.len();
            }
            let name = entry.file_name();
            if ["bridge", "host-local", "loopback"].iter().any(|common| name == *common) && common.insert(key)
            {
                size.common += file.len();
            }
        }
        Ok(size)
    }
}

/// Returns the plugin's description: its first line without a CNI_COMMAND.
fn about(contender: &Contender) -> String {
    std::process::Command::new(contender.dir.join("bridge"))
        .env_remove("CNI_COMMAND")
        .output()
        .ok()
        .and_then(|output| String::from_utf8_lossy(&output.stderr).lines().next().map(str::to_owned))
        .unwrap_or_default()
}
