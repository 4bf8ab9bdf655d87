//! What is asked of every plugin alike: what it prints, what it may cost, and that bad input is
//! one error. The plugins' samples feed it.
#![cfg(test)]

mod bad_input;
mod budget;
mod in_vm;
mod kit;
mod lint;
mod logs;
mod protocol;
mod verbs;
