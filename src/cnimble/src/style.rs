//! Aligns columns and colours text on a terminal.

use std::io::IsTerminal;

use super::plain;

/// Whether output gets colours. All its methods return plain text otherwise.
#[derive(Debug, Clone, Copy)]
pub(super) struct Paint(bool);

impl Paint {
    /// Returns whether this stream gets colours. It must be a terminal that TERM doesn't call dumb, without NO_COLOR
    /// (<https://no-color.org>).
    pub(super) fn for_stream(stream: &impl IsTerminal) -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Paint(stream.is_terminal() && !no_color && !dumb)
    }

    pub(super) fn is_on(self) -> bool {
        self.0
    }

    pub(super) fn bad(self, text: &str) -> String {
        self.wrap("1;31", text)
    }

    pub(super) fn good(self, text: &str) -> String {
        self.wrap("32", text)
    }

    pub(super) fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    pub(super) fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.0 {
            format!("{}{text}{}", plain::code(&format!("[{code}m")), plain::code("[0m"))
        } else {
            text.to_owned()
        }
    }
}

/// Returns a count with its noun, such as `1 route` and `2 routes`. The noun takes a plain `s`.
pub(super) fn count(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}

/// Returns lines of a name and a text, with aligned texts. A name that repeats the one above is left out.
pub(super) fn rows(rows: &[(&'static str, String)], paint: Paint) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut out = String::new();
    let mut last = "";
    for (name, text) in rows {
        let shown = if *name == last { "" } else { name };
        last = name;
        // A plugin's message may have several lines.
        for (index, line) in text.lines().enumerate() {
            let shown = if index == 0 { shown } else { "" };
            out.push_str(&format!("  {}  {line}\n", paint.dim(&format!("{shown:width$}"))));
        }
    }
    out
}

/// Returns a headline with [`rows`] below it.
pub(super) fn part(headline: &str, lines: &[(&'static str, String)], paint: Paint) -> String {
    format!("{}\n{}", paint.bold(&plain::line(headline)), rows(lines, paint))
}

/// Returns a table with aligned columns. The cells are escaped, so each line of `lines` is one line of the text.
pub(super) fn table(headings: &[&str], lines: &[Vec<String>], paint: Paint) -> String {
    // A name may contain a line break.
    let lines: Vec<Vec<String>> =
        lines.iter().map(|cells| cells.iter().map(|cell| plain::line(cell)).collect()).collect();
    let widths = headings.iter().enumerate().map(|(column, heading)| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        let longest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        longest.max(heading.len())
    });
    let widths: Vec<usize> = widths.collect();
    let headings: Vec<String> = headings.iter().map(|&heading| heading.to_owned()).collect();
    let mut out = format!("{}\n", paint.dim(&pad_cells(&headings, &widths)));
    for line in &lines {
        out.push_str(&pad_cells(line, &widths));
        out.push('\n');
    }
    out
}

/// Joins the cells of a line, each of the width of its column. Spaces at the end are left out.
fn pad_cells(cells: &[String], widths: &[usize]) -> String {
    let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
    padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

/// Joins the texts with a space between each two.
pub(super) fn joined<T: ToString>(list: &[T]) -> String {
    list.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let lines = [vec!["bridge".into(), "x".into()], vec!["lo".into(), "yy".into()]];
        assert_eq!(table(&["NAME", "PATH"], &lines, Paint(false)), "NAME    PATH\nbridge  x\nlo      yy\n");
        let lines = [vec!["a\nb".into(), "x".into()], vec!["\u{202e}".into(), "y".into()]];
        assert_eq!(table(&["N", "P"], &lines, Paint(false)), "N         P\na\\nb      x\n\\u{202e}  y\n");
        assert_eq!(
            rows(&[("why", "a\nb".into()), ("then", "c".into()), ("then", "d".into())], Paint(false)),
            "  why   a\n        b\n  then  c\n        d\n"
        );
    }
}
