//! All plugins in one binary, hard-linked under each plugin's name.
fn main() -> std::process::ExitCode {
    cnimble::plugin::main(&[])
}
