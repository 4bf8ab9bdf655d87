//! The undo stack: every step of ADD has an action that reverts it. Actions own plain data (names, indices, paths) and
//! open their sockets themselves, because they run after a failure. The panic hook can also run them, although the
//! release profile aborts on panic and runs no destructor.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::rc::Rc;

use cnimble_cni::Error;
use cnimble_netlink::NetNs;

type Action = Box<dyn FnOnce() -> Result<(), Error>>;

/// An undo action with a phrase that names it.
struct UndoStep {
    what: String,
    action: Action,
}

/// A stack of undo actions. Clones share it.
#[derive(Clone, Default)]
pub struct Undo {
    steps: Rc<RefCell<Vec<UndoStep>>>,
}

thread_local! {
    /// The stack of the running verb. It has no destructor: to register one, the standard library allocates memory,
    /// which costs six system calls and two pages.
    static CURRENT: ManuallyDrop<RefCell<Option<Undo>>> = const { ManuallyDrop::new(RefCell::new(None)) };
}

impl Undo {
    /// Returns an empty stack.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an action that reverts the last step. `what` is a phrase such as "remove veth vethX".
    pub fn push(&self, what: impl Into<String>, action: impl FnOnce() -> Result<(), Error> + 'static) {
        self.steps.borrow_mut().push(UndoStep { what: what.into(), action: Box::new(action) });
    }

    /// Adds an action that runs after all others, such as the release of a lease that must outlive the interface.
    pub fn push_last(&self, what: impl Into<String>, action: impl FnOnce() -> Result<(), Error> + 'static) {
        self.steps.borrow_mut().insert(0, UndoStep { what: what.into(), action: Box::new(action) });
    }

    /// Drops the actions, because ADD has succeeded.
    pub fn commit(&self) {
        self.steps.borrow_mut().clear();
    }

    /// Runs all actions, the latest first, those of [`push_last`](Self::push_last) at the end. Returns a sentence for
    /// each failure.
    ///
    /// A panic inside of [`push`](Self::push) or `push_last` leaves the stack borrowed. Then no action runs, and the
    /// returned list does not tell that.
    pub fn rollback(&self) -> Vec<String> {
        let mut failures = Vec::new();
        loop {
            // Each step is taken separately, so that a panic in one action does not drop the others.
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

    /// Rolls back, and adds the failures to the error's details.
    pub fn rollback_into(&self, err: Error) -> Error {
        self.rollback().into_iter().fold(err, |err, failure| err.details(format!("left behind: {failure}")))
    }

    /// Makes this the stack that [`rollback_current`] rolls back.
    pub(super) fn make_current(&self) {
        CURRENT.with(|current| *current.borrow_mut() = Some(self.clone()));
    }
}

/// Rolls back the stack of the running verb, for the panic hook. Returns a sentence for each failure. A second call
/// finds no stack. If the stack is borrowed, nothing is undone and the list is empty: see [`Undo::rollback`].
///
/// The hook runs before the stack unwinds, perhaps inside of [`NetNs::enter`]. So the thread first returns to its own
/// namespace, because the actions open sockets of the host. If it can't return, nothing is undone.
pub(super) fn rollback_current() -> Vec<String> {
    if let Err(err) = NetNs::leave_entered() {
        return vec![format!("everything that was made: {err}")];
    }
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

    #[test]
    fn a_lease_goes_after_the_interface_that_has_its_address() {
        let order = Rc::new(RefCell::new(Vec::new()));
        let undo = Undo::new();
        let step = |name: &'static str| {
            let order = order.clone();
            move || {
                order.borrow_mut().push(name);
                Ok(())
            }
        };
        undo.push("remove the interface", step("interface"));
        undo.push_last("release the lease", step("lease"));
        undo.push("remove the rules", step("rules"));
        assert!(undo.rollback().is_empty());
        assert_eq!(*order.borrow(), ["rules", "interface", "lease"]);
    }

    /// The panic hook has no access to the verb's values.
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

    /// The panic hook runs where the panic was, and the actions are about the host.
    #[test]
    fn the_stack_is_run_in_the_namespace_of_the_host() {
        let Ok(pod) = NetNs::create() else {
            return eprintln!("SKIP the_stack_is_run_in_the_namespace_of_the_host: it needs CAP_SYS_ADMIN");
        };
        let home = NetNs::current().unwrap();
        let undo = Undo::new();
        undo.push("look where it is", move || {
            if NetNs::current()?.same_as(&home)? {
                Ok(())
            } else {
                Err(Error::new(Code::INTERNAL, "it is the pod's namespace"))
            }
        });
        undo.make_current();
        assert_eq!(pod.enter(rollback_current).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn commit_forgets() {
        let undo = Undo::new();
        undo.push("fail", || Err(Error::new(Code::IO, "must not run")));
        undo.commit();
        assert!(undo.rollback().is_empty());
    }
}
