//! The measurements as rows of a page.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use crate::lives::{STEPS, Time};

/// The times of one crowd, on the empty host and on the crowded one.
pub(crate) struct Table {
    crowd: String,
    times: BTreeMap<(usize, &'static str), Vec<Time>>,
}

impl Table {
    pub(crate) fn new(crowd: &str) -> Self {
        Table { crowd: crowd.to_owned(), times: BTreeMap::new() }
    }

    /// Adds a time. `place` is 0 for the empty host, 1 for the crowded one.
    pub(crate) fn note(&mut self, place: usize, step: &'static str, time: Time) {
        self.times.entry((place, step)).or_default().push(time);
    }

    /// Returns the median in milliseconds.
    fn median(&self, place: usize, step: &'static str, of: fn(&Time) -> Duration) -> Option<f64> {
        let mut times: Vec<Duration> = self.times.get(&(place, step))?.iter().map(of).collect();
        times.sort();
        Some(times[times.len() / 2].as_secs_f64() * 1e3)
    }

    /// Returns both hosts' medians and their ratio, or nothing for a step that wasn't measured.
    fn cells(&self, step: &'static str, of: fn(&Time) -> Duration) -> String {
        match (self.median(0, step, of), self.median(1, step, of)) {
            (Some(empty), Some(crowded)) => {
                format!(" {empty:.1} | {crowded:.1} | {:.1} |", crowded / empty)
            }
            _ => String::new(),
        }
    }

    /// Returns a row for each plugin.
    pub(crate) fn rows(&self) -> String {
        let mut text = String::new();
        for plugin in STEPS.iter().filter_map(|step| step.strip_prefix("ADD ")) {
            let mut row = format!("| {} | {plugin} |", self.crowd);
            for verb in ["ADD", "DEL"] {
                let step = STEPS.into_iter().find(|step| *step == format!("{verb} {plugin}")).unwrap();
                row += &self.cells(step, |time| time.clock);
                row += &self.cells(step, |time| time.processor);
            }
            writeln!(text, "{row}").unwrap();
        }
        text
    }
}

/// Returns the text of the page `target/crowded.md`.
pub(crate) fn page(lives: usize, rows: &str) -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let processors = std::thread::available_parallelism().unwrap();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap();
    let load = load.split(' ').next().unwrap();
    format!(
        "# A crowded host\n\n\
         Written by `scripts/stress crowded --lives {lives}`: Linux {}, {processors} processors, load {load} at the end.\n\
         Medians in milliseconds of {lives} lives of a pod on an empty host and on a crowded one: by the clock, and of\n\
         the processor (the kernel's work for the call included). *floor* is the C program that does the least possible\n\
         (`tests/bench/floor.c`). Each DEL waits for the kernel's removal itself (`CNIMBLE_DEL_WAIT=1`). A call that fails\n\
         ends the run.\n\n\
         | beside | plugin | ADD, empty | crowded | times | processor, empty | crowded | times \
         | DEL, empty | crowded | times | processor, empty | crowded | times |\n\
         |---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n{rows}",
        kernel.trim()
    )
}
