//! The command `cnimble`, and where its pods come from.
#![cfg(test)]

mod invoker;
mod pod;
mod run;
mod sources;
mod tls;
