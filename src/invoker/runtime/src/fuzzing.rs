//! The reader of cached results, for fuzzers.

/// Takes any bytes for a file of the cache.
pub fn cache(bytes: &[u8]) {
    super::cache::fuzz(bytes);
}

/// The entry in a cache file, for further readers.
pub fn entry(bytes: &[u8]) -> Option<super::Entry> {
    super::cache::entry_of(bytes)
}
