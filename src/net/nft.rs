//! nf_tables over netlink.

use super::{NetNs, Result};

/// A NETLINK_NETFILTER socket in one namespace.
#[derive(Debug)]
pub struct Nft {}

impl Nft {
    /// A socket in the current namespace. Opened at the first request: most DELs need it,
    /// but a plugin without rules should not pay for it.
    pub fn new() -> Self {
        todo!()
    }

    /// A socket in `ns`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open_in(_ns: &NetNs) -> Result<Self> {
        todo!()
    }
}
