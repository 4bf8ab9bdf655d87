//! Faults: a plugin is killed, or one of its system calls fails, at any point.
//!
//! The product has no hooks for this. The tests use ptrace(2) on the shipped binary. The test run tries every point of
//! the most common network and a sample of the others. `scripts/stress` tries all.
#![cfg(test)]
// The modules use `pub` for shared items, which cannot be reached from outside.
#![allow(unreachable_pub)]

mod company;
mod compare;
mod disk;
mod dropped;
mod fail;
mod in_vm;
mod interleave;
mod kill;
mod kinds;
mod lost;
mod memory;
mod points;
mod power;
mod relive;
mod removal;
mod site;
mod stop;
mod zombies;
