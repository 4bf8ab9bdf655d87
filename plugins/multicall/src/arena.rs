//! An allocator for a process that runs for a millisecond.
//!
//! Memory comes from one block of the program. A freed piece goes to the list of its size, from which a later request
//! takes it. The first access to a page costs as much as a hundred allocations (2.5 µs on Linux 6.18). So few pages
//! matter more than few instructions.
//!
//! If the block is full (a huge configuration, thousands of leases), the system's allocator asks the kernel for memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::Ordering;

// `tests/loom` replaces these types by its models.
use crate::sync::{AtomicBool, Guarded};

/// The least alignment of a piece, in bytes. A request with a larger one gets a new piece, never a freed one.
const ALIGN: usize = 8;
/// The number of sizes with a list of freed pieces: 16, 24, 32, 48, 64 and so on to 64 KiB.
const SIZES: usize = 25;

/// The memory of an [`Arena`]. `SIZE` is a multiple of the page size, to which the block is aligned.
#[repr(C, align(4096))]
struct Block<const SIZE: usize>(UnsafeCell<[u8; SIZE]>);

/// The state of the block, as offsets into it. All begin with zero, so that the block takes no space in the file.
struct Marks {
    /// Memory from this offset on is not allocated.
    used: usize,
    /// The highest value that `used` has had. Memory from there on is still zero.
    touched: usize,
    /// The latest freed piece of each size, as its offset plus [`ALIGN`], or 0 for none. Its first bytes hold the next
    /// one in the same form.
    free: [usize; SIZES],
}

/// The allocator. Pages of `SIZE` that are never touched cost nothing.
pub(crate) struct Arena<const SIZE: usize> {
    block: Block<SIZE>,
    marks: Guarded<Marks>,
    /// True while a thread uses `marks`.
    busy: AtomicBool,
}

// SAFETY: `marks` and the freed pieces are used only by the thread that holds `busy` (see `locked`). An
// allocated piece belongs to its owner.
unsafe impl<const SIZE: usize> Sync for Arena<SIZE> {}

/// Returns the index of the list for pieces of `size` bytes, and the bytes that each of its pieces has. `None` above 64
/// KiB: such pieces have exactly their size and are in no list.
fn class(size: usize) -> Option<(usize, usize)> {
    let last = size.max(9) - 1;
    let power = last.ilog2() as usize;
    let step = 1 << (power - 1);
    // Each power of two has two sizes: itself and half more.
    let upper = usize::from(last & step != 0);
    let (index, bytes) = if power == 3 { (0, 16) } else { (2 * power - 7 + upper, (3 + upper) * step) };
    (index < SIZES).then_some((index, bytes))
}

/// Returns the bytes of a piece for `size` bytes: those of its class, or exactly `size` if it has none.
fn piece_size(size: usize, align: usize) -> usize {
    if align <= ALIGN { class(size).map_or(size, |(_, bytes)| bytes) } else { size }
}

impl Marks {
    /// Takes a freed piece of the class, or a new one after `used`. Returns its offset, and how many bytes from there
    /// on may be other than zero. That number may exceed the size of the piece. `None` if it does not fit, or if its
    /// alignment is larger than that of the block.
    fn claim<const SIZE: usize>(&mut self, arena: &Arena<SIZE>, layout: Layout) -> Option<(usize, usize)> {
        let mut size = layout.size();
        if let Some((index, bytes)) = class(size).filter(|_| layout.align() <= ALIGN) {
            if let Some(first) = self.free.get_mut(index).filter(|first| **first != 0) {
                let offset = *first - ALIGN;
                // SAFETY: the piece is inside the block, is aligned for a `usize`, and holds the offset
                // of the next one since it was freed.
                *first = unsafe { arena.start().add(offset).cast::<usize>().read() };
                return Some((offset, bytes));
            }
            size = bytes;
        }
        if layout.align() > align_of::<Block<SIZE>>() {
            return None;
        }
        let begin = self.used.checked_next_multiple_of(layout.align().max(ALIGN))?;
        let end = begin.checked_add(size).filter(|end| *end <= SIZE)?;
        let before = self.touched.saturating_sub(begin);
        self.used = end;
        self.touched = self.touched.max(end);
        Some((begin, before))
    }

