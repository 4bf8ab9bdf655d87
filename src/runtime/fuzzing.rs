//! The reader of cached results, for fuzzers.

/// Takes any bytes for a file of the cache.
pub fn cache(bytes: &[u8]) {
    super::cache::fuzz(bytes);
}
