//! The reader of what an API server says, for fuzzers.

use crate::{Nodes, node};

/// Takes any bytes for nodes, one a line; those that are none are left out.
pub fn nodes(bytes: &[u8]) -> Nodes {
    bytes.split(|byte| *byte == b'\n').filter_map(|line| node::read(line).ok()).collect()
}