    /// Extends the latest piece in place. Returns false, and changes nothing, if it is not the latest one or the block
    /// has no room.
    fn grow<const SIZE: usize>(&mut self, offset: usize, old: Layout, new_size: usize) -> bool {
        let end = offset.checked_add(piece_size(new_size, old.align())).filter(|end| *end <= SIZE);
        let Some(end) = end.filter(|_| offset + piece_size(old.size(), old.align()) == self.used) else {
            return false;
        };
        self.used = end;
        self.touched = self.touched.max(end);
        true
    }

    /// Frees a piece. The latest one is given back to the block, any other one goes to the list of its class. A piece
    /// without a class, or with a larger alignment, is lost until the process ends.
    fn release<const SIZE: usize>(&mut self, arena: &Arena<SIZE>, offset: usize, layout: Layout) {
        let class = class(layout.size()).filter(|_| layout.align() <= ALIGN);
        if offset + class.map_or(layout.size(), |(_, bytes)| bytes) == self.used {
            self.used = offset;
        } else if let Some((index, _)) = class
            && let Some(first) = self.free.get_mut(index)
        {
            // SAFETY: the piece is inside the block, has at least 16 bytes, is aligned for a `usize` (as
            // each with a class is), and its owner has just freed it.
            unsafe { arena.start().add(offset).cast::<usize>().write(*first) };
            *first = offset + ALIGN;
        }
    }
}

impl<const SIZE: usize> Arena<SIZE> {
    /// Returns an arena without pieces. It is the initial value of a static.
    pub(crate) const fn new() -> Self {
        Arena {
            block: Block(UnsafeCell::new([0; SIZE])),
            marks: Guarded::new(Marks { used: 0, touched: 0, free: [0; SIZES] }),
            busy: AtomicBool::new(false),
        }
    }

    /// Returns the address of the block.
    fn start(&self) -> *mut u8 {
        self.block.0.get().cast()
    }

    /// Returns the offset of a piece in the block. `None` if the system's allocator made it.
    fn offset(&self, ptr: *mut u8) -> Option<usize> {
        let offset = (ptr as usize).wrapping_sub(self.start() as usize);
        (offset < SIZE).then_some(offset)
    }

    /// Runs `work` alone. Returns `None`, without running it, if another thread or code that a signal interrupted uses
    /// the marks. The caller must not wait for that code, so it uses the system's allocator.
    fn locked<T>(&self, work: impl FnOnce(&mut Marks) -> T) -> Option<T> {
        if self.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: only the caller that set `busy` gets here, and it resets `busy` afterwards. `work`
        // neither allocates nor panics.
        let outcome = self.marks.with_mut(|marks| work(unsafe { &mut *marks }));
        self.busy.store(false, Ordering::Release);
        Some(outcome)
    }

    /// Does what [`Marks::claim`] does, or returns `None` if the marks are in use.
    fn claim(&self, layout: Layout) -> Option<(usize, usize)> {
        self.locked(|marks| marks.claim(self, layout)).flatten()
    }
}

