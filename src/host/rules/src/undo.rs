use std::fmt;

use cnimble_cni::Error;
use cnimble_netlink::nft::Nft;

use super::elements::{self, Changes, Layout};
use super::failures::Failures;

/// A step that takes a change back.
type Action = Box<dyn FnOnce(&mut Nft) -> Result<(), Error> + Send>;

/// The changes that an ADD made, so that exactly these can be taken back. Dropping it leaves them.
#[derive(Default)]
pub struct Applied(Vec<Action>);

impl Applied {
    /// Adds a step. It will run before those that were added earlier.
    pub(super) fn push(&mut self, action: impl FnOnce(&mut Nft) -> Result<(), Error> + Send + 'static) {
        self.0.push(Box::new(action));
    }

    /// Adds the steps of later changes.
    pub(super) fn join(&mut self, other: Applied) {
        self.0.extend(other.0);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn from_changes<L: Layout>(changes: Changes) -> Self {
        let mut undo = Applied::default();
        undo.push_changes::<L>(changes);
        undo
    }

    /// Adds a step that takes changes of elements back, unless there is nothing to take back.
    pub(super) fn push_changes<L: Layout>(&mut self, changes: Changes) {
        if !changes.is_empty() {
            self.push(move |nft| Ok(elements::revert::<L>(nft, &changes)?));
        }
    }

    /// Takes the changes back, the latest first, with a socket of its own. If a step fails, the others are tried before
    /// the error is returned.
    pub fn run(self) -> Result<(), Error> {
        let (mut nft, mut failures) = (Nft::new(), Failures::default());
        for action in self.0.into_iter().rev() {
            failures.note(action(&mut nft));
        }
        failures.outcome()
    }
}

impl fmt::Debug for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} changes", self.0.len())
    }
}

/// Returns the error of a failed ADD. If the undo failed as well, its error becomes a detail.
pub(super) fn undone<E: Into<Error>>(err: impl Into<Error>, undo: Result<(), E>) -> Error {
    let err = err.into();
    match undo {
        Ok(()) => err,
        Err(failure) => err.details(format!("and what was added could not be removed: {}", failure.into())),
    }
}
