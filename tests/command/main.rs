//! Tests the command `cnimble` and the sources of its pods.
#![cfg(test)]

mod invoker;
mod pod;
mod run;
mod secrets;
mod serve;
mod sources;
mod tls;
