//! Beside what others have made: the Go plugins in the middle of pods' lives, what they leave, and
//! calls in the shapes that real runtimes send.
#![cfg(test)]

mod go_leftovers;
mod interop;
mod pod_switches;
mod shapes;
mod table;
