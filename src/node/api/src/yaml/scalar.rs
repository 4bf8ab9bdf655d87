//! The meaning of plain words in YAML.
//!
//! Kubernetes reads manifests with a YAML library that knows the words of YAML 1.1 and 1.2: `yes` and `on` are true,
//! and `0644` is octal. This reader does the same, because a manifest must mean the same here as to the kubelet.

use serde_json::{Number, Value};

/// Returns the value of a word without quotes. It returns `None` if JSON has no such value (infinity, not a number).
pub(super) fn plain(text: &str) -> Option<Value> {
    Some(match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Value::Bool(true),
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => Value::Bool(false),
        ".nan" | ".NaN" | ".NAN" => return None,
        _ => {
            let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
            if matches!(unsigned, ".inf" | ".Inf" | ".INF") {
                return None;
            }
            integer(text, unsigned).or_else(|| float(text, unsigned)).unwrap_or_else(|| Value::from(text))
        }
    })
}

/// Returns the value of an integer, or `None` if the text is none or exceeds 64 bits.
fn integer(text: &str, unsigned: &str) -> Option<Value> {
    if !unsigned.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let digits = unsigned.replace('_', "");
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x', ..] => (16, digits.get(2..)?),
        [b'0', b'o', ..] => (8, digits.get(2..)?),
        [b'0', b'b', ..] => (2, digits.get(2..)?),
        [b'0', _, ..] => (8, digits.get(1..)?),
        _ => (10, digits.as_str()),
    };
    // from_str_radix accepts another sign, which must not count.
    if !digits.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    let number = u64::from_str_radix(digits, radix).ok()?;
    if text.starts_with('-') {
        return i64::try_from(-i128::from(number)).ok().map(Value::from);
    }
    Some(Value::from(number))
}

/// Returns the value of a decimal number, or `None` if the text is none.
fn float(text: &str, unsigned: &str) -> Option<Value> {
    let first = unsigned.bytes().next()?;
    if !(first.is_ascii_digit() || first == b'.')
        || !unsigned.bytes().all(|byte| byte.is_ascii_digit() || b".eE+-_".contains(&byte))
    {
        return None;
    }
    let number: f64 = text.replace('_', "").parse().ok()?;
    Number::from_f64(number).map(Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn words_mean_what_they_mean_to_the_kubelet() {
        for (text, value) in [
            ("", json!(null)),
            ("~", json!(null)),
            ("yes", json!(true)),
            ("Off", json!(false)),
            ("y", json!("y")),
            ("80", json!(80)),
            ("-1", json!(-1)),
            ("+7", json!(7)),
            ("1_000", json!(1000)),
            ("0644", json!(420)),
            ("0o644", json!(420)),
            ("0x1F", json!(31)),
            ("0", json!(0)),
            ("18446744073709551615", json!(u64::MAX)),
            ("-9223372036854775808", json!(i64::MIN)),
            ("1.5", json!(1.5)),
            ("1e3", json!(1000.0)),
            ("10.0.0.1", json!("10.0.0.1")),
            ("1M", json!("1M")),
            ("0x", json!("0x")),
            ("0x+1", json!("0x+1")),
            ("08", json!(8.0)),
            ("-", json!("-")),
            (".", json!(".")),
            ("2001-12-14", json!("2001-12-14")),
            ("00:11:22:33:44:55", json!("00:11:22:33:44:55")),
        ] {
            assert_eq!(plain(text), Some(value), "{text}");
        }
        for none in [".inf", "-.Inf", ".nan"] {
            assert_eq!(plain(none), None, "{none}");
        }
    }
}
