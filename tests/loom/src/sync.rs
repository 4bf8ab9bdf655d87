//! The synchronization of the arena's threads, under loom's control.
//!
//! loom's types can't be constants, as those of the arena are, so each is created at its first use. All of them may
//! begin as zeros, because an arena doesn't fit on the small stacks of loom's threads.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicPtr, Ordering};

use loom::sync::atomic;

/// A value that is created at its first use, before there is another thread.
struct Late<T>(AtomicPtr<T>);

impl<T> Late<T> {
    const fn new() -> Self {
        Late(AtomicPtr::new(std::ptr::null_mut()))
    }

    fn get(&self, make: impl FnOnce() -> T) -> &T {
        if self.0.load(Ordering::Relaxed).is_null() {
            self.0.store(Box::into_raw(Box::new(make())), Ordering::Relaxed);
        }
        // SAFETY: it was made above, now or earlier, and stays until this value goes.
        unsafe { &*self.0.load(Ordering::Relaxed) }
    }
}

impl<T> Drop for Late<T> {
    fn drop(&mut self) {
        let made = *self.0.get_mut();
        if !made.is_null() {
            // SAFETY: it was made by `get`, and goes once.
            drop(unsafe { Box::from_raw(made) });
        }
    }
}

/// Like the atomic of the standard library, with the initial value false.
pub(crate) struct AtomicBool(Late<atomic::AtomicBool>);

impl AtomicBool {
    pub(crate) const fn new(first: bool) -> Self {
        assert!(!first);
        AtomicBool(Late::new())
    }

    pub(crate) fn swap(&self, value: bool, order: Ordering) -> bool {
        self.0.get(|| atomic::AtomicBool::new(false)).swap(value, order)
    }

    pub(crate) fn store(&self, value: bool, order: Ordering) {
        self.0.get(|| atomic::AtomicBool::new(false)).store(value, order);
    }
}

/// A value that only the holder of a lock accesses.
pub(crate) struct Guarded<T> {
    value: UnsafeCell<T>,
    /// Reports each access to loom.
    watched: Late<loom::cell::UnsafeCell<()>>,
}

impl<T> Guarded<T> {
    pub(crate) const fn new(value: T) -> Self {
        Guarded { value: UnsafeCell::new(value), watched: Late::new() }
    }

    pub(crate) fn with_mut<R>(&self, work: impl FnOnce(*mut T) -> R) -> R {
        self.watched.get(|| loom::cell::UnsafeCell::new(())).with_mut(|_| work(self.value.get()))
    }
}
