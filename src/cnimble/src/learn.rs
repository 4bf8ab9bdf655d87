//! `completions`: the script by which a shell asks this command.

use super::args::Completions;
use super::report::Report;
use super::{names, print};

pub(super) fn completions(given: &Completions) -> Result<(), Report> {
    print(&String::from_utf8_lossy(&names::script(given)))
}
