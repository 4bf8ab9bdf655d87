//! host-local alone, as a program of its own: what the tests run beside the reference.

fn main() -> std::process::ExitCode {
    cnimble::plugin::main(&[&cnimble_host_local::HostLocal])
}
