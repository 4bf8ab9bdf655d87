//! Faults: a plugin that is killed, or whose system calls fail, at any point whatsoever.
//!
//! No hooks in the product: ptrace(2) does it to the shipped binary. The test run takes every
//! point of the commonest network and a sample of the others; `scripts/stress` takes all.
// Tests stop at the first surprise; clippy doesn't see that this whole crate is one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
// Its modules say pub for what they share; there is nobody outside to reach it.
#![allow(unreachable_pub)]

mod compare;
mod disk;
mod fail;
mod kill;
mod points;
mod power;
mod site;
