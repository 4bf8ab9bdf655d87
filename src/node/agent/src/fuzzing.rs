//! Entry point for fuzzers.

use crate::{Nodes, node};

/// Parses any bytes as nodes, one per line. Invalid nodes are left out.
pub fn nodes(bytes: &[u8]) -> Nodes {
    bytes.split(|byte| *byte == b'\n').filter_map(|line| node::read(line).ok()).collect()
}
