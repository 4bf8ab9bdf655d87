//! JSON as Go writes it.

use serde::Serialize;

/// Four-space JSON as Go's `json.MarshalIndent(v, "", "    ")` writes it. A struct's keys come in the order of its
/// fields, a `Value`'s sorted.
pub fn to_pretty<T: Serialize + ?Sized>(value: &T) -> String {
    let mut out = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, formatter);
    // Writing into memory can't fail; an empty text would be the visible sign.
    if value.serialize(&mut serializer).is_err() {
        return String::new();
    }
    go_escapes(String::from_utf8(out).unwrap_or_default())
}

fn go_escapes(text: String) -> String {
    // U+2028 and U+2029 begin with the byte E2.
    if !text.bytes().any(|byte| matches!(byte, b'<' | b'>' | b'&' | 0xE2)) {
        return text;
    }
    // Outside strings none of these can occur, so a plain replacement is exact.
    text.replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}
