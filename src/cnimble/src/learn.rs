//! `completions`: prints the completion script of a shell, and answers the script's requests.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::env::{CompleteEnv, Shells};

use super::args::Cli;
use super::args::config::{Completions, Shell};
use super::print;
use super::report::Report;

/// The variable that the completion script sets when it runs this program for an answer.
const VARIABLE: &str = "CNIMBLE_COMPLETE";

/// Answers the completion script of a shell, and returns the exit status. It returns `None` if this run is no request
/// of such a script.
pub(super) fn answer() -> Option<ExitCode> {
    let here = std::env::current_dir().ok();
    let asked = CompleteEnv::with_factory(Cli::command).var(VARIABLE);
    match asked.try_complete(std::env::args_os(), here.as_deref()) {
        Ok(answered) => answered.then_some(ExitCode::SUCCESS),
        // A message would appear in the middle of the line that is being typed.
        Err(_) => Some(ExitCode::FAILURE),
    }
}

/// Prints the completion script of a shell.
pub(super) fn completions(given: &Completions) -> Result<(), Report> {
    let mut out = Vec::new();
    let shells = Shells::builtins();
    if let Some(shell) = shells.completer(given.shell.name()) {
        // A write to memory can't fail.
        let _ = shell.write_registration(VARIABLE, "cnimble", "cnimble", "cnimble", &mut out);
    }
    if given.shell == Shell::Zsh {
        // On first use zsh runs the whole file as the function `_cnimble` and expects an answer.
        out.extend_from_slice(b"[[ $funcstack[1] != _cnimble ]] || _clap_dynamic_completer_cnimble \"$@\"\n");
    }
    print(&String::from_utf8_lossy(&out))
}
