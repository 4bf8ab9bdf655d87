//! The command `cnimble`: networks for containers from the command line.
//!
//! A thin shell around [`cnimble::runtime`]; `docs/COMMAND.md` describes it.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
