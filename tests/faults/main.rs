//! Faults: a plugin that is killed, or whose system calls fail, at any point whatsoever.
//!
//! No hooks in the product: ptrace(2) does it to the shipped binary. The test run takes every
//! point of the commonest network and a sample of the others; `scripts/stress` takes all.
#![cfg(test)]
// Its modules say pub for what they share; there is nobody outside to reach it.
#![allow(unreachable_pub)]

mod company;
mod compare;
mod disk;
mod fail;
mod heirs;
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
