#![doc = include_str!("../README.md")]

mod answer;
mod attach;
pub mod describe;
mod failure;
pub mod input;
mod invoke;
pub mod options;
mod records;
mod reload;
pub mod rootless;
mod setup;
mod wish;

pub use failure::{Failure, said};
pub use invoke::invoker;
pub use setup::{setup, teardown};
