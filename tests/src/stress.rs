//! How much a test tries. `scripts/stress` tries more than `scripts/test`.

/// Returns how many points a test tries: `otherwise`, or what CNIMBLE_STRESS says, a number or `all`.
///
/// # Panics
/// If CNIMBLE_STRESS is neither.
pub fn sample_size(otherwise: usize) -> usize {
    match std::env::var("CNIMBLE_STRESS").as_deref() {
        Ok("all") => usize::MAX,
        Ok(count) => count.parse().expect("CNIMBLE_STRESS: a number, or all"),
        Err(_) => otherwise,
    }
}
