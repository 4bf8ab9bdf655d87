//! All plugins in one binary, which runs the plugin that it is called by: a hard link, a symbolic link or a copy.
//!
//! It starts at C's `main`. That of the standard library reads /proc/self/maps, and prepares a signal stack and
//! handlers for a stack overflow, which takes sixteen system calls. [`cnimble_plugin::main_like`] does what a plugin
//! needs.

#![cfg_attr(not(test), no_main)]

mod arena;
mod install;
mod sync;

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;

use cnimble_plugins::PLUGINS;

/// The release of the Go reference plugins with the same features.
const REFERENCE: &str = "1.9.1";

#[global_allocator]
static ALLOCATOR: arena::Arena<{ 512 << 10 }> = arena::Arena::new();

/// The entry point of C, with `argc` arguments in `argv`.
// SAFETY: no other symbol of this program is called `main`. The standard library makes none.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    let args: Vec<OsString> = (0..usize::try_from(argc).unwrap_or(0))
        .map(|nth| {
            // SAFETY: the C library passes `argc` pointers to strings that live as long as the process
            // (C23, 5.1.2.3.2).
            let arg = unsafe { CStr::from_ptr(*argv.add(nth)) };
            OsStr::from_bytes(arg.to_bytes()).to_owned()
        })
        .collect();
    // The program installs itself on systems without a shell.
    if let Some(status) = args.get(1..).and_then(install::asked) {
        return status;
    }
    cnimble_plugin::main_like(PLUGINS, args, Some(REFERENCE))
}
