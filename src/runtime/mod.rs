//! libcni in Rust.
