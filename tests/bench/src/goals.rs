//! The report as Markdown: the goals and the results, then every figure.

use std::fmt::Write as _;
use std::process::Command;

use crate::args::Args;
use crate::chain;
use crate::concurrency;
use crate::gc;
use crate::kinds;
use crate::ports;
use crate::report::{Report, Row};
use crate::series::{self, Point};
use crate::stats::{median, quantile};

/// The median and the quartiles of a measurement, in milliseconds.
#[derive(Clone, Copy)]
struct Figure {
    median: f64,
    low: f64,
    high: f64,
}

impl Figure {
    fn of(samples: &[f64]) -> Option<Self> {
        if samples.is_empty() {
            return None;
        }
        Some(Figure { median: median(samples), low: quantile(samples, 0.25), high: quantile(samples, 0.75) })
    }
}

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} [{:.2}–{:.2}]", self.median, self.low, self.high)
    }
}

/// Finds figures in a report.
struct Finder<'a> {
    report: &'a Report,
    /// The first contender, which our plugins are compared with.
    reference: String,
    ours: String,
}

impl Finder<'_> {
    fn verb(&self, network: &str, pods: usize, who: &str, verb: &str) -> Option<Figure> {
        let mut cells = self.report.cells.iter();
        let cell =
            cells.find(|cell| cell.scenario == network && cell.pods == pods && cell.contender == who)?;
        Figure::of(&cell.verb(verb).wall())
    }

    fn kernel(&self, network: &str, pods: usize, verb: &str) -> Option<Figure> {
        let mut cells = self.report.cells.iter();
        let cell =
            cells.find(|cell| cell.scenario == network && cell.pods == pods && cell.contender == "floor")?;
        Figure::of(&cell.verb(verb).kernel)
    }

    fn row(&self, what: &str, who: &str) -> Option<&Row> {
        self.report.rows.iter().find(|row| row.what == what && row.contender == who)
    }
}

/// A line of the table: the work, the goal, the result, and whether the goal was reached.
type Line = Option<(String, String, String, bool)>;

/// `one / other`, which should be at most `limit`.
fn at_most(what: &str, against: &str, one: Option<Figure>, other: Option<Figure>, limit: f64) -> Line {
    let (one, other) = (one?, other?);
    let ratio = one.median / other.median;
    let measured = format!("{ratio:.2}× ({one} to {other} ms)");
    Some((what.to_owned(), format!("≤ {limit} × {against}"), measured, ratio <= limit))
}

/// `other / one`, which should be at least `limit`.
fn faster(what: &str, than: &str, one: Option<Figure>, other: Option<Figure>, limit: f64) -> Line {
    let (one, other) = (one?, other?);
    let ratio = other.median / one.median;
    let measured = format!("{ratio:.1}× ({one} to {other} ms)");
    Some((what.to_owned(), format!("≥ {limit} × faster than {than}"), measured, ratio >= limit))
}

/// `one`, which should be at most `limit` milliseconds.
fn within(what: &str, one: Option<Figure>, limit: f64) -> Line {
    let one = one?;
    Some((what.to_owned(), format!("≤ {limit} ms"), format!("{one} ms"), one.median <= limit))
}

