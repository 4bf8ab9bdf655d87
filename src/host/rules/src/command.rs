use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use cnimble_cni::{Code, Error};
use cnimble_netlink::nft::Family;
use cnimble_os::child::{Failure, Limits};

pub(super) const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];

/// Directories that are searched after PATH, because runtimes may call plugins with a bare PATH.
const DIRECTORIES: [&str; 4] = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin"];

/// The maximum output of a command, in bytes. A rule has some 150 bytes, so this is enough for hundreds of thousands.
const LIMITS: Limits = Limits { stdout: 64 << 20, stderr: Some(16 << 10) };

/// Returns the path of an executable file, from PATH and then from the usual directories. Relative directories in PATH
/// are skipped.
pub(super) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .filter(|directory| directory.is_absolute())
        .chain(DIRECTORIES.iter().map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|file| {
            std::fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        })
}

/// Returns the name of iptables' command for a family: `iptables-save`, `ip6tables-restore` and so on.
pub(super) fn tool(family: Family, action: &str) -> String {
    let iptables = if family == Family::Ipv4 { "iptables" } else { "ip6tables" };
    format!("{iptables}-{action}")
}

/// Makes all changes to a table of iptables, or none. Fails as [`run`] does.
pub(super) fn restore(family: Family, table: &str, lines: &[String]) -> Result<(), Error> {
    restore_by(&tool(family, "restore"), table, lines)
}

/// Does what [`restore`] does, by the command `name`.
pub(super) fn restore_by(name: &str, table: &str, lines: &[String]) -> Result<(), Error> {
    let input = format!("*{table}\n{}\nCOMMIT\n", lines.join("\n"));
    run(name, &["--noflush", "--wait"], &input).map(drop)
}

/// Returns whether `iptables-restore` and `ip6tables-restore` are installed.
pub(super) fn installed() -> bool {
    FAMILIES.into_iter().all(|family| find_program(&tool(family, "restore")).is_some())
}

/// Fails with code 50 if the commands are not installed; then the hint names the key `option`, which chooses another
/// backend. Fails as [`run`] does if iptables can't use the table. Changes nothing.
pub(super) fn usable(table: &str, option: &str) -> Result<(), Error> {
    for name in FAMILIES.map(|family| tool(family, "restore")) {
        if find_program(&name).is_none() {
            return Err(Error::new(Code::NOT_AVAILABLE, format!("the command {name} is not installed"))
                .details(format!("hint: install iptables, or set \"{option}\": \"nftables\"")));
        }
    }
    let name = tool(Family::Ipv4, "restore");
    run(&name, &["--test", "--noflush", "--wait"], &format!("*{table}\nCOMMIT\n")).map(drop)
}

/// Runs a command and returns its output. Bytes that are no UTF-8 are replaced.
///
/// # Errors
/// Fails with code 100 if the command is not installed or fails; the details are the first lines of its stderr. Fails
/// with code 5 if it can't be started, and with code 11 if a signal came first.
pub(super) fn run(name: &str, args: &[&str], input: &str) -> Result<String, Error> {
    let program = find_program(name).ok_or_else(|| missing(name))?;
    let mut command = Command::new(&program);
    command.args(args.iter().map(OsStr::new)).env("LC_ALL", "C");
    let output =
        cnimble_os::child::run(&mut command, input.as_bytes(), LIMITS).map_err(|failure| match failure {
            Failure::Start(err) | Failure::Talk(err) => Error::io("run", &program, &err),
            Failure::TooMuch(limit) => {
                Error::new(Code::KERNEL, format!("{name} printed more than {limit} bytes"))
            }
            Failure::Stopped(err) => err.context(name),
        })?;
    if output.status.success() {
        // The output may be large, so it is not copied.
        return Ok(String::from_utf8(output.stdout)
            .unwrap_or_else(|err| String::from_utf8_lossy(err.as_bytes()).into_owned()));
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let said: Vec<&str> = stderr.lines().map(str::trim).filter(|line| !line.is_empty()).take(5).collect();
    Err(Error::new(Code::KERNEL, format!("{name} failed ({})", output.status)).details(said.join("; ")))
}

fn missing(name: &str) -> Error {
    Error::new(Code::KERNEL, format!("the command {name} is not installed"))
        .details("hint: install iptables, or set the plugin's backend to \"nftables\"")
}
