//! Tests the plugins' allocator, `plugins/multicall/src/arena.rs`, with [loom](https://docs.rs/loom) in control of its
//! atomic and its cell.
//!
//! loom tries every order of two threads' steps. It also tries every value that the C11 memory model lets an atomic
//! load return. Concurrent access to a cell is a failure. So is an access that isn't ordered after the last change.

#[path = "../../../plugins/multicall/src/arena.rs"]
#[allow(dead_code)] // `Arena::new`, a constant, which loom's own types can't be
mod arena;
mod sync;

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicUsize, Ordering};

use loom::sync::Arc;
use loom::thread;

use arena::Arena;

/// The number of orders that were tried, which is not a part of the model.
static ORDERS: AtomicUsize = AtomicUsize::new(0);

/// The smallest usable block, as loom's stacks are small.
type Small = Arena<4096>;

/// Returns an unused arena, created in its final place.
fn unused() -> Arc<Small> {
    ORDERS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: zeros are the block, the marks, a null pointer and false: what `Arena::new` makes.
    Arc::from_std(unsafe { std::sync::Arc::<Small>::new_zeroed().assume_init() })
}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

/// A piece of memory, filled with a byte of its owner.
struct Piece(*mut u8, usize, u8);

impl Piece {
    fn new(arena: &Small, size: usize, mark: u8) -> Self {
        // SAFETY: the layout isn't empty, and the piece is as large.
        unsafe {
            let at = arena.alloc(layout(size));
            at.write_bytes(mark, size);
            Piece(at, size, mark)
        }
    }

    /// Checks that no other thread has written into the piece, and frees it.
    fn free(self, arena: &Small) {
        let Piece(at, size, mark) = self;
        // SAFETY: it was allocated with this layout, and is freed once.
        unsafe {
            assert!(std::slice::from_raw_parts(at, size).iter().all(|byte| *byte == mark));
            arena.dealloc(at, layout(size));
        }
    }
}

/// The work of a thread: three pieces, one of which reuses memory.
fn work(arena: &Small, mark: u8) {
    let first = Piece::new(arena, 24, mark);
    let second = Piece::new(arena, 24, mark);
    first.free(arena);
    let third = Piece::new(arena, 20, mark);
    second.free(arena);
    third.free(arena);
}

/// Both threads allocate three pieces and free them.
fn two_threads_never_have_one_piece() {
    loom::model(|| {
        let arena = unused();
        // Allocated before there is another thread.
        work(&arena, 1);
        let other = {
            let arena = Arc::clone(&arena);
            thread::spawn(move || work(&arena, 2))
        };
        work(&arena, 3);
        other.join().unwrap();
    });
}

/// A piece that is passed to another thread, which grows and frees it.
fn a_piece_may_be_freed_by_another_thread() {
    loom::model(|| {
        let arena = unused();
        let Piece(at, size, mark) = Piece::new(&arena, 24, 1);
        let address = at as usize;
        let other = {
            let arena = Arc::clone(&arena);
            thread::spawn(move || {
                // SAFETY: it was allocated with this layout; the new size isn't 0.
                let at = unsafe { arena.realloc(address as *mut u8, layout(size), 100) };
                // SAFETY: the piece has at least the bytes that it had before.
                assert!(unsafe { std::slice::from_raw_parts(at, size) }.iter().all(|byte| *byte == mark));
                // SAFETY: it has this layout since it grew, and is freed once.
                unsafe { arena.dealloc(at, layout(100)) };
            })
        };
        work(&arena, 3);
        other.join().unwrap();
    });
}

fn main() {
    two_threads_never_have_one_piece();
    a_piece_may_be_freed_by_another_thread();
    println!("{} orders, none wrong", ORDERS.load(Ordering::Relaxed));
}
