//! Splits a page of a list into items while it arrives. A page thus needs no more memory than its largest item.

use crate::wire::Envelope;

/// The largest item in bytes. etcd accepts 1.5 MiB for an object, in a shorter form than JSON.
pub(super) const ITEM_LIMIT: usize = 8 << 20;
/// The limit of everything around the items, in bytes.
const ENVELOPE_LIMIT: usize = 64 << 10;

/// Splits a list into its objects. It only counts braces and recognizes strings. Other errors of JSON are found when an
/// object is parsed.
#[derive(Default)]
pub(super) struct Splitter {
    envelope: Vec<u8>,
    item: Vec<u8>,
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// Whether the position is within the list of items, whose depth is 2.
    in_items: bool,
}

/// The reason why a page cannot be split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum SplitError {
    #[error("an item is larger than {ITEM_LIMIT} bytes")]
    Item,
    #[error("what is around its items is larger than {ENVELOPE_LIMIT} bytes")]
    Envelope,
    #[error("its braces don't match")]
    Braces,
}

impl Splitter {
    /// Takes the next piece of the page, and passes each item that ends in it to `each`.
    pub(super) fn take_piece<E: From<SplitError>>(
        &mut self,
        piece: &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        for byte in piece {
            let within = self.in_items && self.depth > 2;
            let (buffer, limit, over) = if within || (self.in_items && *byte == b'{' && !self.in_string) {
                (&mut self.item, ITEM_LIMIT, SplitError::Item)
            } else {
                (&mut self.envelope, ENVELOPE_LIMIT, SplitError::Envelope)
            };
            if buffer.len() >= limit {
                return Err(over.into());
            }
            // Commas and white space between items would add up.
            if within || !self.in_items || !(*byte == b',' || byte.is_ascii_whitespace()) {
                buffer.push(*byte);
            }
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => {
                    self.depth += 1;
                    if *byte == b'[' && self.depth == 2 {
                        self.in_items = names_items(&self.envelope);
                    }
                }
                b'}' | b']' => {
                    self.depth = self.depth.checked_sub(1).ok_or(SplitError::Braces)?;
                    if self.in_items && self.depth == 2 {
                        let result = each(&self.item);
                        self.item.clear();
                        // The memory of a very large item is freed.
                        self.item.shrink_to(64 << 10);
                        result?;
                    }
                    if self.depth < 2 {
                        self.in_items = false;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the page without its items, after all pieces. Fails if it is no valid JSON.
    pub(super) fn finish(self) -> Result<Envelope, String> {
        serde_json::from_slice(&self.envelope).map_err(|err| err.to_string())
    }
}

/// Returns whether a list that begins at the end of these bytes is the value of the key `items`.
fn names_items(envelope: &[u8]) -> bool {
    let text = envelope.strip_suffix(b"[").unwrap_or(envelope).trim_ascii_end();
    text.strip_suffix(b":").is_some_and(|text| text.trim_ascii_end().ends_with(b"\"items\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the items of a page that arrives in pieces of this size, and the rest.
    fn split(text: &str, size: usize) -> (Vec<String>, Result<Envelope, String>) {
        let mut splitter = Splitter::default();
        let mut items = Vec::new();
        for piece in text.as_bytes().chunks(size) {
            let each = |item: &[u8]| -> Result<(), SplitError> {
                items.push(String::from_utf8(item.to_vec()).unwrap());
                Ok(())
            };
            if let Err(err) = splitter.take_piece(piece, each) {
                return (items, Err(err.to_string()));
            }
        }
        (items, splitter.finish())
    }

    #[test]
    fn items_are_given_away_wherever_pieces_end() {
        let text = r#" {"kind":"PodList", "metadata":{"resourceVersion":"7","continue":"x","items":["no"]} ,
            "items" : [ {"a":"]}\"{"} , {"b":[{"items":[1]}]} ] , "other":[{"c":1}] } "#;
        for size in 1..text.len() {
            let (items, envelope) = split(text, size);
            assert_eq!(items, [r#"{"a":"]}\"{"}"#, r#"{"b":[{"items":[1]}]}"#], "{size}");
            let envelope = envelope.unwrap();
            assert_eq!(envelope.metadata.resource_version.as_deref(), Some("7"));
            assert_eq!((envelope.metadata.token.as_deref(), envelope.items.unwrap().len()), (Some("x"), 0));
        }
        assert!(split(r#"{"items":null}"#, 3).1.unwrap().items.is_none());
    }

    #[test]
    fn what_is_no_page_is_an_error_and_never_too_large() {
        for text in ["", "{", "]", "x", r#"{"items":[{]}"#, r#"{"items":[{}}"#, r#"{"items":[1,{]"#] {
            assert!(split(text, 4).1.is_err(), "{text}");
        }
        let long = "x".repeat(ENVELOPE_LIMIT);
        for text in
            [format!("{{\"a\":\"{long}\"}}"), format!("{{\"items\":[\"{long}\"]}}"), "[".repeat(70_000)]
        {
            assert_eq!(split(&text, 1000).1.err().unwrap(), SplitError::Envelope.to_string());
        }
        let item = format!("{{\"items\":[{{\"a\":\"{}\"}}]}}", "x".repeat(ITEM_LIMIT));
        assert_eq!(split(&item, 1000).1.err().unwrap(), SplitError::Item.to_string());
        // Many items with much white space between them do not exceed the limit.
        let many = format!("{{\"items\":[{}{{}}]}}", "{} ,\n      ".repeat(20_000));
        assert_eq!(split(&many, 1000).0.len(), 20_001);
    }
}
