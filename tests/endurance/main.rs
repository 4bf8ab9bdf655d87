//! Faults that appear only after a while. The tests run many concurrent attachments for some time, the history of a
//! whole node with kills, and many pods in sequence. `scripts/stress mix`, `history` and `soak` run them for a long
//! time.
#![cfg(test)]

mod chain;
mod guarded;
mod history;
mod mix;
mod soak;

/// Returns a number from the environment, or else the default.
fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable)
        .ok()
        .filter(|text| !text.is_empty())
        .map_or(default, |text| text.parse().unwrap_or_else(|err| panic!("{variable}={text}: {err}")))
}

/// Random numbers from a seed (splitmix64), for reproducible choices.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }
}
