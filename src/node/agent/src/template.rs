//! A template in the syntax of containerd's CRI plugin (`conf_template`): `{{.PodCIDR}}`, and ranges over
//! `.PodCIDRRanges` and `.Routes` with an `{{if}}` for separators. An unsupported action is an error.

use ipnetwork::IpNetwork;

use cnimble_cni::cidr::default_route;

/// Fills a template with the node's networks. Fails for an unsupported action, and for one without its end.
pub(crate) fn fill(text: &str, own: &[IpNetwork]) -> Result<String, String> {
    let cidrs: Vec<String> = own.iter().map(ToString::to_string).collect();
    let routes: Vec<String> = own.iter().map(|cidr| default_route(*cidr).to_string()).collect();
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, action, behind)) = next(rest)? {
        out.push_str(before);
        let words: Vec<&str> = action.split_whitespace().collect();
        rest = match words.as_slice() {
            [".PodCIDR"] => {
                out.push_str(cidrs.first().map_or("", String::as_str));
                behind
            }
            ["range", variables @ .., over] => {
                let list = match *over {
                    ".PodCIDRRanges" => &cidrs,
                    ".Routes" => &routes,
                    other => {
                        return Err(format!("{{{{range {other}}}}}: there are .PodCIDRRanges and .Routes"));
                    }
                };
                let variables: Vec<&str> = variables
                    .iter()
                    .filter(|word| **word != ":=")
                    .map(|word| word.trim_end_matches(','))
                    .collect();
                let (index, value) = match variables.as_slice() {
                    [] => ("", "."),
                    [value] => ("", *value),
                    [index, value] => (*index, *value),
                    _ => return Err(format!("{{{{{action}}}}}: expected $index, $value := LIST")),
                };
                let (body, behind) = block(behind)?;
                for (number, item) in list.iter().enumerate() {
                    Iteration { index, value, number, item }.fill(body, &mut out)?;
                }
                behind
            }
            _ => {
                return Err(format!(
                    "{{{{{action}}}}}: there are .PodCIDR, range .PodCIDRRanges, range .Routes"
                ));
            }
        };
    }
    out.push_str(rest);
    Ok(out)
}

/// One pass of a range.
struct Iteration<'t> {
    index: &'t str,
    value: &'t str,
    number: usize,
    item: &'t str,
}

impl Iteration<'_> {
    /// Appends the body of the range for this item.
    fn fill(&self, body: &str, out: &mut String) -> Result<(), String> {
        let mut rest = body;
        while let Some((before, action, behind)) = next(rest)? {
            out.push_str(before);
            rest = behind;
            match action.split_whitespace().collect::<Vec<_>>().as_slice() {
                [one] if *one == self.value || *one == "." => out.push_str(self.item),
                [one] if *one == self.index => out.push_str(&self.number.to_string()),
                ["if", one] if *one == self.index => {
                    let (inner, behind) = block(behind)?;
                    if self.number > 0 {
                        self.fill(inner, out)?;
                    }
                    rest = behind;
                }
                _ => return Err(format!("{{{{{action}}}}} can't stand in a range")),
            }
        }
        out.push_str(rest);
        Ok(())
    }
}

/// Splits at the next action, and returns the text before it, the action, and the rest. Returns `None` without an
/// action. `{{-` and `-}}` remove white space.
fn next(text: &str) -> Result<Option<(&str, &str, &str)>, String> {
    let Some((mut before, behind)) = text.split_once("{{") else { return Ok(None) };
    let (mut action, mut behind) = behind.split_once("}}").ok_or("a {{ without its }}")?;
    if let Some(trimmed) = action.strip_prefix("- ") {
        (action, before) = (trimmed, before.trim_end());
    }
    if let Some(trimmed) = action.strip_suffix(" -") {
        (action, behind) = (trimmed, behind.trim_start());
    }
    Ok(Some((before, action.trim(), behind)))
}

/// Splits the text at the `{{end}}` that closes it. Nested blocks are skipped.
fn block(text: &str) -> Result<(&str, &str), String> {
    let (mut depth, mut rest) = (0_usize, text);
    loop {
        let (before, action, behind) = next(rest)?.ok_or("a range or if without its {{end}}")?;
        match action.split_whitespace().next() {
            Some("range" | "if") => depth += 1,
            Some("end") if depth == 0 => {
                let length = before.as_ptr() as usize - text.as_ptr() as usize + before.len();
                return Ok((text.get(..length).unwrap_or_default(), behind));
            }
            Some("end") => depth -= 1,
            _ => {}
        }
        rest = behind;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containerds_template_is_filled_in() {
        let own: Vec<IpNetwork> =
            ["10.1.0.0/24", "fd00::/64"].iter().map(|cidr| cidr.parse().unwrap()).collect();
        let text = r#"{"ranges": [{{range $i, $range := .PodCIDRRanges}}{{if $i}}, {{end}}[{"subnet": "{{$range}}"}]{{end}}],
            "routes": [{{range $i, $route := .Routes}}{{if $i}}, {{end}}{"dst": "{{ $route }}"}{{end}}], "one": "{{.PodCIDR}}"}"#;
        let value: serde_json::Value = serde_json::from_str(&fill(text, &own).unwrap()).unwrap();
        assert_eq!(
            value,
            serde_json::json!({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]],
                "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}], "one": "10.1.0.0/24"})
        );
        assert_eq!(fill("a\n {{- range .Routes -}} {{.}}; {{- end}}", &own).unwrap(), "a0.0.0.0/0;::/0;");
        for bad in [
            "{{",
            "{{.Nothing}}",
            "{{range .X}}{{end}}",
            "{{range .Routes}}",
            "{{range .Routes}}{{template}}{{end}}",
        ] {
            assert!(fill(bad, &own).is_err(), "{bad}");
        }
    }
}
