use std::cell::UnsafeCell;

pub(crate) use std::sync::atomic::AtomicBool;

/// A value that only the holder of a lock accesses.
pub(crate) struct Guarded<T>(UnsafeCell<T>);

impl<T> Guarded<T> {
    pub(crate) const fn new(value: T) -> Self {
        Guarded(UnsafeCell::new(value))
    }

    pub(crate) fn with_mut<R>(&self, work: impl FnOnce(*mut T) -> R) -> R {
        work(self.0.get())
    }
}
