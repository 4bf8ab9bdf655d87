//! The readers of what sources are told, for fuzzers.

/// Takes any bytes for an API server's answer, and for where a URL's answer leads to.
pub(crate) fn server(bytes: &[u8]) {
    super::listed::fuzz(bytes);
    super::url::fuzz(&String::from_utf8_lossy(bytes));
}
