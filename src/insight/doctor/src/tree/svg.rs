//! One SVG file without scripts, fonts or links. Letters are monospaced, so that widths do not depend on the font.

use std::fmt::Write;

use super::label;
use super::model::{Network, Pod, PodGroup, Tree};

/// Width of a letter and height of a line, at the sizes below.
const LETTER: usize = 8;
const LINE: usize = 17;
const MARGIN: usize = 20;
const GAP: usize = 12;
const PAD: usize = 10;
const WIRE: usize = 5 * LETTER;
const HEADING: usize = 9;

const STYLE: &str = "\
svg { color-scheme: light dark; font: 13px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace }
text { fill: #0f172a }
.paper { fill: #ffffff }
.net { fill: #f8fafc; stroke: #94a3b8 }
.link { fill: #dbeafe; stroke: #2563eb }
.pod { fill: #ffffff; stroke: #64748b }
.wrong { stroke: #dc2626; stroke-dasharray: 4 3 }
.wire { stroke: #2563eb; stroke-width: 1.5; fill: none }
.name { font-weight: bold }
.dim { fill: #64748b }
.bad { fill: #dc2626 }
@media (prefers-color-scheme: dark) {
  text { fill: #e2e8f0 } .paper { fill: #0f172a } .net { fill: #1e293b; stroke: #64748b }
  .link { fill: #1e3a8a; stroke: #60a5fa } .pod { fill: #0f172a } .wire { stroke: #60a5fa }
  .dim { fill: #94a3b8 } .bad { fill: #f87171 }
}
";

/// Draws the tree as an SVG document.
pub fn svg(tree: &Tree) -> String {
    let mut sheet = Sheet::default();
    let mut y = MARGIN;
    for network in &tree.networks {
        y = sheet.network(network, y) + GAP;
    }
    if tree.networks.is_empty() {
        sheet.text(MARGIN, y + LINE, "", "no usable networks");
        y += 2 * LINE;
    }
    let strays =
        tree.strays.iter().map(|line| ("bad", format!("rule of no pod on a record that was read: {line}")));
    let problems = tree.problems.iter().map(|line| ("bad", line.clone()));
    let not_checked = tree.not_checked.iter().map(|line| ("dim", format!("not checked: {line}")));
    for (class, line) in strays.chain(problems).chain(not_checked) {
        sheet.text(MARGIN, y + LINE, class, &line);
        y += LINE;
    }
    let (width, height) = (sheet.right + MARGIN, y + MARGIN);
    let pods = label::count(tree.attachments(), "pod");
    let networks = label::count(tree.networks.len(), "network");
    let body = sheet.frames + &sheet.body;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" role=\"img\" aria-labelledby=\"title\">\n\
         <title id=\"title\">{networks} with {pods}</title>\n<style>\n{STYLE}</style>\n\
         <rect class=\"paper\" width=\"{width}\" height=\"{height}\"/>\n{body}</svg>\n"
    )
}

/// The drawing so far. Frames are kept apart, because a frame is drawn before its content, but its size is known after
/// it.
#[derive(Default)]
struct Sheet {
    frames: String,
    body: String,
    right: usize,
}

impl Sheet {
    /// Draws a network from `y` on. Returns its lower end.
    fn network(&mut self, network: &Network, y: usize) -> usize {
        let title_y = y + LINE + PAD / 2;
        self.text(MARGIN + PAD, title_y, "name", &network.name);
        let about = label::network(network);
        self.text(MARGIN + PAD + (length(&network.name) + 2) * LETTER, title_y, "dim", &about);
        let mut bottom = title_y + PAD;
        let mut right = MARGIN + 2 * PAD + (length(&network.name) + 2 + length(&about)) * LETTER;
        for place in &network.places {
            let (place_bottom, place_right) = self.place(place, MARGIN + PAD, bottom + GAP / 2);
            bottom = place_bottom + GAP / 2;
            right = right.max(place_right + PAD);
        }
        let (width, height) = (right - MARGIN, bottom + PAD - y);
        let _ = writeln!(
            self.frames,
            "<rect class=\"net\" x=\"{MARGIN}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"8\"/>"
        );
        self.right = self.right.max(right);
        bottom + PAD
    }

    /// Draws a bridge at the left, and its pods below each other at the right. Returns the lower and the right end.
    fn place(&mut self, place: &PodGroup, x: usize, y: usize) -> (usize, usize) {
        let about = about(place);
        let width = widest(&about) * LETTER + 2 * PAD;
        let wire = label::ends(place).map(|label| length(&label)).max().unwrap_or(0) * LETTER + WIRE;
        let pod_x = x + width + wire;
        let (mut end, mut right) = (y, x + width);
        for pod in &place.pods {
            let (bottom, pod_right) = self.pod(pod, pod_x, end);
            let joined = label::end(place, pod);
            self.wire(joined.as_deref().unwrap_or_default(), joined.is_some(), (x + width, pod_x), end);
            end = bottom + GAP;
            right = right.max(pod_right);
        }
        for other in &place.others {
            self.wire(&label::named(other), true, (x + width, pod_x), end);
            end += 2 * LINE + GAP;
            right = right.max(pod_x);
        }
        let bottom = end.saturating_sub(GAP).max(y + about.len() * LINE + PAD);
        self.frame(if place.link.is_some() { "link" } else { "pod" }, (x, y), (width, bottom - y));
        self.lines(&about, x + PAD, y);
        (bottom, right)
    }

    /// Draws the line from the bridge to the pod, with the port's name above it.
    fn wire(&mut self, label: &str, joined: bool, (from, to): (usize, usize), y: usize) {
        let y = y + LINE + PAD / 2;
        if joined {
            let _ = writeln!(self.body, "<path class=\"wire\" d=\"M{from} {y} H{to}\"/>");
        }
        self.text(from + LETTER, y - 4, "dim", label);
    }

    /// Draws a pod. Returns the lower and the right end.
    fn pod(&mut self, pod: &Pod, x: usize, y: usize) -> (usize, usize) {
        let rows = label::rows(pod);
        let inner = label::inner(pod);
        let title = length(&inner) + 2 + length(pod.title());
        let texts = rows.iter().flat_map(|(_, texts)| texts);
        let longest = texts.map(|text| HEADING + length(text)).max().unwrap_or(0);
        let width = longest.max(title) * LETTER + 2 * PAD;
        let height = (1 + rows.iter().map(|(_, texts)| texts.len()).sum::<usize>()) * LINE + PAD;
        let class = if pod.problem.is_some() { "pod wrong" } else { "pod" };
        self.frame(class, (x, y), (width, height));
        let (x_text, mut line) = (x + PAD, y + LINE);
        self.text(x_text, line, "name", &inner);
        self.text(x_text + (length(&inner) + 2) * LETTER, line, "name", pod.title());
        for (heading, texts) in &rows {
            self.text(x_text, line + LINE, "dim", heading);
            for text in texts {
                line += LINE;
                let class = if *heading == "problem" { "bad" } else { "" };
                self.text(x_text + HEADING * LETTER, line, class, text);
            }
        }
        (y + height, x + width)
    }

    fn frame(&mut self, class: &str, (x, y): (usize, usize), (width, height): (usize, usize)) {
        let _ = writeln!(
            self.body,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"5\"/>"
        );
    }

    fn lines(&mut self, lines: &[(&str, String)], x: usize, y: usize) {
        for (index, (class, line)) in lines.iter().enumerate() {
            self.text(x, y + (index + 1) * LINE, class, line);
        }
    }

    fn text(&mut self, x: usize, y: usize, class: &str, text: &str) {
        self.right = self.right.max(x + length(text) * LETTER);
        let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
        let _ = writeln!(self.body, "<text{class} x=\"{x}\" y=\"{y}\">{}</text>", escaped(text));
    }
}

fn about(place: &PodGroup) -> Vec<(&'static str, String)> {
    let Some(link) = &place.link else {
        return vec![("dim", label::without_bridge(place).to_owned())];
    };
    let mut lines = vec![("name", link.name.clone())];
    let words = label::link(link);
    if !words.is_empty() {
        lines.push(("dim", words.join(" ")));
    }
    lines.extend(link.addresses.iter().map(|address| ("", address.clone())));
    lines.extend(place.policy.iter().map(|policy| ("dim", format!("ingress {policy}"))));
    lines
}

fn widest(lines: &[(&str, String)]) -> usize {
    lines.iter().map(|(_, line)| length(line)).max().unwrap_or(0)
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// Escapes a text for XML. Characters that XML 1.0 forbids become question marks.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            other if other.is_control() || matches!(other, '\u{fffe}' | '\u{ffff}') => out.push('?'),
            other => out.push(other),
        }
    }
    out
}
