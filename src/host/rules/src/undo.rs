use std::fmt;

use cnimble_cni::Error;
use cnimble_netlink::nft::Nft;

use super::elements::{self, Changes, Layout};
use super::failures::Failures;

type Action = Box<dyn FnOnce(&mut Nft) -> Result<(), Error> + Send>;

/// The changes that an ADD made, to be taken back exactly.
#[derive(Default)]
pub struct Applied(Vec<Action>);

impl Applied {
    pub(super) fn push(&mut self, action: impl FnOnce(&mut Nft) -> Result<(), Error> + Send + 'static) {
        self.0.push(Box::new(action));
    }

    pub(super) fn join(&mut self, other: Applied) {
        self.0.extend(other.0);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn of<L: Layout>(changes: Changes) -> Self {
        let mut undo = Applied::default();
        undo.push_changes::<L>(changes);
        undo
    }

    pub(super) fn push_changes<L: Layout>(&mut self, changes: Changes) {
        if !changes.is_empty() {
            self.push(move |nft| Ok(elements::revert::<L>(nft, &changes)?));
        }
    }

    /// The latest change first. Tries everything before it fails. Opens its own socket.
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

/// Adds to the error of a failed ADD that its changes could not be taken back.
pub(super) fn undone<E: Into<Error>>(err: impl Into<Error>, undo: Result<(), E>) -> Error {
    let err = err.into();
    match undo {
        Ok(()) => err,
        Err(failure) => err.details(format!("and what was added could not be removed: {}", failure.into())),
    }
}
