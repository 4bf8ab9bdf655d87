//! `completions`: the script by which a shell asks this command. `man`: made from the command line's own
//! description.

use clap::CommandFactory;

use super::args::{Cli, Completions, Man};
use super::report::{Exit, Report};
use super::{names, print};

pub(super) fn completions(given: &Completions) -> Result<(), Report> {
    print(&String::from_utf8_lossy(&names::script(given)))
}

pub(super) fn man(given: &Man) -> Result<(), Report> {
    let failed = |err: std::io::Error| {
        let report = Report::new(Exit::Files, "the manual can't be written").row("why", err.to_string());
        given.dir.iter().fold(report, |report, dir| report.row("directory", dir.display().to_string()))
    };
    let Some(dir) = &given.dir else {
        let mut out = Vec::new();
        clap_mangen::Man::new(Cli::command()).render(&mut out).map_err(failed)?;
        return print(&String::from_utf8_lossy(&out));
    };
    std::fs::create_dir_all(dir).map_err(failed)?;
    clap_mangen::generate_to(Cli::command(), dir).map_err(failed)
}
