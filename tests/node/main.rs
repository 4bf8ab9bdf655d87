//! What plugins and tests stand on: nf_tables, the harness, the machine of `scripts/vm`; and the
//! scripts that people run.
#![cfg(test)]

mod harness;
mod installs;
mod killed;
mod nft;
mod package;
mod pages;
mod scripts;
mod uninstall;
mod vm;
