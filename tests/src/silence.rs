//! Looks for something that must not happen.

use std::time::Duration;

/// The time for which a test looks for an event that must not come.
///
/// A busy machine cannot make such a test fail, but it can hide the event. Each look is therefore
/// announced as `SILENCE`, and the runner counts them. Wait for a later event instead where one must come.
pub fn silence(time: Duration) -> Duration {
    crate::announce("SILENCE", &format!("nothing may happen for {time:?}"));
    time
}

/// Sleeps for the time of a [`silence`].
pub fn keep_silent(time: Duration) {
    std::thread::sleep(silence(time));
}
