//! Domain names for a pod's resolv.conf. A server may send any bytes, so invalid names are left out.

/// The most bytes that are read for all names together. A usual message has no more.
const LONGEST: usize = 1024;
/// The longest name in bytes (RFC 1035, section 2.3.4).
const LONGEST_NAME: usize = 253;
/// The longest part of a name between two dots, in bytes.
const LONGEST_LABEL: usize = 63;

/// Returns the name of an option that has it as text (RFC 2132, section 3.17). `None` if it is no domain name.
pub(crate) fn text(bytes: &[u8]) -> Option<String> {
    // Some servers end the text with a NUL.
    let text = std::str::from_utf8(bytes).ok()?.trim_end_matches('\0');
    is_name(text).then(|| text.to_owned())
}

/// Returns true if the text is a domain name with letters, digits, `-` and `_`. It may end with dots.
fn is_name(text: &str) -> bool {
    text.len() <= LONGEST_NAME && text.trim_end_matches('.').split('.').all(is_label)
}

/// Returns true if the text can be the part of a name between two dots: letters, digits, hyphens and underscores.
fn is_label(label: &str) -> bool {
    (1..=LONGEST_LABEL).contains(&label.len())
        && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

/// Returns the valid names of an option in DNS encoding, with pointers to earlier names (RFC 3397). A damaged name ends
/// the list.
pub(crate) fn search(bytes: &[u8]) -> Vec<String> {
    let bytes = bytes.get(..LONGEST).unwrap_or(bytes);
    let (mut names, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let Some((name, behind)) = name(bytes, at) else { break };
        names.extend(Some(name).filter(|name| is_name(name)));
        at = behind;
    }
    names
}

/// Returns the name at `at`, and the position behind it. `None` if it is damaged. The name may still be invalid.
fn name(bytes: &[u8], mut at: usize) -> Option<(String, usize)> {
    let (mut name, mut behind) = (String::new(), None);
    loop {
        let length = usize::from(*bytes.get(at)?);
        match length {
            0 => return Some((name, behind.unwrap_or(at + 1))),
            0xc0.. => {
                // A pointer must lead backwards. A name may still lead back to itself, as labels lead forwards. Each
                // round makes the name longer, so its longest length ends the loop.
                let to = (length & 0x3f) << 8 | usize::from(*bytes.get(at + 1)?);
                behind = behind.or(Some(at + 2));
                if to >= at {
                    return None;
                }
                at = to;
            }
            64.. => return None,
            _ => {
                let label = bytes.get(at + 1..at + 1 + length)?;
                if !name.is_empty() {
                    name.push('.');
                }
                // Bytes other than ASCII become characters that make the name invalid.
                name.extend(label.iter().map(|byte| char::from(*byte)));
                if name.len() > LONGEST_NAME {
                    return None;
                }
                at += 1 + length;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_in_a_search_list_are_resolved() {
        // RFC 3397, section 2: eng.apple.com and marketing.apple.com.
        let bytes = b"\x03eng\x05apple\x03com\x00\x09marketing\xc0\x04";
        assert_eq!(search(bytes), ["eng.apple.com", "marketing.apple.com"]);
    }

    #[test]
    fn invalid_names_are_left_out() {
        for bytes in [
            &b"\x03a b\x00"[..],
            b"\xc0\x00",
            b"\x03ab",
            b"\x40x\x00",
            b"\x01\n\x00",
            b"\x00",
            b"\x02\xc3\xa4\x00",
        ] {
            assert_eq!(search(bytes), [""; 0], "{bytes:?}");
        }
        assert_eq!(search(b"\x01a\x00\x01 \x00\x01b\xc0\x00"), ["a", "b.a"]);
        assert_eq!(text(b"example.org\0").as_deref(), Some("example.org"));
        for bytes in [&b""[..], b"a\nnameserver 10.9.9.9", b"a..b", b"\xff", b"a b", &[b'a'; 64]] {
            assert_eq!(text(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn circular_references_end() {
        let mut bytes = b"\x01a\x00".to_vec();
        for _ in 0..500 {
            bytes.extend_from_slice(b"\x01b\xc0\x00");
        }
        assert!(search(&bytes).len() <= 500);
    }
}
