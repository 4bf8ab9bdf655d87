//! Tests nf_tables, the test harness, the machine of `scripts/vm`, and the scripts for users.
#![cfg(test)]

mod harness;
mod installs;
mod killed;
mod nft;
mod package;
mod pages;
mod scripts;
mod toolchain;
mod uninstall;
mod vm;
