//! Malicious callers, files and pods. Each promise of docs/SECURITY.md is tested here.
#![cfg(test)]

mod identity;
mod layer2;
mod memory;
mod names;
mod planted;
mod pods;
mod privilege;
mod process;
mod restraint;
mod streams;
