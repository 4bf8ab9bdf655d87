//! A runtime that carries out a verb of a chain, one call at a time.

use serde_json::Value;

use cnimble_tests::Outcome;
use cnimble_tests::trace::{Places, State, Stepped};

use super::Act;
use super::node::Node;

pub struct Actor<'n> {
    node: &'n Node,
    act: Act,
    /// The plugins that are still to be called, in reverse order.
    plugins: Vec<usize>,
    at: usize,
    process: Option<Stepped>,
    /// The result of each ADD.
    results: Vec<Value>,
    failed: Option<Outcome>,
}

/// The outcome of a verb.
pub struct Ended {
    /// The last result of an ADD.
    pub result: Option<Value>,
    pub failed: Option<Outcome>,
}

impl<'n> Actor<'n> {
    pub fn new(node: &'n Node, act: Act) -> Self {
        let all = 0..node.length();
        let plugins = if matches!(act, Act::Del(_)) { all.collect() } else { all.rev().collect() };
        let mut new = Actor { node, act, plugins, at: 0, process: None, results: Vec::new(), failed: None };
        new.start();
        new
    }

    fn start(&mut self) {
        let Some(at) = self.plugins.pop() else { return };
        self.at = at;
        let call = self.node.call(self.act, at, self.results.last());
        self.process = Some(call.stepped(Places::Messages));
    }

    /// Returns true if the actor can make a call. If the current plugin has ended, the next one is started.
    fn is_ready(&mut self) -> bool {
        while let Some(process) = &mut self.process {
            match process.look() {
                State::Ready => return true,
                State::Blocked => return false,
                State::Ended(_) => self.take(),
            }
        }
        false
    }

    fn take(&mut self) {
        let what = format!("{} of {:?}", self.node.plugin(self.at), self.act);
        let outcome = Outcome::from(&what, self.process.take().unwrap().finish());
        if outcome.status != 0 {
            self.failed = Some(outcome);
            return;
        }
        if matches!(self.act, Act::Add(_) | Act::Unheard(_)) {
            self.results.push(outcome.result());
        }
        self.start();
    }

    /// Makes at most `calls` calls and returns how many it made.
    pub fn lead(&mut self, calls: usize) -> usize {
        let mut made = 0;
        while made < calls && self.is_ready() {
            self.process.as_mut().unwrap().step();
            made += 1;
        }
        self.is_ready();
        made
    }

    pub fn has_ended(&self) -> bool {
        self.process.is_none()
    }

    /// Describes the current position.
    pub fn stands(&self) -> String {
        let call = self.process.as_ref().map_or("its end", Stepped::call);
        format!("{} of {:?} in {call}", self.node.plugin(self.at), self.act)
    }

    /// Returns the outcome. If the runtime gets no answer, it calls DEL.
    pub fn end(self) -> Ended {
        Ended { result: self.results.last().cloned(), failed: self.failed }
    }
}
