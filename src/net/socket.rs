//! The netlink socket: requests out, acknowledgements and dumps in.

use super::{NetNs, Result};

/// A change to be made, with the words for its error.
#[derive(Debug, Clone)]
pub struct Request {
    what: String,
}

/// A NETLINK_ROUTE socket in one namespace.
#[derive(Debug)]
pub struct Netlink {}

impl Netlink {
    /// A socket in the current namespace.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open() -> Result<Self> {
        todo!()
    }

    /// A socket in `ns`, entered only for this moment.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open_in(ns: &NetNs) -> Result<Self> {
        ns.enter(Netlink::open)?
    }

    /// Makes one change.
    ///
    /// # Errors
    /// The kernel's, with the request's words and the kernel's.
    pub fn execute(&mut self, request: Request) -> Result<()> {
        self.execute_all(vec![request])
    }

    /// Makes several changes in one message to the kernel; they are carried out in order.
    /// The first error is returned after all answers are in; requests behind the one that
    /// failed have been tried all the same.
    ///
    /// # Errors
    /// The first refusal.
    pub fn execute_all(&mut self, _requests: Vec<Request>) -> Result<()> {
        todo!()
    }
}
