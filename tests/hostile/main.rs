//! Callers, files and pods that mean harm: docs/SECURITY.md says what is promised, here each
//! promise is tried.
#![cfg(test)]

mod layer2;
mod memory;
mod names;
mod planted;
mod pods;
mod privilege;
mod process;
mod restraint;
mod streams;
