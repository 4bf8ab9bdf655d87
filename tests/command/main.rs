//! The command `cnimble`, and where its pods come from.
#![cfg(test)]

mod invoker;
mod pod;
mod run;
mod secrets;
mod serve;
mod sources;
mod tls;
