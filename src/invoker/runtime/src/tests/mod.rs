//! The invoker against plugins that are small shell scripts: they are started by the
//! kernel like any other, and do what a test needs to go wrong.

mod abandoned;
mod cache;
mod chain;
mod conf;
mod exec;
mod gc;
mod recorded;

use super::testing::{Bench, attach, network};
