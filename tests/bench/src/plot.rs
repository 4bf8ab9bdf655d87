//! Plots as SVG: the time of a verb over the number of pods, with a line for each contender.

use std::fmt::Write as _;
use std::path::Path;

use crate::Result;
use crate::report::Cell;
use crate::stats::{median, quantile};

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
/// The space for the axes on the left, right, top and bottom.
const MARGIN: (f64, f64, f64, f64) = (64.0, 150.0, 48.0, 52.0);
/// Colours that colour-blind people can distinguish (Okabe and Ito).
const COLOURS: [&str; 4] = ["#d55e00", "#0072b2", "#009e73", "#cc79a7"];

/// A point with its spread: x, median, lower and upper quartile.
type Point = (f64, f64, f64, f64);

struct Line {
    name: String,
    points: Vec<Point>,
}

/// Writes `NETWORK-VERB.svg` for each network and verb with two numbers of pods or more.
pub(crate) fn write(dir: &Path, cells: &[Cell]) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    for group in cells.chunk_by(|a, b| a.scenario == b.scenario) {
        let Some(first) = group.first() else { continue };
        for verb in ["ADD", "DEL"] {
            let lines = lines(group, verb);
            if lines.iter().all(|line| line.points.len() < 2) {
                continue;
            }
            let path = dir.join(format!("{}-{verb}.svg", first.scenario).to_lowercase());
            let title = format!("{verb} of one pod more, {}", first.scenario);
            std::fs::write(&path, draw(&title, &lines))
                .map_err(|err| format!("{}: {err}", path.display()))?;
            println!("{}", path.display());
        }
    }
    Ok(())
}

fn lines(cells: &[Cell], verb: &str) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for cell in cells {
        let wall = cell.verb(verb).wall();
        let x = cell.pods.max(1) as f64;
        let point = (x, median(&wall), quantile(&wall, 0.25), quantile(&wall, 0.75));
        match lines.iter_mut().find(|line| line.name == cell.contender) {
            Some(line) => line.points.push(point),
            None => lines.push(Line { name: cell.contender.clone(), points: vec![point] }),
        }
    }
    lines
}

/// Returns ticks from the series 1-2-5-10, with one step beyond either end.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let decades = (-4..6).flat_map(|decade| [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(decade)));
    let all: Vec<f64> = decades.collect();
    let first = all.iter().rposition(|tick| *tick <= low).unwrap_or(0);
    let last = all.iter().position(|tick| *tick >= high).unwrap_or(all.len() - 1);
    all.get(first..=last.max(first)).unwrap_or_default().to_vec()
}

fn draw(title: &str, lines: &[Line]) -> String {
    let (left, right, top, bottom) = MARGIN;
    let points = || lines.iter().flat_map(|line| &line.points);
    let range = |values: &mut dyn Iterator<Item = f64>| {
        values.fold((f64::INFINITY, 0f64), |(low, high), value| (low.min(value), high.max(value)))
    };
    let (x_low, x_high) = range(&mut points().map(|point| point.0));
    let (y_low, _) = range(&mut points().map(|point| point.2));
    let (_, y_high) = range(&mut points().map(|point| point.3));
    let y_ticks = ticks(y_low.max(1e-3), y_high);
    let (y_low, y_high) = (y_ticks.first().copied().unwrap_or(1.0), y_ticks.last().copied().unwrap_or(10.0));
    let scale = |value: f64, low: f64, high: f64, from: f64, to: f64| {
        from + (value.max(1e-6) / low).log10() / (high / low).log10().max(1e-9) * (to - from)
    };
    let x = |value: f64| scale(value, x_low, x_high, left + 10.0, WIDTH - right - 10.0);
    let y = |value: f64| scale(value, y_low, y_high, HEIGHT - bottom, top);

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{left}\" y=\"26\" font-size=\"16\">{title}</text>\n"
    );
    // Writing to a String can't fail.
    for tick in &y_ticks {
        let at = y(*tick);
        let _ = writeln!(
            svg,
            "<path d=\"M{left} {at:.1}H{:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>",
            WIDTH - right,
            left - 8.0,
            at + 4.0
        );
    }
    let mut columns: Vec<f64> = points().map(|point| point.0).collect();
    columns.sort_by(f64::total_cmp);
    columns.dedup();
    for column in columns {
        let (at, low) = (x(column), HEIGHT - bottom);
        let _ = writeln!(
            svg,
            "<path d=\"M{at:.1} {low:.1}v5\" stroke=\"black\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{column}</text>",
            low + 20.0
        );
    }
    let _ = writeln!(
        svg,
        "<path d=\"M{left} {top}V{:.1}H{:.1}\" fill=\"none\" stroke=\"black\"/>\n\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">pods that are there already</text>\n\
         <text x=\"16\" y=\"{:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 16 {:.1})\">milliseconds</text>",
        HEIGHT - bottom,
        WIDTH - right,
        (left + WIDTH - right) / 2.0,
        HEIGHT - 12.0,
        HEIGHT / 2.0,
        HEIGHT / 2.0
    );
    for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        let path: Vec<String> =
            line.points.iter().map(|point| format!("{:.1} {:.1}", x(point.0), y(point.1))).collect();
        let _ = writeln!(
            svg,
            "<path d=\"M{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join("L")
        );
        for (at, middle, lower, upper) in &line.points {
            let at = x(*at);
            let _ = writeln!(
                svg,
                "<path d=\"M{at:.1} {:.1}V{:.1}\" stroke=\"{colour}\"/>\
                 <circle cx=\"{at:.1}\" cy=\"{:.1}\" r=\"3.5\" fill=\"{colour}\"/>",
                y(*lower),
                y(*upper),
                y(*middle)
            );
        }
        if let Some(last) = line.points.last() {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{} {:.2}</text>",
                WIDTH - right + 8.0,
                y(last.1) + 4.0,
                line.name,
                last.1
            );
        }
    }
    svg + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_go_around_the_values() {
        assert_eq!(ticks(0.6, 42.0), [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0]);
        assert_eq!(ticks(1.0, 1.0), [1.0]);
    }

    #[test]
    fn every_point_lies_on_the_paper() {
        let points = vec![(10.0, 1.0, 0.9, 1.2), (1000.0, 30.0, 20.0, 45.0)];
        let svg = draw("t", &[Line { name: "a".into(), points }]);
        assert_eq!(svg.matches("<circle").count(), 2);
        for part in svg.split("cy=\"").skip(1) {
            let y: f64 = part.split('"').next().unwrap().parse().unwrap();
            assert!((MARGIN.2..=HEIGHT - MARGIN.3).contains(&y), "{y}");
        }
    }
}
