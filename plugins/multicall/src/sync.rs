//! What the arena's threads meet at.

use std::cell::UnsafeCell;

pub(crate) use std::sync::atomic::AtomicBool;

/// A value that only the holder of a lock looks at.
pub(crate) struct Guarded<T>(UnsafeCell<T>);

impl<T> Guarded<T> {
    /// Holds the value.
    pub(crate) const fn new(value: T) -> Self {
        Guarded(UnsafeCell::new(value))
    }

    /// Calls `work` with the place of the value.
    pub(crate) fn with_mut<R>(&self, work: impl FnOnce(*mut T) -> R) -> R {
        work(self.0.get())
    }
}
