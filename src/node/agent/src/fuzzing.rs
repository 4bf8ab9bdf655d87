//! Entry point for fuzzers.

use crate::{Nodes, node};

pub fn nodes(bytes: &[u8]) -> Nodes {
    bytes.split(|byte| *byte == b'\n').filter_map(|line| node::read(line).ok()).collect()
}