// SAFETY: pieces of the block are disjoint (see `Marks`), aligned as requested up to the block's own alignment, and
// valid until they are freed. All other memory comes from `System`, and the address tells the difference.
unsafe impl<const SIZE: usize> GlobalAlloc for Arena<SIZE> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.claim(layout) {
            // SAFETY: the offset is inside the block.
            Some((offset, _)) => unsafe { self.start().add(offset) },
            // SAFETY: the caller's promise for `layout` is passed on.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some((offset, before)) = self.claim(layout) else {
            // SAFETY: the caller's promise for `layout` is passed on.
            return unsafe { System.alloc_zeroed(layout) };
        };
        // SAFETY: the piece is inside the block. Bytes that were never in use are zero since the program
        // was loaded, and their pages stay untouched. The other bytes are cleared.
        unsafe {
            let ptr = self.start().add(offset);
            ptr.write_bytes(0, before.min(layout.size()));
            ptr
        }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        match self.offset(ptr) {
            // A piece that can't be freed, because the marks are in use, stays allocated.
            Some(offset) => drop(self.locked(|marks| marks.release(self, offset, layout))),
            // SAFETY: not in the block, so it came from `System` with this layout.
            None => unsafe { System.dealloc(ptr, layout) },
        }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let Some(offset) = self.offset(ptr) else {
            // SAFETY: as `dealloc`; the caller's promise for `new_size` is passed on.
            return unsafe { System.realloc(ptr, layout, new_size) };
        };
        // A piece has all bytes of its class, so a new size of the same class needs no change. A shrunk piece stays as
        // it is, and is freed later with the smaller layout.
        let same =
            layout.align() <= ALIGN && class(layout.size()).is_some_and(|old| class(new_size) == Some(old));
        if same
            || new_size <= layout.size()
            || self.locked(|marks| marks.grow::<SIZE>(offset, layout, new_size)) == Some(true)
        {
            return ptr;
        }
        // SAFETY: the caller promises that `new_size` makes a valid layout with this alignment. Old and
        // new piece don't overlap, and the copied bytes are in both.
        unsafe {
            let new = self.alloc(Layout::from_size_align_unchecked(new_size, layout.align()));
            if !new.is_null() {
                new.copy_from_nonoverlapping(ptr, layout.size());
                self.dealloc(ptr, layout);
            }
            new
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 512 << 10;

    static ARENA: Arena<SIZE> = Arena::new();

    #[test]
    fn each_size_has_a_class_with_at_least_its_bytes() {
        let mut sizes = std::collections::BTreeSet::new();
        for size in 1..=65536 {
            let (index, bytes) = class(size).unwrap();
            assert!(bytes >= size && bytes % ALIGN == 0 && bytes <= 16.max(size * 3 / 2), "{size}: {bytes}");
            assert!(index < SIZES);
            sizes.insert((index, bytes));
        }
        assert_eq!(sizes.len(), SIZES);
        assert_eq!(class(65537), None);
    }

    #[test]
    fn a_freed_piece_is_used_again_by_its_size() {
        static ARENA: Arena<SIZE> = Arena::new();
        let layout = |size| Layout::from_size_align(size, 8).unwrap();
        // SAFETY: no layout is empty. Each piece is freed once, with its own layout.
        unsafe {
            let first = ARENA.alloc(layout(100));
            let other = ARENA.alloc(layout(40));
            ARENA.dealloc(first, layout(100));
            assert_ne!(ARENA.alloc(layout(40)), first);
            assert_eq!(ARENA.alloc(layout(128)), first);
            // The latest piece grows in place, an earlier one moves.
            let last = ARENA.alloc(layout(64));
            assert_eq!(ARENA.realloc(last, layout(64), 5000), last);
            assert_ne!(ARENA.realloc(other, layout(40), 400), other);
            assert_eq!(ARENA.alloc(layout(48)), other);
        }
    }

    #[test]
    fn threads_do_not_get_each_others_pieces() {
        static ARENA: Arena<SIZE> = Arena::new();
        std::thread::scope(|scope| {
            for mark in 1..=4_u8 {
                scope.spawn(move || {
                    let layout = |n: usize| Layout::from_size_align(1 + n % 700, 8).unwrap();
                    let mut held = std::collections::VecDeque::new();
                    for n in 0..20_000 {
                        // SAFETY: no layout is empty; each piece is used within its size and freed once.
                        unsafe {
                            let ptr = ARENA.alloc(layout(n));
                            ptr.write_bytes(mark, layout(n).size());
                            held.push_back((ptr, layout(n)));
                            if held.len() > 50 {
                                let (ptr, layout) = held.pop_front().unwrap();
                                let bytes = std::slice::from_raw_parts(ptr, layout.size());
                                assert!(bytes.iter().all(|byte| *byte == mark));
                                ARENA.dealloc(ptr, layout);
                            }
                        }
                    }
                });
            }
        });
    }

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
    }

    #[test]
    fn zeroed_memory_is_zero_also_where_some_of_it_was_used_before() {
        static ARENA: Arena<SIZE> = Arena::new();
        for size in [4096, 4096, 8192, 60000, 200_000, 100_000] {
            let layout = Layout::from_size_align(size, 8).unwrap();
            // SAFETY: the layout is not empty; the piece is used within its size, freed once.
            unsafe {
                let ptr = ARENA.alloc_zeroed(layout);
                assert!(ARENA.offset(ptr).is_some());
                assert!(std::slice::from_raw_parts(ptr, size).iter().all(|byte| *byte == 0), "{size}");
                ptr.write_bytes(7, size);
                ARENA.dealloc(ptr, layout);
            }
        }
    }
}
