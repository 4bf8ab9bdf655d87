//! An allocator for a process that lives a millisecond.
//!
//! Memory comes from one block that is part of the program, by moving a mark; nothing is
//! given back but the latest piece. When the block is full (a huge configuration, a store
//! with thousands of leases) the system's allocator takes over. A plugin run fits into the
//! block and so never asks the kernel for memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes. Untouched pages cost nothing.
const SIZE: usize = 512 << 10;

/// The block is a multiple of the page size, and aligned to one.
#[repr(C, align(4096))]
struct Block(UnsafeCell<[u8; SIZE]>);

/// See the module.
pub(crate) struct Arena {
    block: Block,
    used: AtomicUsize,
    /// The furthest that the mark has ever been: behind it, memory is still zero.
    touched: AtomicUsize,
}

// SAFETY: the block is handed out in pieces that don't overlap, claimed by an atomic
// compare-and-swap on `used`; no other thread reads or writes it.
unsafe impl Sync for Arena {}

impl Arena {
    /// An unused arena.
    pub(crate) const fn new() -> Self {
        Arena {
            block: Block(UnsafeCell::new([0; SIZE])),
            used: AtomicUsize::new(0),
            touched: AtomicUsize::new(0),
        }
    }

    fn start(&self) -> *mut u8 {
        self.block.0.get().cast()
    }

    /// The piece's offset, if it lies in the block.
    fn offset(&self, ptr: *mut u8) -> Option<usize> {
        let offset = (ptr as usize).wrapping_sub(self.start() as usize);
        (offset < SIZE).then_some(offset)
    }

    /// Moves the mark over a piece of `layout`; returns its offset and whether it is fresh, or
    /// `None` if it doesn't fit.
    fn claim(&self, layout: Layout) -> Option<(usize, bool)> {
        if layout.align() > align_of::<Block>() {
            return None;
        }
        let mut used = self.used.load(Ordering::Acquire);
        loop {
            let begin = used.checked_next_multiple_of(layout.align())?;
            let end = begin.checked_add(layout.size()).filter(|end| *end <= SIZE)?;
            match self.used.compare_exchange_weak(used, end, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    // Raised before a piece is handed out, so that a later claim of it isn't taken for fresh.
                    let touched = self.touched.fetch_max(end, Ordering::AcqRel);
                    return Some((begin, touched <= begin));
                }
                Err(now) => used = now,
            }
        }
    }

    /// Moves the mark from `from` to `to`, if it has not been moved since.
    fn move_mark(&self, from: usize, to: usize) -> bool {
        self.used.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

// SAFETY: pieces of the block are disjoint (see `claim`), aligned to what was asked up to
// the block's own alignment, and valid for the program's life; all else goes to `System`,
// told apart by address.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.claim(layout) {
            // SAFETY: the offset is inside the block.
            Some((offset, _)) => unsafe { self.start().add(offset) },
            // SAFETY: the caller's promise for `layout` is passed on.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some((offset, fresh)) = self.claim(layout) else {
            // SAFETY: the caller's promise for `layout` is passed on.
            return unsafe { System.alloc_zeroed(layout) };
        };
        // SAFETY: the piece is inside the block. A fresh one is zero as the program was
        // loaded, and its pages stay untouched; another one is cleared.
        unsafe {
            let ptr = self.start().add(offset);
            if !fresh {
                ptr.write_bytes(0, layout.size());
            }
            ptr
        }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        match self.offset(ptr) {
            Some(offset) => {
                self.move_mark(offset + layout.size(), offset);
            }
            // SAFETY: not in the block, so it came from `System` with this layout.
            None => unsafe { System.dealloc(ptr, layout) },
        }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let Some(offset) = self.offset(ptr) else {
            // SAFETY: as `dealloc`; the caller's promise for `new_size` is passed on.
            return unsafe { System.realloc(ptr, layout, new_size) };
        };
        // The latest piece grows where it is.
        let fits = offset.checked_add(new_size).is_some_and(|end| end <= SIZE);
        if fits && self.move_mark(offset + layout.size(), offset + new_size) {
            self.touched.fetch_max(offset + new_size, Ordering::AcqRel);
            return ptr;
        }
        if new_size <= layout.size() {
            return ptr;
        }
        // SAFETY: the caller promises that `new_size` makes a valid layout with this
        // alignment; old and new piece don't overlap, and the old one has `layout.size()`.
        unsafe {
            let new = self.alloc(Layout::from_size_align_unchecked(new_size, layout.align()));
            if !new.is_null() {
                new.copy_from_nonoverlapping(ptr, layout.size());
            }
            new
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static ARENA: Arena = Arena::new();

    #[test]
    fn pieces_are_aligned_disjoint_and_survive_growth() {
        let mut pieces = Vec::new();
        for n in 1..2000_usize {
            let layout = Layout::from_size_align(n, 1 << (n % 9)).unwrap();
            // SAFETY: the layout is not empty; the piece is written within its size.
            let ptr = unsafe { ARENA.alloc(layout) };
            assert_eq!(ptr as usize % layout.align(), 0);
            // SAFETY: as above.
            unsafe { ptr.write_bytes(n as u8, n) };
            pieces.push((ptr, layout));
        }
        for (n, (ptr, layout)) in pieces.iter_mut().enumerate() {
            // SAFETY: allocated above with this layout.
            *ptr = unsafe { ARENA.realloc(*ptr, *layout, layout.size() * 3) };
            *layout = Layout::from_size_align(layout.size() * 3, layout.align()).unwrap();
            // SAFETY: at least a third of the piece was written above.
            let bytes = unsafe { std::slice::from_raw_parts(*ptr, n + 1) };
            assert!(bytes.iter().all(|byte| *byte == (n + 1) as u8));
        }
        for (ptr, layout) in pieces {
            // SAFETY: allocated above with this layout, freed once.
            unsafe { ARENA.dealloc(ptr, layout) };
        }
        // Zeroed memory is zero, also where it was used before.
        let layout = Layout::from_size_align(4096, 8).unwrap();
        for _ in 0..3 {
            // SAFETY: the layout is not empty; the piece is used within its size, freed once.
            unsafe {
                let ptr = ARENA.alloc_zeroed(layout);
                assert!(std::slice::from_raw_parts(ptr, 4096).iter().all(|byte| *byte == 0));
                ptr.write_bytes(7, 4096);
                ARENA.dealloc(ptr, layout);
            }
        }
    }
}
