//! Draws the picture for a terminal.

use super::label;
use super::model::{Network, Pod, PodGroup, Tree};

/// How the picture looks.
#[derive(Debug, Clone, Copy, Default)]
pub struct TextStyle {
    pub ascii: bool,
    /// The beginning of the escape codes for colours, usually ESC. It is empty for no colours.
    pub escape: &'static str,
}

struct Strokes {
    branch: &'static str,
    last: &'static str,
    trunk: &'static str,
    wire: &'static str,
}

const UNICODE: Strokes = Strokes { branch: "├─ ", last: "└─ ", trunk: "│  ", wire: "──" };
const ASCII: Strokes = Strokes { branch: "|- ", last: "`- ", trunk: "|  ", wire: "--" };

impl TextStyle {
    fn strokes(self) -> &'static Strokes {
        if self.ascii { &ASCII } else { &UNICODE }
    }

    fn wrap(self, code: &str, text: &str) -> String {
        let escape = self.escape;
        if !escape.is_empty() && !text.is_empty() {
            format!("{escape}[{code}m{text}{escape}[0m")
        } else {
            text.to_owned()
        }
    }

    fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    fn bad(self, text: &str) -> String {
        self.wrap("1;31", text)
    }
}

/// A line of the picture, further lines about it, and what is drawn below it.
#[derive(Default)]
struct Node {
    line: String,
    details: Vec<String>,
    children: Vec<Node>,
}

/// Draws the tree, a line for each thing, with a newline at the end.
pub fn text(tree: &Tree, look: TextStyle) -> String {
    let mut out = String::new();
    for (index, network) in tree.networks.iter().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        draw(&node_of_network(network, look), "", "", look, &mut out);
    }
    if tree.networks.is_empty() {
        out.push_str("no usable networks\n");
    }
    for (heading, lines) in [
        (look.bad("rules of no pod on a record that was read"), &tree.strays),
        (look.bad("other problems"), &tree.problems),
        (look.bold("not checked"), &tree.not_checked),
    ] {
        if !lines.is_empty() {
            let children = lines.iter().map(|line| Node { line: line.clone(), ..Node::default() }).collect();
            out.push('\n');
            draw(&Node { line: heading, children, ..Node::default() }, "", "", look, &mut out);
        }
    }
    out
}

/// Draws a node and what is below it. `first` is put before the node's own line, and `rest` before all others.
fn draw(node: &Node, first: &str, rest: &str, look: TextStyle, out: &mut String) {
    let strokes = look.strokes();
    // A name may contain a line end.
    let line = node.line.trim_end().replace('\n', "\\n");
    out.push_str(&format!("{}{line}\n", look.dim(first)));
    let beside = if node.children.is_empty() { "   " } else { strokes.trunk };
    for detail in &node.details {
        out.push_str(&look.dim(&format!("{rest}{beside}")));
        out.push_str(&detail.replace('\n', "\\n"));
        out.push('\n');
    }
    for (index, child) in node.children.iter().enumerate() {
        let (turn, below) = if index + 1 == node.children.len() {
            (strokes.last, "   ")
        } else {
            (strokes.branch, strokes.trunk)
        };
        draw(child, &format!("{rest}{turn}"), &format!("{rest}{below}"), look, out);
    }
}

fn node_of_network(network: &Network, look: TextStyle) -> Node {
    let line = format!("{}  {}", look.bold(&network.name), label::network(network));
    let children = network.places.iter().map(|place| node_of_place(place, look)).collect();
    Node { line, children, ..Node::default() }
}

fn node_of_place(place: &PodGroup, look: TextStyle) -> Node {
    let mut words = match &place.link {
        Some(link) => {
            let mut words = vec![link.name.clone()];
            words.extend(label::link(link));
            words.extend(link.addresses.iter().cloned());
            words
        }
        None => vec![format!("({})", label::without_bridge(place))],
    };
    words.extend(place.policy.as_ref().map(|policy| format!("ingress {policy}")));
    let width = label::ends(place).map(|end| end.chars().count()).max().unwrap_or(0);
    let ifname = place.pods.iter().map(|pod| label::inner(pod).chars().count()).max().unwrap_or(0);
    let wire = look.strokes().wire;
    let pods = place.pods.iter().map(|pod| {
        let end = match label::end(place, pod) {
            Some(end) => format!("{end:width$} {wire} "),
            None if width > 0 => format!("{:width$} {:wire$} ", "", "", wire = wire.chars().count()),
            None => String::new(),
        };
        let line = format!("{end}{:ifname$}  {}", label::inner(pod), look.bold(pod.title()));
        Node { line, details: rows(pod, look), ..Node::default() }
    });
    let others = place.others.iter().map(|link| {
        let line =
            format!("{:width$}    {}", label::named(link), look.dim("no pod on a record that was read"));
        Node { line, ..Node::default() }
    });
    Node { line: words.join("  "), children: pods.chain(others).collect(), ..Node::default() }
}

/// Returns the lines about a pod. A heading is beside the first of its lines only.
fn rows(pod: &Pod, look: TextStyle) -> Vec<String> {
    let rows = label::rows(pod);
    let width = rows.iter().map(|(heading, _)| heading.len()).max().unwrap_or(0);
    let lines = rows.iter().flat_map(|(heading, lines)| {
        lines.iter().enumerate().map(move |(index, line)| {
            let shown = if index == 0 { heading } else { "" };
            let line = if *heading == "problem" { look.bad(line) } else { line.clone() };
            format!("{}  {line}", look.dim(&format!("{shown:width$}")))
        })
    });
    lines.collect()
}
