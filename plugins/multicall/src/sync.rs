//! The types of shared state in [`crate::arena`]. `tests/loom` replaces them by its models.

use std::cell::UnsafeCell;

pub(crate) use std::sync::atomic::AtomicBool;

/// A value that only the holder of a lock accesses. Nothing here enforces that.
pub(crate) struct Guarded<T>(UnsafeCell<T>);

impl<T> Guarded<T> {
    pub(crate) const fn new(value: T) -> Self {
        Guarded(UnsafeCell::new(value))
    }

    /// Passes a pointer to the value. The caller holds the lock while `work` uses it.
    pub(crate) fn with_mut<R>(&self, work: impl FnOnce(*mut T) -> R) -> R {
        work(self.0.get())
    }
}
