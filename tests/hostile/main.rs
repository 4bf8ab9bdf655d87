//! Callers, files and pods that mean harm: docs/SECURITY.md says what is promised, here each
//! promise is tried.
// Tests stop at the first surprise; clippy doesn't see that this whole crate is one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod layer2;
mod names;
mod planted;
mod pods;
mod privilege;
mod process;
mod streams;
