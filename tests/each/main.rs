//! Requirements for every plugin: its output, its cost, and a single error for bad input. The tests use the plugins'
//! samples.
#![cfg(test)]

mod bad_input;
mod budget;
mod in_vm;
mod kit;
mod lint;
mod logs;
mod protocol;
mod verbs;
