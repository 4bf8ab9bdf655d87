//! Plots as SVG, with a line for each contender. Both axes are logarithmic.

use std::fmt::Write as _;
use std::path::Path;

use crate::Result;
use crate::series::{Line, Series};

const WIDTH: f64 = 780.0;
const HEIGHT: f64 = 420.0;
/// The space for the axes on the left, right, top and bottom.
const MARGIN: (f64, f64, f64, f64) = (64.0, 215.0, 48.0, 52.0);
/// Colours that colour-blind people can distinguish (Okabe and Ito).
const COLOURS: [&str; 4] = ["#d55e00", "#0072b2", "#009e73", "#cc79a7"];

/// Writes a plot of each series.
pub(crate) fn write(dir: &Path, all: &[Series]) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    for series in all {
        let path = dir.join(format!("{}.svg", series.file));
        std::fs::write(&path, draw(series)).map_err(|err| format!("{}: {err}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Returns ticks from the series 1-2-5-10, with one step beyond either end.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let decades = (-4..6).flat_map(|decade| [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(decade)));
    let all: Vec<f64> = decades.collect();
    let first = all.iter().rposition(|tick| *tick <= low).unwrap_or(0);
    let last = all.iter().position(|tick| *tick >= high).unwrap_or(all.len() - 1);
    all.get(first..=last.max(first)).unwrap_or_default().to_vec()
}

/// The ranges of both axes.
struct Axes {
    x: (f64, f64),
    y: (f64, f64),
}

impl Axes {
    fn x(&self, value: f64) -> f64 {
        scale(value, self.x, (MARGIN.0 + 10.0, WIDTH - MARGIN.1 - 10.0))
    }

    fn y(&self, value: f64) -> f64 {
        scale(value, self.y, (HEIGHT - MARGIN.3, MARGIN.2))
    }
}

/// Returns the place of `value`, which is between `low` and `high`, on a logarithmic axis.
fn scale(value: f64, (low, high): (f64, f64), (from, to): (f64, f64)) -> f64 {
    from + (value.max(1e-6) / low).log10() / (high / low).log10().max(1e-9) * (to - from)
}

/// Returns the least and the greatest value.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, 0f64), |(low, high), value| (low.min(value), high.max(value)))
}

fn draw(series: &Series) -> String {
    let points = || series.lines.iter().flat_map(|line| &line.points);
    let (y_low, _) = range(points().map(|point| point.low));
    let (_, y_high) = range(points().map(|point| point.high));
    let y_ticks = ticks(y_low.max(1e-3), y_high);
    let axes = Axes {
        x: range(points().map(|point| point.x)),
        y: (y_ticks.first().copied().unwrap_or(1.0), y_ticks.last().copied().unwrap_or(10.0)),
    };
    let mut columns: Vec<f64> = points().map(|point| point.x).collect();
    columns.sort_by(f64::total_cmp);
    columns.dedup();

    let mut svg = frame(series);
    let (left, right, _, bottom) = MARGIN;
    // Writing to a String can't fail.
    for tick in &y_ticks {
        let at = axes.y(*tick);
        let _ = writeln!(
            svg,
            "<path d=\"M{left} {at:.1}H{:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>",
            WIDTH - right,
            left - 8.0,
            at + 4.0
        );
    }
    for column in columns {
        let (at, low) = (axes.x(column), HEIGHT - bottom);
        let _ = writeln!(
            svg,
            "<path d=\"M{at:.1} {low:.1}v5\" stroke=\"black\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{column}</text>",
            low + 20.0
        );
    }
    for (line, colour) in series.lines.iter().zip(COLOURS.iter().cycle()) {
        svg += &curve(line, &axes, colour);
    }
    svg + "</svg>\n"
}

/// Returns the paper with the title and the axes without their numbers.
fn frame(series: &Series) -> String {
    let Series { title, things, unit, .. } = series;
    let unit = if *unit == "ms" { "milliseconds" } else { unit };
    let (left, right, top, bottom) = MARGIN;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{left}\" y=\"26\" font-size=\"16\">{title}</text>\n\
         <path d=\"M{left} {top}V{:.1}H{:.1}\" fill=\"none\" stroke=\"black\"/>\n\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{things} that are there already</text>\n\
         <text x=\"16\" y=\"{:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 16 {:.1})\">{unit}</text>\n",
        HEIGHT - bottom,
        WIDTH - right,
        (left + WIDTH - right) / 2.0,
        HEIGHT - 12.0,
        HEIGHT / 2.0,
        HEIGHT / 2.0
    )
}

fn curve(line: &Line, axes: &Axes, colour: &str) -> String {
    let path: Vec<String> = line
        .points
        .iter()
        .map(|point| format!("{:.1} {:.1}", axes.x(point.x), axes.y(point.median)))
        .collect();
    let mut svg =
        format!("<path d=\"M{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n", path.join("L"));
    for point in &line.points {
        let at = axes.x(point.x);
        let _ = writeln!(
            svg,
            "<path d=\"M{at:.1} {:.1}V{:.1}\" stroke=\"{colour}\"/>\
             <circle cx=\"{at:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"{colour}\"/>",
            axes.y(point.low),
            axes.y(point.high),
            axes.y(point.median)
        );
    }
    if let Some(last) = line.points.last() {
        let growth = line.exponent().map(|exponent| format!(" ~n^{exponent:.2}")).unwrap_or_default();
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{} {}{growth}</text>",
            WIDTH - MARGIN.1 + 8.0,
            axes.y(last.median) + 4.0,
            line.name,
            short(last.median)
        );
    }
    svg
}

/// Returns the value with three digits or more.
fn short(value: f64) -> String {
    let places = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.places$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::Point;

    #[test]
    fn ticks_go_around_the_values() {
        assert_eq!(ticks(0.6, 42.0), [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0]);
        assert_eq!(ticks(1.0, 1.0), [1.0]);
    }

    #[test]
    fn every_point_lies_on_the_paper() {
        let point = |x, median, low, high| Point { x, median, low, high, cpu: median };
        let points = vec![point(10.0, 1.0, 0.9, 1.2), point(1000.0, 30.0, 20.0, 45.0)];
        let lines = vec![Line { name: "a".into(), points }];
        let svg = draw(&Series { file: "f".into(), title: "t".into(), things: "pods", unit: "ms", lines });
        assert_eq!(svg.matches("<circle").count(), 2);
        for part in svg.split("cy=\"").skip(1) {
            let y: f64 = part.split('"').next().unwrap().parse().unwrap();
            assert!((MARGIN.2..=HEIGHT - MARGIN.3).contains(&y), "{y}");
        }
    }
}
