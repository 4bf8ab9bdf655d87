//! The undo stack: every step of ADD says how to take it back.
//!
//! Undo actions own plain data (names, indices, paths) and open what sockets they need
//! themselves: they run when something else has just failed, so they lean on nothing that
//! may be broken. That also lets the panic hook run them, although the release profile
//! aborts on panic and no destructor would.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::rc::Rc;

use cnimble_cni::Error;

type Action = Box<dyn FnOnce() -> Result<(), Error>>;

struct Step {
    what: String,
    action: Action,
}

/// A stack of undo actions. Clones share it.
#[derive(Clone, Default)]
pub struct Undo {
    steps: Rc<RefCell<Vec<Step>>>,
}

thread_local! {
    /// Without a destructor: to have one, the standard library asks the system for memory, which takes a verb six system
    /// calls and two pages more.
    static CURRENT: ManuallyDrop<RefCell<Option<Undo>>> = const { ManuallyDrop::new(RefCell::new(None)) };
}

impl Undo {
    /// An empty stack.
    pub fn new() -> Self {
        Self::default()
    }

    /// Remembers how to take back what was just done; `what` reads like "remove veth vethX".
    pub fn push(&self, what: impl Into<String>, action: impl FnOnce() -> Result<(), Error> + 'static) {
        self.steps.borrow_mut().push(Step { what: what.into(), action: Box::new(action) });
    }

    /// Everything went well: forget the actions.
    pub fn commit(&self) {
        self.steps.borrow_mut().clear();
    }

    /// Runs the actions, latest first, all of them. Returns a sentence for each that failed.
    pub fn rollback(&self) -> Vec<String> {
        let mut failures = Vec::new();
        loop {
            // Taken one by one, so that an action that panics doesn't take the rest along.
            let step = match self.steps.try_borrow_mut() {
                Ok(mut steps) => steps.pop(),
                Err(_) => None,
            };
            let Some(step) = step else { return failures };
            log::debug!("undo: {}", step.what);
            if let Err(err) = (step.action)() {
                failures.push(format!("could not {}: {err}", step.what));
            }
        }
    }

    /// Rolls back and tells in the error's details what could not be taken back.
    pub fn rollback_into(&self, err: Error) -> Error {
        self.rollback().into_iter().fold(err, |err, failure| err.details(format!("left behind: {failure}")))
    }

    /// Makes this the stack that [`rollback_current`] runs.
    pub(super) fn make_current(&self) {
        CURRENT.with(|current| *current.borrow_mut() = Some(self.clone()));
    }
}

/// For the panic hook: rolls back the stack of the verb that is running.
pub(super) fn rollback_current() -> Vec<String> {
    let undo = CURRENT.with(|current| current.try_borrow_mut().ok().and_then(|mut current| current.take()));
    undo.map(|undo| undo.rollback()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use cnimble_cni::Code;

    use super::*;

    #[test]
    fn runs_backwards_and_goes_on_past_a_failure() {
        let order = Rc::new(RefCell::new(Vec::new()));
        let undo = Undo::new();
        for n in 1..=3 {
            let order = order.clone();
            undo.push(format!("remove {n}"), move || {
                order.borrow_mut().push(n);
                if n == 2 { Err(Error::new(Code::IO, "disk gone")) } else { Ok(()) }
            });
        }
        assert_eq!(undo.rollback(), ["could not remove 2: disk gone"]);
        assert_eq!(*order.borrow(), [3, 2, 1]);
        assert!(undo.rollback().is_empty());
    }

    /// The panic hook has nothing of the verb in its hands.
    #[test]
    fn the_stack_of_the_running_verb_is_found_and_run_once() {
        assert!(rollback_current().is_empty());
        let (undo, done) = (Undo::new(), Rc::new(RefCell::new(0)));
        let counted = done.clone();
        undo.push("count", move || {
            *counted.borrow_mut() += 1;
            Err(Error::new(Code::IO, "disk gone"))
        });
        undo.make_current();
        assert_eq!(rollback_current(), ["could not count: disk gone"]);
        assert!(rollback_current().is_empty());
        assert_eq!(*done.borrow(), 1);
    }

    #[test]
    fn commit_forgets() {
        let undo = Undo::new();
        undo.push("fail", || Err(Error::new(Code::IO, "must not run")));
        undo.commit();
        assert!(undo.rollback().is_empty());
    }
}
