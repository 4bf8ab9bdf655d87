//! ADD, CHECK, DEL and VERSION of bridge, host-local and loopback in every version of the
//! specification, and what a pod has when ADD returns.
// Tests stop at the first surprise; clippy doesn't see that this whole crate is one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod life;
mod loopback;
mod neighbours;
mod protocol;
mod state;