fn goals(args: &Args, report: &Report) -> Vec<Line> {
    let name = |index: usize| args.plugins().nth(index).map(|one| one.name.clone()).unwrap_or_default();
    let find = Finder { report, reference: name(0), ours: name(1) };
    let (go, we) = (find.reference.as_str(), find.ours.as_str());
    let (few, many) =
        (args.pods.first().copied().unwrap_or_default(), args.pods.last().copied().unwrap_or_default());
    let mut lines = Vec::new();
    let kernel = find.kernel("plain", few, "DEL");
    for (network, add_limit, ms, del_limit) in
        [("plain", 7.0, 2.5, 8.0), ("dual", 7.0, 2.5, 8.0), ("ipMasq", 15.0, 3.0, 25.0)]
    {
        let of = |who, verb| find.verb(network, few, who, verb);
        let (add, del) = (format!("ADD, {network}"), format!("DEL, {network}"));
        lines.push(at_most(&add, "the floor", of(we, "ADD"), of("floor", "ADD"), 1.3));
        lines.push(faster(&add, go, of(we, "ADD"), of(go, "ADD"), add_limit));
        lines.push(within(&del, of(we, "DEL"), ms));
        lines.push(faster(&del, go, of(we, "DEL"), of(go, "DEL"), del_limit));
        lines.push(at_most(&del, "the kernel's own time", of(we, "DEL"), kernel, 0.25));
    }
    if few != many {
        for verb in ["ADD", "DEL"] {
            // The first pod of a bridge brings it up, so ten pods are the reference.
            let base = if args.pods.contains(&10) { 10 } else { few };
            let with = |pods| find.verb("ipMasq", pods, we, verb);
            let what = format!("{verb}, ipMasq, {many} pods");
            lines.push(at_most(&what, &format!("{base} pods"), with(many), with(base), 1.25));
        }
    }
    for verb in ["ADD", "CHECK", "DEL"] {
        let with =
            |size: usize| Figure::of(&find.row(&format!("host-local {verb}, {size} leases"), we)?.samples);
        let what = format!("host-local {verb}, 60,000 leases");
        lines.push(at_most(&what, "an empty store", with(60_000), with(0), 2.0));
    }
    for network in ["plain", "ipMasq"] {
        let what = format!("100 ADDs at once, {network}");
        let row = find.row(&what, we);
        let one = row.and_then(|row| Figure::of(&row.samples));
        let other = find.row(&what, go).and_then(|row| Figure::of(&row.samples));
        lines.push(faster(&what, go, one, other, 6.0));
        lines.push(row.map(|row| {
            let found = match row.faults() {
                none if none.is_empty() => "none".to_owned(),
                faults => faults,
            };
            (what, "no error, no duplicate address".to_owned(), found, row.errors + row.duplicates == 0)
        }));
        let del = concurrency::del_name(network);
        let of = |who: &str| find.row(&del, who).and_then(|row| Figure::of(&row.samples));
        lines.push(faster(&del, go, of(we), of(go), 6.0));
        let waiting = concurrency::waiting(we);
        lines.push(faster(&del, &waiting, of(we), of(&waiting), 5.0));
    }
    let peak = report.cells.iter().filter(|cell| cell.contender == we);
    let peak = peak.map(|cell| cell.add.peak_kib().max(cell.del.peak_kib())).max();
    lines.push(peak.map(|kib| {
        ("peak memory of a plugin".to_owned(), "≤ 3 MB".to_owned(), format!("{kib} KiB"), kib <= 3 * 1024)
    }));
    lines.push(report.sizes().find(|(name, ..)| *name == we).map(|(_, bytes, plugins)| {
        let found = format!("{:.1} MB, {plugins} plugins", bytes as f64 / 1e6);
        ("all plugins on disk".to_owned(), "≤ 4 MB".to_owned(), found, bytes <= 4_000_000)
    }));
    lines.push(invoker(report));
    let row = |what: &str, who: &str| Figure::of(&find.row(what, who)?.samples);
    for pods in chain::sizes(args) {
        let (add, del) = (chain::add_name(pods), chain::del_name(pods));
        let whole = row(&add, we);
        let bridge = format!("{go}'s bridge alone");
        lines.push(faster(&add, &bridge, whole, row(&chain::bridge_name(pods), go), 1.0));
        lines.push(faster(&add, &format!("{go}'s chain"), whole, row(&add, go), 10.0));
        lines.push(faster(&del, &format!("{go}'s chain"), row(&del, we), row(&del, go), 20.0));
        lines.push(within(&del, row(&del, we), 10.0));
        lines.push(at_most(&del, "its ADD", row(&del, we), whole, 3.0));
        for kind in ["portmap", "firewall"] {
            let what = chain::part_name(kind, pods);
            lines.push(within(&what, row(&what, we), 1.5));
        }
    }
    for network in ["plain", "ipMasq"] {
        let what = format!("{}, {network}", gc::GC);
        lines.push(within(&what, row(&what, we), 60.0));
    }
    // A plugin with a DHCP server waits for the server's answer.
    for sample in cnimble_tests::Sample::all().iter().filter(|sample| !sample.is_served()) {
        let add = kinds::add_name(&sample.plugin);
        lines.push(faster(&add, go, row(&add, we), row(&add, go), 5.0));
    }
    let thousand = row(&ports::add_name(1000), we);
    for (size, which) in [(0, "the node's first"), (1, "the second")] {
        let among = row(&ports::add_name(size), we);
        lines.push(at_most(&ports::add_name(1000), which, thousand, among, 1.25));
    }
    lines
}

