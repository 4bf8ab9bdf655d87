//! Series of figures: the time of a verb, or a rate, over the number of pods, leases or ports that are there.

use crate::report::Report;
use crate::stats::{exponent, median, quantile};

/// A point with its spread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// The median of the processor time in milliseconds, or NaN if it is unknown.
    pub(crate) cpu: f64,
}

/// The points of one contender.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<Point>,
}

#[derive(Debug)]
pub(crate) struct Series {
    /// The name of its plot, without an ending.
    pub(crate) file: String,
    pub(crate) title: String,
    pub(crate) things: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) lines: Vec<Line>,
}

impl Line {
    /// Returns the exponent of the fitted growth. Two points or more have one.
    pub(crate) fn exponent(&self) -> Option<f64> {
        exponent(self.points.iter().map(|point| (point.x, point.median)))
    }

    /// Returns the same of the processor time, which hardly depends on the load of the machine.
    pub(crate) fn exponent_of_cpu(&self) -> Option<f64> {
        exponent(self.points.iter().map(|point| (point.x, point.cpu)))
    }
}

impl Series {
    fn new(name: &str, title: String, things: &'static str, unit: &'static str) -> Self {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        let file = name.replace(", ", "-").chars().map(plain).collect();
        Series { file, title, things, unit, lines: Vec::new() }
    }

    /// Adds a point. Axes are logarithmic, so a point at 0 has no place.
    fn push(&mut self, contender: &str, size: usize, (samples, cpu): (&[f64], &[f64])) {
        if size == 0 || samples.is_empty() {
            return;
        }
        let point = Point {
            x: size as f64,
            median: median(samples),
            low: quantile(samples, 0.25),
            high: quantile(samples, 0.75),
            cpu: median(cpu),
        };
        match self.lines.iter_mut().find(|line| line.name == contender) {
            Some(line) => line.points.push(point),
            None => self.lines.push(Line { name: contender.to_owned(), points: vec![point] }),
        }
    }
}

/// Returns the series of two points or more.
pub(crate) fn of(report: &Report) -> Vec<Series> {
    let mut all = Vec::new();
    for cell in &report.cells {
        for verb in ["ADD", "DEL"] {
            let title = format!("{verb} of one pod more, {}", cell.scenario);
            let series = Series::new(&format!("{}-{verb}", cell.scenario), title, "pods", "ms");
            let verb = cell.verb(verb);
            add(&mut all, series, &cell.contender, cell.pods, (&verb.wall(), &verb.cpu()));
        }
    }
    for row in &report.rows {
        if let Some(place) = &row.place {
            let series = Series::new(&place.series, place.series.clone(), place.things, row.unit);
            add(&mut all, series, &row.contender, place.size, (&row.samples, &row.cpu));
        }
    }
    all.retain(|series| series.lines.iter().any(|line| line.points.len() > 1));
    all
}

/// Adds a point of a contender to this series, which may be new. The samples are figures and processor times.
fn add(all: &mut Vec<Series>, series: Series, contender: &str, size: usize, samples: (&[f64], &[f64])) {
    match all.iter_mut().find(|old| old.file == series.file) {
        Some(old) => old.push(contender, size, samples),
        None => {
            let mut series = series;
            series.push(contender, size, samples);
            all.push(series);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Row;

    #[test]
    fn rows_make_a_series_for_each_name() {
        let mut all = Vec::new();
        for (name, size, sample) in [("a", 0, 9.0), ("a", 10, 1.0), ("b", 10, 5.0), ("a", 1000, 100.0)] {
            let row = Row::new("leases", String::new(), name).at("host-local ADD", "leases", size);
            let place = row.place.unwrap();
            let series = Series::new(&place.series, place.series.clone(), place.things, row.unit);
            add(&mut all, series, name, size, (&[sample], &[2.0]));
        }
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].file, "host-local-add");
        let points: Vec<(&str, usize)> =
            all[0].lines.iter().map(|line| (line.name.as_str(), line.points.len())).collect();
        assert_eq!(points, [("a", 2), ("b", 1)]);
        let line = &all[0].lines[0];
        assert!(
            (line.exponent().unwrap() - 1.0).abs() < 1e-9 && line.exponent_of_cpu().unwrap().abs() < 1e-9
        );
    }
}
