//! `completions`: prints the completion script of a shell.

use super::args::Completions;
use super::report::Report;
use super::{names, print};

pub(super) fn completions(given: &Completions) -> Result<(), Report> {
    print(&String::from_utf8_lossy(&names::script(given)))
}