/// Returns the library's own share of the time over all pods.
fn invoker(report: &Report) -> Line {
    let sum = |who: &str| -> f64 {
        let rows = report.rows.iter().filter(|row| row.section == "invoker" && row.contender == who);
        rows.flat_map(|row| &row.samples).sum()
    };
    let (alone, library) = (sum("plugin alone"), sum("library"));
    if alone <= 0.0 {
        return None;
    }
    let share = (library - alone) / alone * 100.0;
    let measured = format!("{share:.1} % ({library:.0} to {alone:.0} ms)");
    Some((
        "300 pods through the library".to_owned(),
        "its own cost < 10 % of the plugins'".to_owned(),
        measured,
        share < 10.0,
    ))
}

pub(crate) fn to_markdown(args: &Args, report: &Report) -> String {
    let mut text = format!("{}\nMade by `{}`.\n\n", machine(), args.command);
    text += "Milliseconds: median [quartiles]. Ratios are of medians of the same run.\n\n";
    for way in &report.ways {
        // Writing to a String can't fail.
        let _ = writeln!(text, "{way}.\n");
    }
    text += "| work | to reach | measured | reached |\n|---|---|---|---|\n";
    for (what, goal, measured, reached) in goals(args, report).into_iter().flatten() {
        let mark = if reached { "yes" } else { "**no**" };
        let _ = writeln!(text, "| {what} | {goal} | {measured} | {mark} |");
    }
    text += "\n### Every figure\n\n";
    if !report.cells.is_empty() {
        text += "| network | pods | verb | plugins | ms | processor, ms | kernel's share, ms | peak KiB |\n|---|--:|---|---|--:|--:|--:|--:|\n";
    }
    for cell in &report.cells {
        for name in ["ADD", "DEL"] {
            let verb = cell.verb(name);
            let show =
                |samples: &[f64]| Figure::of(samples).map(|figure| figure.to_string()).unwrap_or_default();
            let _ = writeln!(
                text,
                "| {} | {} | {name} | {} | {} | {:.2} | {} | {} |",
                cell.scenario,
                cell.pods,
                cell.contender,
                show(&verb.wall()),
                median(&verb.cpu()),
                show(&verb.kernel),
                verb.peak_kib()
            );
        }
    }
    if !report.rows.is_empty() {
        text +=
            "\n| what | plugins | ms, if nothing else | processor, ms | faults |\n|---|---|--:|--:|---|\n";
    }
    for row in &report.rows {
        let figure = Figure::of(&row.samples).map(|figure| figure.to_string()).unwrap_or_default();
        let unit = if row.unit == "ms" { String::new() } else { format!(" {}", row.unit) };
        let cpu = if row.cpu.is_empty() { String::new() } else { format!("{:.2}", median(&row.cpu)) };
        let _ = writeln!(
            text,
            "| {} | {} | {figure}{unit} | {cpu} | {} |",
            row.what,
            row.contender,
            row.faults()
        );
    }
    text + &growth(report)
}

/// Returns how each series grows.
fn growth(report: &Report) -> String {
    let mut text = String::new();
    for series in &series::of(report) {
        for line in &series.lines {
            let (Some(first), Some(last), Some(exponent)) =
                (line.points.first(), line.points.last(), line.exponent())
            else {
                continue;
            };
            if text.is_empty() {
                text += "\n### Growth\n\nEach exponent of n fits the medians by least squares of the logarithms.\n\n";
                text += "| what | plugins | from | to | exponent | of the processor time |\n|---|---|--:|--:|--:|--:|\n";
            }
            let point = |point: &Point| {
                format!("{:.2} {} at {} {}", point.median, series.unit, point.x, series.things)
            };
            let (first, last) = (point(first), point(last));
            let cpu = line.exponent_of_cpu().map(|exponent| format!("{exponent:.2}")).unwrap_or_default();
            let _ = writeln!(
                text,
                "| {} | {} | {first} | {last} | {exponent:.2} | {cpu} |",
                series.title, line.name
            );
        }
    }
    text
}

/// Returns the date, the kernel and the processor.
fn machine() -> String {
    let date = Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]).output();
    let date =
        date.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = memory.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0);
    format!(
        "{date}; Linux {}; {cpus} processors ({}), {} MB of memory.",
        kernel.trim(),
        model.map_or("unknown", |(_, model)| model),
        kib / 1024
    )
}
