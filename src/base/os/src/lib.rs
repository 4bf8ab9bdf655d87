//! The operating system beyond netlink: child processes, small files, privileges and the system bus.
//!
//! | module | task |
//! |---|---|
//! | [`child`] | runs other programs, and passes on the signal that ends them |
//! | [`files`] | reads untrusted files, and writes files whole or not at all |
//! | [`privileges`] | drops capabilities, and new privileges of started programs |
//! | [`dbus`] | calls methods on the system bus |
//! | [`shell`] | quotes options of commands that messages suggest |

#![warn(missing_docs)]

pub mod child;
pub mod dbus;
pub mod files;
pub mod privileges;
pub mod shell;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
