//! Kubernetes quantities: `10M`, `1.5Gi`, `2e3`.

/// Returns the value of a quantity, rounded up as by the kubelet's `Quantity.Value`. A negative value is 0, and a too
/// large one the largest number. It returns `None` for a text that is no quantity.
pub(super) fn parse(text: &str) -> Option<u64> {
    let (negative, rest) = match text.as_bytes().first()? {
        b'+' => (false, text.get(1..)?),
        b'-' => (true, text.get(1..)?),
        _ => (false, text),
    };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let digits: String = [whole, fraction].concat();
    let digits = digits.trim_start_matches('0');
    // A number with too many digits counts as the largest.
    let mantissa: u128 = if digits.is_empty() { 0 } else { digits.parse().unwrap_or(u128::MAX) };
    let scale = i32::try_from(fraction.len()).ok()?;
    let (factor, exponent): (u128, i32) = match suffix {
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "" => (1, 0),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        "Ki" => (1 << 10, 0),
        "Mi" => (1 << 20, 0),
        "Gi" => (1 << 30, 0),
        "Ti" => (1 << 40, 0),
        "Pi" => (1 << 50, 0),
        "Ei" => (1 << 60, 0),
        _ => (1, suffix.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    let value = scaled(mantissa.saturating_mul(factor), exponent.checked_sub(scale)?);
    if negative {
        return Some(0);
    }
    Some(u64::try_from(value).unwrap_or(u64::MAX))
}

/// Returns `value` times ten to the power of `exponent`, rounded up, and at most the largest number.
fn scaled(value: u128, exponent: i32) -> u128 {
    match u32::try_from(exponent) {
        Ok(_) if value == 0 => 0,
        Ok(by) => 10_u128.checked_pow(by).map_or(u128::MAX, |power| value.saturating_mul(power)),
        Err(_) => match 10_u128.checked_pow(exponent.unsigned_abs()) {
            Some(power) => value.div_ceil(power),
            None => u128::from(value != 0),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities() {
        for (text, value) in [
            ("0", 0),
            ("1", 1),
            ("+12", 12),
            ("-3k", 0),
            ("1k", 1000),
            ("1.5k", 1500),
            (".5k", 500),
            ("1.k", 1000),
            ("0.0001", 1),
            ("100m", 1),
            ("1001m", 2),
            ("0.1n", 1),
            ("10M", 10_000_000),
            ("1Gi", 1 << 30),
            ("0.5Ki", 512),
            ("2e3", 2000),
            ("2E-3", 1),
            ("1P", 1_000_000_000_000_000),
            ("8E", 8_000_000_000_000_000_000),
            ("8Ei", 1 << 63),
            ("100E", u64::MAX),
            ("1e99999", u64::MAX),
            ("1e-99999", 1),
            ("0e99999", 0),
            ("999999999999999999999999999999999999999999999999", u64::MAX),
        ] {
            assert_eq!(parse(text), Some(value), "{text}");
        }
        for text in
            ["", "k", ".", "1..2", "1K", "1KB", "1 k", "1e", "1ee3", "0x10", "ten", "1e99999999999", "é"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
